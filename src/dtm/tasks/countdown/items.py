"""Countdown items, read from a data folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtm.errors import DataError
from dtm.tasks.data import read_rows


@dataclass(frozen=True, slots=True)
class CountdownItem:
    """Numbers to use, and the target to reach."""

    numbers: tuple[int, ...]
    target: int

    @property
    def key(self) -> tuple[tuple[int, ...], int]:
        """Key that is equal for items with the same numbers in any order and the same target."""
        return tuple(sorted(self.numbers)), self.target

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that a reward receives."""
        return {"numbers": list(self.numbers), "target": self.target}


def test_items(folder: Path) -> list[CountdownItem]:
    """Read the 256 test items of all published numbers."""
    rows = read_rows(folder, "countdown_cd3_test.jsonl", ("input", "output"))
    return [_item(str(row["input"]).split(","), row["output"]) for row in rows]


def train_items(folder: Path) -> list[CountdownItem]:
    """Read the training file without test items, on which the published runs trained too."""
    rows = read_rows(folder, "countdown_cd3_train_subset.jsonl", ("nums", "target"))
    three = [row for row in rows if len(row["nums"]) == 3]  # the hub's has items of four numbers too
    return without([_item(row["nums"], row["target"]) for row in three], test_items(folder))


def without(items: Iterable[CountdownItem], others: Iterable[CountdownItem]) -> list[CountdownItem]:
    """Return the items that are not among the others, up to the order of the numbers."""
    keys = {item.key for item in others}
    return [item for item in items if item.key not in keys]


def _item(numbers: Iterable[Any], target: Any) -> CountdownItem:
    try:
        return CountdownItem(tuple(int(number) for number in numbers), int(target))
    except (TypeError, ValueError):
        raise DataError(f"not a Countdown item: numbers {numbers!r}, target {target!r}") from None
