"""Accuracies from verdicts, by hand."""

from __future__ import annotations

import pytest
import torch

from dtm.tasks.answers.verdict import Verdict
from dtm.tasks.language.scores import pass_at, scores


def sudoku(right: int, empty: int) -> Verdict:
    return Verdict(None, right == empty, right, empty)


def test_sudoku_is_measured_in_cells_of_all_puzzles_together():
    """1 of 2 and 6 of 8 cells are 7 of 10; the mean over puzzles would be 0.625."""
    found = scores("sudoku", [sudoku(1, 2), sudoku(6, 8)], {})
    assert found == {"accuracy": pytest.approx(0.7), "solved": 0.0}
    assert scores("sudoku", [sudoku(2, 2), sudoku(0, 8)], {}) == {
        "accuracy": pytest.approx(0.2),
        "solved": 0.5,
    }


def test_other_tasks_are_measured_in_items():
    verdicts = [Verdict("1", True), Verdict("2", False), Verdict(None, False), Verdict("4", True)]
    assert scores("gsm8k", verdicts, {}) == {"accuracy": 0.5}


def test_pass_at_k_draws_without_replacement():
    """Of four answers one is right: two of them hold it with chance 1/2; the other prompt has none."""
    correct = [True, False, False, False, False, False, False, False]
    group = torch.tensor([3, 3, 3, 3, 9, 9, 9, 9])
    assert pass_at(correct, group) == {"pass@2": pytest.approx(0.25), "pass@4": pytest.approx(0.5)}
