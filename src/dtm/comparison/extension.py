"""Extend a tuning grid whose best value lies at its edge; all methods get the same number of trials.

A round adds one trial to *every* method. Rounds are added while the best trial of some method is at an edge,
at most `EXTENSIONS` times:

    best at an edge     the next value beyond it, in the ratio of the last two values
    best inside         the next setting of its grid; after the last one, a learning rate between the best
                        one and the better of its neighbours
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
"""Largest number of rounds."""
RATE = "optimizer.lr"
FEWEST = 3
"""Fewest values of a field that have an inside, so that the field can be extended."""


def beyond(tried: Sequence[RunConfig], best: RunConfig) -> tuple[str, RunConfig] | None:
    """Return a field of ``best`` at an edge of the tried values, and the setting beyond it; None if inside.

    The learning rate comes first, then numbers of the method with three tried values or more.
    """
    own = leaves(best)
    for field in [RATE, *(name for name in own if name.startswith("method.") and name != "method.name")]:
        further = _next_value(own[field], [leaves(config).get(field) for config in tried])
        if further is not None:
            try:
                return field, with_value(best, field, further)
            except ConfigError:
                continue  # the method does not allow the value
    return None


def between(tried: Sequence[RunConfig], rewards: Sequence[float], best: int) -> RunConfig:
    """Return the best setting with a learning rate half way, in log, to the better of its two neighbours.

    ``rewards`` are those of ``tried``, −inf for a trial that failed. Only neighbours in the same settings
    count; without a neighbour, the rate is twice that of the best.
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
    """Return the configuration with one field of the method changed."""
    return changed(config, nested(field, value))


def _next_value(value: Any, tried: Sequence[Any]) -> float | int | None:
    """Return the value beyond an extreme of the tried ones, in the ratio of the last two; None if inside."""
    numbers = sorted({x for x in tried if isinstance(x, int | float) and not isinstance(x, bool)})
    if len(numbers) < FEWEST or numbers[0] <= 0 or value not in (numbers[0], numbers[-1]):
        return None
    neighbour = numbers[1] if value == numbers[0] else numbers[-2]
    further = _rounded(value * value / neighbour)
    if all(isinstance(x, int) for x in numbers):
        further = max(1, round(further))
    return None if further in numbers else further


def _rounded(value: float) -> float:
    """Round to three digits."""
    return float(f"{value:.3g}")
