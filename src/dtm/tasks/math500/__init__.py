"""MATH: competition problems with a LaTeX answer, tested on MATH500."""
