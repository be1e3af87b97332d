"""Accuracies from verdicts, as published for each benchmark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import comb
from statistics import fmean
from typing import Any

from jaxtyping import Int
from torch import Tensor

from dtm.tasks.answers.verdict import Verdict
from dtm.tasks.countdown.modes import mode_accuracies, share


def scores(kind: str, verdicts: Sequence[Verdict], columns: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """Return the accuracy as published: of items, or for Sudoku of empty cells, with the share solved."""
    correct = [bool(verdict.correct) for verdict in verdicts]
    measures = {"accuracy": share(correct)}
    if kind == "sudoku":
        cells = sum(verdict.correct_cells or 0 for verdict in verdicts)
        empty = sum(verdict.empty_cells or 0 for verdict in verdicts)
        measures = {"accuracy": cells / empty if empty else 0.0, "solved": measures["accuracy"]}
    if kind == "countdown":
        measures |= mode_accuracies(correct, columns["numbers"], columns["target"])
    return measures


def pass_at(correct: Sequence[bool], group: Int[Tensor, " N"]) -> dict[str, float]:
    """Return pass@k for k = 2, 4, 8 … up to the completions per prompt: some answer of k is right.

    Unbiased from n completions of which c are right: 1 − C(n − c, k) / C(n, k), the mean over prompts.

    >>> import torch
    >>> pass_at([True, False, False, False], torch.zeros(4, dtype=torch.long))
    {'pass@2': 0.5, 'pass@4': 1.0}
    """
    answers: dict[int, list[bool]] = defaultdict(list)
    for key, right in zip(group.tolist(), correct, strict=True):
        answers[key].append(right)
    most = min(map(len, answers.values()))

    def share_at(k: int) -> float:
        return fmean(1 - comb(len(row) - sum(row), k) / comb(len(row), k) for row in answers.values())

    return {f"pass@{2**power}": share_at(2**power) for power in range(1, most.bit_length())}
