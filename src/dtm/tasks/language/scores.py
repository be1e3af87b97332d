"""What verdicts come to: the accuracies that are published for each benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtm.tasks.answers.verdict import Verdict
from dtm.tasks.countdown.items import CountdownItem
from dtm.tasks.countdown.solve import needs


def scores(kind: str, verdicts: Sequence[Verdict], columns: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """Accuracy as it is published: of items, and for Sudoku of empty cells, beside the puzzles solved."""
    correct = [bool(verdict.correct) for verdict in verdicts]
    measures = {"accuracy": _share(correct)}
    if kind == "sudoku":
        cells = sum(verdict.correct_cells or 0 for verdict in verdicts)
        empty = sum(verdict.empty_cells or 0 for verdict in verdicts)
        measures = {"accuracy": cells / empty if empty else 0.0, "solved": measures["accuracy"]}
    if kind == "countdown":
        measures |= _modes(correct, columns)
    return measures


def _modes(correct: Sequence[bool], columns: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """Countdown's two modes: items that + and − solve, and items that need × or ÷."""
    modes: dict[str | None, list[bool]] = {"add": [], "multiply": []}
    for right, numbers, target in zip(correct, columns["numbers"], columns["target"], strict=True):
        modes.setdefault(needs(CountdownItem(tuple(numbers), target)), []).append(right)
    return {"accuracy_add_sub": _share(modes["add"]), "accuracy_mul_div": _share(modes["multiply"])}


def _share(found: Sequence[bool]) -> float:
    return sum(found) / len(found) if found else 0.0
