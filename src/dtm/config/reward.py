"""Where the reward comes from, and what happens when it fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dtm.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardConfig:
    """The reward function, its range, and what to do when it fails."""

    function: str | None = None
    """Your own reward as module:function or path/to/file.py:function; none: the task's."""
    low: float | None = None
    """Lowest reward your function can return; with high, it sets the ratio guard."""
    high: float | None = None
    """Highest reward your function can return; none: the guard uses the range seen in the buffer."""
    on_error: Literal["stop", "skip"] = "stop"
    """When the function raises, hangs, or returns nan for a sample: stop the run (everything written is
    kept) or skip the sample. None from the function always skips it."""
    timeout: float = 60.0
    """Seconds a call may take before its process is killed."""
    workers: int = 1
    """Processes that share a batch: more for a slow function that rates each sample by itself."""
    in_process: bool = False
    """Call your function in the process that trains, to share its GPU or its objects; a call that holds the
    interpreter then cannot be stopped."""

    def __post_init__(self) -> None:
        require(self.timeout > 0, f"reward.timeout must be positive, got {self.timeout:g}")
        require(self.workers >= 1, f"reward.workers must be at least 1, got {self.workers}")
        require(
            self.workers == 1 or not self.in_process,
            "reward.workers are processes of their own: leave out reward.in_process",
        )
        if self.low is not None and self.high is not None:
            require(self.low < self.high, f"reward.low {self.low:g} must be below reward.high {self.high:g}")

    @property
    def declared(self) -> tuple[float, float] | None:
        """The declared range of the reward; None if it was not given."""
        low, high = self.low, self.high
        if low is None or high is None:
            require(low is high, "give reward.low and reward.high together, or neither")
            return None
        return low, high
