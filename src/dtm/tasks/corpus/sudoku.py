"""4×4 Sudoku with the prompt of the benchmark, and puzzles in short lines.

The solutions of test puzzles never occur. There are only 288 grids, which a model could memorise instead of
the rules, so most lines use four other symbols in place of 1, 2, 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from dtm.tasks.corpus.part import Example, answer_block, pieces
from dtm.tasks.sudoku.exemplars import EXEMPLARS
from dtm.tasks.sudoku.generate import BLANKS
from dtm.tasks.sudoku.grids import CELLS, is_unique
from dtm.tasks.sudoku.items import SudokuItem
from dtm.tasks.sudoku.prompts import prompt

SYMBOLS = "56789ABCDEFGH"
"""Symbols of lines that do not use 1, 2, 3 and 4."""
RENAMED = 0.7
"""Share of lines that use them."""
LINES = 5
"""Puzzles in a row of lines."""


@dataclass(frozen=True, slots=True)
class Sudoku:
    """Puzzles with their solution, or with an answer that leaves or guesses the empty cells."""

    solutions: Sequence[str]
    """Grids that may occur."""

    def draw(self, random: Random, right: float) -> Example:
        """Draw one puzzle, worded as in the benchmark."""
        item = _puzzle(random, self.solutions)
        answer = item.solution if random.random() < right else _guess(random, item.puzzle)
        return Example.of(prompt(item), answer_block(answer))


@dataclass(frozen=True, slots=True)
class SudokuLines:
    """Lines with a puzzle and its solution. Always right."""

    solutions: Sequence[str]

    def draw(self, random: Random, right: float) -> Example:
        """Draw one row of lines."""
        symbols = "1234"
        if random.random() < RENAMED:
            symbols = "".join(random.sample(SYMBOLS, 4))
        named = str.maketrans("1234", symbols)
        items = [_puzzle(random, self.solutions) for _ in range(LINES)]
        lines = [
            (f"{item.puzzle} ".translate(named), f"{item.solution}\n".translate(named)) for item in items
        ]
        return Example(
            f"Write {LINES} 4x4 Sudoku puzzles with the symbols {symbols}, each with its solution.",
            pieces(lines),
        )


def _puzzle(random: Random, solutions: Sequence[str]) -> SudokuItem:
    """Draw a puzzle with one completion and the number of empty cells of a test puzzle."""
    shown = {exemplar.puzzle for exemplar in EXEMPLARS}
    blanks = random.choices(list(BLANKS), list(BLANKS.values()))[0]
    while True:
        solution = random.choice(solutions)
        empty = set(random.sample(range(CELLS), blanks))
        puzzle = "".join("0" if cell in empty else digit for cell, digit in enumerate(solution))
        if puzzle not in shown and is_unique(puzzle):
            return SudokuItem(puzzle, solution)


def _guess(random: Random, puzzle: str) -> str:
    """Return the puzzle with its empty cells left empty or guessed."""
    return "".join(random.choice("00001234") if cell == "0" else cell for cell in puzzle)
