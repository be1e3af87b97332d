"""How a run of a few steps may end."""

FINISHED = (0, 3)
"""Exit codes of a finished run: 3 where the held-out reward did not rise."""
