"""Countdown items, and reading them from a data folder."""

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
        """Equal for items that are the same up to the order of the numbers."""
        return tuple(sorted(self.numbers)), self.target

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that a reward receives."""
        return {"numbers": list(self.numbers), "target": self.target}


def test_items(folder: Path) -> list[CountdownItem]:
    """The 256 items that all published numbers are measured on."""
    rows = read_rows(folder, "countdown_cd3_test.jsonl", ("input", "output"))
    return [_item(str(row["input"]).split(","), row["output"]) for row in rows]


def train_items(folder: Path) -> list[CountdownItem]:
    """The training file without test items; the published runs trained on those too."""
    rows = read_rows(folder, "countdown_cd3_train_subset.jsonl", ("nums", "target"))
    three = [row for row in rows if len(row["nums"]) == 3]  # the hub's has items of four numbers too
    return without([_item(row["nums"], row["target"]) for row in three], test_items(folder))


def without(items: Iterable[CountdownItem], others: Iterable[CountdownItem]) -> list[CountdownItem]:
    """The items that are none of the others, whatever the order of their numbers."""
    keys = {item.key for item in others}
    return [item for item in items if item.key not in keys]


def _item(numbers: Iterable[Any], target: Any) -> CountdownItem:
    try:
        return CountdownItem(tuple(int(number) for number in numbers), int(target))
    except (TypeError, ValueError):
        raise DataError(f"not a Countdown item: numbers {numbers!r}, target {target!r}") from None
