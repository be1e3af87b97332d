"""Sudoku items, read from a data folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtm.errors import DataError, require
from dtm.tasks.data import read_rows
from dtm.tasks.sudoku.grids import is_solution


@dataclass(frozen=True, slots=True)
class SudokuItem:
    """A puzzle and its solution, sixteen digits each."""

    puzzle: str
    solution: str

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that a reward receives."""
        return {"puzzle": self.puzzle, "solution": self.solution}


def test_items(folder: Path) -> list[SudokuItem]:
    """Read SPG's 256 test puzzles, with 88 solutions that no training puzzle has and one completion each."""
    name = "sudoku4x4_test_spg256.csv"
    items = []
    for row in read_rows(folder, name, ("Puzzle", "Solution")):
        item = SudokuItem(row["Puzzle"], row["Solution"])
        fits = len(item.puzzle) == len(item.solution) and is_solution(item.puzzle, item.solution)
        require(fits, f"{name}: {item.solution!r} does not solve {item.puzzle!r}", DataError)
        items.append(item)
    return items
