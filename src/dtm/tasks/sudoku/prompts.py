"""Prompts of Sudoku: the rules, solved exemplars, the puzzle."""

from __future__ import annotations

from dtm.errors import require
from dtm.tasks.protocols import Protocol, Stage
from dtm.tasks.sudoku.exemplars import EXEMPLARS, text_of
from dtm.tasks.sudoku.items import SudokuItem

RULES = """\
Please solve the following 4x4 Sudoku puzzle. The puzzle is provided as a 16-character string \
reading left-to-right, top-to-bottom, where '0' represents empty cells.

Rules:
- Fill empty cells with digits 1-4
- Each row/column must contain digits 1-4 exactly once
- Each 2x2 box must contain digits 1-4 exactly once

Important: Your solution must be a COMPLETE 16-character string with only digits 1-4.

Respond in this exact format:
<reasoning>
Your step-by-step solving process
</reasoning>
<answer>
[16-character solution string, digits 1-4 only]
</answer>"""


def prompt(
    item: SudokuItem, protocol: Protocol = "dtm", stage: Stage = "training", shots: int | None = None
) -> str:
    """Return the user's message for one item after ``shots`` exemplars: three, or none in d1's protocol."""
    if shots is None:
        shots = 0 if protocol == "d1" else len(EXEMPLARS)
    require(0 <= shots <= len(EXEMPLARS), f"shots must lie in [0, {len(EXEMPLARS)}], got {shots}")
    gap = "" if protocol == "dtm" or stage == "training" else "\n"
    shown = [text_of(exemplar) for exemplar in EXEMPLARS[:shots]]
    return "\n\n".join([RULES, *shown, f"Question: {question(item)}{gap}Answer:\n"])


def question(item: SudokuItem) -> str:
    """Return the item in the format of graded files."""
    return f"Solve the following Sudoku puzzle: {item.puzzle}\n"
