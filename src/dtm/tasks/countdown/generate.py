"""Generate Countdown items, for training without the file of the published runs."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from dtm.errors import ConfigError, require
from dtm.random import stream
from dtm.tasks.countdown.items import CountdownItem
from dtm.tasks.countdown.solve import solvable_rows

NUMBERS = (1, 99)
TARGETS = (10, 100)
"""Both ends included; the ranges of the published training set."""
ROUNDS = 200
"""Largest number of batches to draw; about one draw in ten is solvable."""


def generate(count: int, seed: int, excluded: Iterable[CountdownItem] = ()) -> list[CountdownItem]:
    """Generate different solvable items without the excluded ones, up to the order of the numbers.

    Numbers and target are drawn uniformly and kept if they have a solution, so that the share of items that
    need * or / is that of all solvable ones.
    """
    require(count > 0, f"count must be positive, got {count}")
    generator = stream(seed, "countdown-items")
    seen = {item.key for item in excluded}
    items: list[CountdownItem] = []
    for _ in range(ROUNDS):
        for item in _solvable_draws(16 * count, generator):
            if item.key not in seen:
                seen.add(item.key)
                items.append(item)
        if len(items) >= count:
            return items[:count]
    raise ConfigError(f"found {len(items)} different Countdown items, not {count}: ask for fewer")


def _solvable_draws(count: int, generator: torch.Generator) -> list[CountdownItem]:
    numbers = torch.randint(NUMBERS[0], NUMBERS[1] + 1, (count, 3), generator=generator)
    targets = torch.randint(TARGETS[0], TARGETS[1] + 1, (count,), generator=generator)
    kept = solvable_rows(numbers, targets)
    rows = zip(numbers[kept].tolist(), targets[kept].tolist(), strict=True)
    return [CountdownItem(tuple(row), target) for row, target in rows]
