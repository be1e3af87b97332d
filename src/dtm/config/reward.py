"""Settings of the reward function, and of its failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dtm.config.rules import AT_LEAST_ONE, POSITIVE, check_fields
from dtm.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardConfig:
    """The reward function, its range, and the response to its failures."""

    function: str | None = None
    """Your own reward function, as module:function or path/to/file.py:function; none: the task's reward."""
    low: float | None = None
    """Lowest reward your function can return; low and high set the bound of the ratio guard."""
    high: float | None = None
    """Highest reward your function can return; none: the guard uses the range seen in the buffer."""
    on_error: Literal["stop", "skip"] = "stop"
    """Response when the function raises, hangs, or returns nan for a sample: stop the run (its files are
    kept), or skip the sample. A sample with reward None is always skipped."""
    timeout: float = 60.0
    """Seconds after which a call is killed, with its process."""
    workers: int = 1
    """Processes that split a batch; raise it for a slow function that rates each sample separately."""
    in_process: bool = False
    """Call your function in the training process, to share its GPU or its objects; a call that hangs then
    cannot be killed."""

    def __post_init__(self) -> None:
        check_fields("reward", self, timeout=POSITIVE, workers=AT_LEAST_ONE)
        require(
            self.workers == 1 or not self.in_process,
            "reward.workers and reward.in_process exclude each other: leave one of them out",
        )
        if self.low is not None and self.high is not None:
            require(self.low < self.high, f"reward.low {self.low:g} must be below reward.high {self.high:g}")

    @property
    def declared(self) -> tuple[float, float] | None:
        """The declared range of the reward; None if it is not declared."""
        low, high = self.low, self.high
        if low is None or high is None:
            require(low is high, "give reward.low and reward.high together, or neither")
            return None
        return low, high
