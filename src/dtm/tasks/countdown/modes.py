"""Countdown's two modes: items that + and − solve, and items that need × or ÷."""

from __future__ import annotations

from collections.abc import Sequence

from dtm.tasks.countdown.items import CountdownItem
from dtm.tasks.countdown.solve import needs


def mode_accuracies(
    correct: Sequence[bool], numbers: Sequence[Sequence[int]], target: Sequence[int]
) -> dict[str, float]:
    """Return the accuracy of each mode that has items."""
    modes: dict[str | None, list[bool]] = {}
    for right, given, goal in zip(correct, numbers, target, strict=True):
        modes.setdefault(needs(CountdownItem(tuple(given), goal)), []).append(right)
    names = {"accuracy_add_sub": "add", "accuracy_mul_div": "multiply"}
    return {name: share(modes[mode]) for name, mode in names.items() if mode in modes}


def share(found: Sequence[bool]) -> float:
    """Return the share of true values; 0 for an empty list."""
    return sum(found) / len(found) if found else 0.0
