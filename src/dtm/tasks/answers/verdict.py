"""The verdict of a grader on one generation, and the sets of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

Rules = Literal["d1", "spg", "dtm", "fixed"]
"""Whose reading of an answer.

``d1``, ``spg`` and ``dtm`` are those of the published numbers, quirks included; where DTM released no
grader (GSM8K, MATH500) ``dtm`` is ``spg``, whose numbers its table quotes. ``fixed`` is how a person would
accept: see each task for what it repairs. No rule evaluates powers, whatever the original would have done.
"""

RULES: tuple[Rules, ...] = get_args(Rules)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer that was read, and whether it is right."""

    extracted: str | float | None
    """None where no answer was found; of Sudoku's published rules, an empty text."""
    correct: bool | None
    """None where the row has no gold answer to compare with."""
    correct_cells: int | None = None
    """Sudoku: empty cells filled in correctly."""
    empty_cells: int | None = None
    undecided: bool = False
    """MATH: the comparison ran past its deadline twice, so the answer counts as wrong."""


Grader = Callable[[str, Any, str, Rules], Verdict]
"""``grade(question, ground_truth, generation, rules)``; a `DataError` where the row cannot be understood."""
