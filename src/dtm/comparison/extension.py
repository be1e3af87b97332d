"""Extend a tuning grid whose best value lies at its edge, without giving any method more trials than another.

A round adds one trial to *every* method, as long as the best trial of some method is at an edge and at most
`EXTENSIONS` times:

    best at an edge     the next value beyond it, as far again as its neighbour
    best inside         the next setting of its grid, or a learning rate between the best one and the better
                        of its neighbours where the grid is used up
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dtm.comparison.settings import changed
from dtm.config import RunConfig
from dtm.config.serialise import leaves, nested
from dtm.errors import ConfigError

EXTENSIONS = 3
"""Rounds at most."""
RATE = "optimizer.lr"
FEWEST = 3
"""Values of a field below which it has no inside."""


def beyond(tried: Sequence[RunConfig], best: RunConfig) -> tuple[str, RunConfig] | None:
    """The field of ``best`` that is at an edge of what was tried, and the setting beyond; None: no field is.

    The learning rate comes first, then numbers of the method to which its knobs gave three values or more.
    """
    own = leaves(best)
    for field in [RATE, *(name for name in own if name.startswith("method.") and name != "method.name")]:
        further = _next_value(own[field], [leaves(config).get(field) for config in tried])
        if further is not None:
            try:
                return field, with_value(best, field, further)
            except ConfigError:
                continue  # the method refuses the value: this edge is its own
    return None


def between(tried: Sequence[RunConfig], rewards: Sequence[float], best: int) -> RunConfig:
    """The best setting with a learning rate half way, in log, to the better of its two neighbours.

    ``rewards`` are those of ``tried``, −inf for a trial that failed. Only neighbours in the same settings
    count; where there is none, the rate is twice that of the best.
    """
    own, rate = tried[best], tried[best].optimizer.lr
    peers = {
        config.optimizer.lr: reward
        for config, reward in zip(tried, rewards, strict=True)
        if with_value(config, RATE, rate) == own and config.optimizer.lr != rate
    }
    lower = max((lr for lr in peers if lr < rate), default=None)
    upper = min((lr for lr in peers if lr > rate), default=None)
    beside = [lr for lr in (lower, upper) if lr is not None]
    nearer = max(beside, key=lambda lr: peers[lr], default=4 * rate)
    return with_value(own, RATE, _rounded(math.sqrt(rate * nearer)))


def with_value(config: RunConfig, field: str, value: Any) -> RunConfig:
    """A configuration with one field of the method's own changed."""
    return changed(config, nested(field, value))


def _next_value(value: Any, tried: Sequence[Any]) -> float | int | None:
    """The value beyond an extreme of those tried, in the ratio of the last two; None: it is inside."""
    numbers = sorted({x for x in tried if isinstance(x, int | float) and not isinstance(x, bool)})
    if len(numbers) < FEWEST or numbers[0] <= 0 or value not in (numbers[0], numbers[-1]):
        return None
    neighbour = numbers[1] if value == numbers[0] else numbers[-2]
    further = _rounded(value * value / neighbour)
    if all(isinstance(x, int) for x in numbers):
        further = max(1, round(further))
    return None if further in numbers else further


def _rounded(value: float) -> float:
    """Three digits."""
    return float(f"{value:.3g}")
