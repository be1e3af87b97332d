"""Countdown's two modes: items that + and − solve, and items that need × or ÷."""

from __future__ import annotations

from collections.abc import Sequence

from dtm.tasks.countdown.items import CountdownItem
from dtm.tasks.countdown.solve import needs


def mode_accuracies(
    correct: Sequence[bool], numbers: Sequence[Sequence[int]], target: Sequence[int]
) -> dict[str, float]:
    """The accuracy of each mode; 0 where it has no items."""
    modes: dict[str | None, list[bool]] = {"add": [], "multiply": []}
    for right, given, goal in zip(correct, numbers, target, strict=True):
        modes.setdefault(needs(CountdownItem(tuple(given), goal)), []).append(right)
    return {"accuracy_add_sub": share(modes["add"]), "accuracy_mul_div": share(modes["multiply"])}


def share(found: Sequence[bool]) -> float:
    """How many are true, of one; 0 of none."""
    return sum(found) / len(found) if found else 0.0
