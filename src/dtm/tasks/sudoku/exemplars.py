"""The three solved puzzles shown before the question.

Puzzles, solutions and the order of filling are SPG's, and so is the layout; the sentences of the reasoning
are ours, derived from the current grid: each cell is filled when only one digit is possible.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtm.tasks.sudoku.grids import SIDE, units


@dataclass(frozen=True, slots=True)
class Exemplar:
    """A puzzle with a way to its solution."""

    puzzle: str
    solution: str
    order: str
    """Cells as row and column, in the order in which they are filled."""


EXEMPLARS = (
    Exemplar("3014002020004130", "3214142323414132", "12 44 34 33 32 21 22 24"),
    Exemplar("0000100420013142", "4213132424313142", "11 14 12 22 13 23 32 33"),
    Exemplar("2001403002001420", "2341413232141423", "12 13 44 24 22 31 33 34"),
)


def text_of(exemplar: Exemplar) -> str:
    """Format question, reasoning and answer of an exemplar."""
    return "\n".join(
        [
            "Question:",
            f"Solve the following Sudoku puzzle: {exemplar.puzzle}",
            "Answer:",
            "<reasoning>",
            _rows(exemplar.puzzle),
            *deductions(exemplar),
            _rows(exemplar.solution),
            "</reasoning>",
            "<answer>",
            exemplar.solution,
            "</answer>",
        ]
    )


def deductions(exemplar: Exemplar) -> list[str]:
    """Return a line per filled cell: the digits in its row, column and box, and the remaining digit."""
    grid, lines = list(exemplar.puzzle), []
    for place in exemplar.order.split():
        row, column = int(place[0]), int(place[1])
        cell = SIDE * (row - 1) + column - 1
        taken = sorted(neighbours(grid, cell))
        lines.append(
            f"R{row}C{column}: row, column and box hold {', '.join(taken)} → {exemplar.solution[cell]}"
        )
        grid[cell] = exemplar.solution[cell]
    return lines


def neighbours(grid: list[str], cell: int) -> set[str]:
    """Return the digits in the row, the column and the box of a cell."""
    return {grid[other] for unit in units() if cell in unit for other in unit} - {"0"}


def _rows(grid: str) -> str:
    rows = [grid[start : start + SIDE] for start in range(0, len(grid), SIDE)]
    return "\n".join(f"R{number}: {' '.join(row)}" for number, row in enumerate(rows, start=1))
