"""Accuracies from verdicts, as published for each benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtm.tasks.answers.verdict import Verdict
from dtm.tasks.countdown.modes import mode_accuracies, share


def scores(kind: str, verdicts: Sequence[Verdict], columns: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """Accuracy as it is published: of items, and for Sudoku of empty cells, beside the puzzles solved."""
    correct = [bool(verdict.correct) for verdict in verdicts]
    measures = {"accuracy": share(correct)}
    if kind == "sudoku":
        cells = sum(verdict.correct_cells or 0 for verdict in verdicts)
        empty = sum(verdict.empty_cells or 0 for verdict in verdicts)
        measures = {"accuracy": cells / empty if empty else 0.0, "solved": measures["accuracy"]}
    if kind == "countdown":
        measures |= mode_accuracies(correct, columns["numbers"], columns["target"])
    return measures
