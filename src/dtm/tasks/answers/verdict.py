"""The verdict of a grader on one generation, and the sets of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

Rules = Literal["d1", "spg", "dtm", "fixed"]
"""Rules for extracting and judging an answer.

``d1``, ``spg`` and ``dtm`` are those of the published numbers, defects included. DTM released no grader for
GSM8K and MATH500, where ``dtm`` is ``spg``, whose numbers its table quotes. ``fixed`` accepts what a person
would accept: see each task for the corrections. No rule evaluates powers, unlike some originals.
"""

RULES: tuple[Rules, ...] = get_args(Rules)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The extracted answer, and whether it is right."""

    extracted: str | float | None
    """Extracted answer; None without an answer, or an empty text under Sudoku's published rules."""
    correct: bool | None
    """Whether the answer is right; None if the row has no gold answer."""
    correct_cells: int | None = None
    """Sudoku: number of empty cells filled correctly."""
    empty_cells: int | None = None
    undecided: bool = False
    """MATH: the comparison ran past its deadline twice, so the answer counts as wrong."""


Grader = Callable[[str, Any, str, Rules], Verdict]
"""Grader, ``grade(question, ground_truth, generation, rules)``; it raises `DataError` for an invalid row."""
