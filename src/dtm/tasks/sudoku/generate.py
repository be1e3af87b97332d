"""Generate training puzzles: empty cells of a complete grid so that it has one completion.

The split is by solution, as SPG makes it: a solution of a test puzzle never occurs in training, and those of
the exemplars in the prompt are training solutions. The exemplars' own puzzles are in neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from dtm.errors import require
from dtm.random import stream
from dtm.tasks.sudoku.exemplars import EXEMPLARS
from dtm.tasks.sudoku.grids import CELLS, all_grids, is_unique
from dtm.tasks.sudoku.items import SudokuItem

BLANKS = {7: 82, 8: 83, 9: 76, 11: 12, 12: 3}
"""Number of empty cells → number of test puzzles with it, of 256; the training file is not public."""
TRIES = 200
"""Largest number of draws per puzzle; with twelve empty cells, few draws have one completion."""


def training_solutions(test: Iterable[SudokuItem]) -> list[str]:
    """Return the grids that solve no test puzzle: 200 of the 288 with SPG's test file."""
    taken = {item.solution for item in test}
    shown = [exemplar.solution for exemplar in EXEMPLARS if exemplar.solution in taken]
    require(not shown, f"test solutions must not be shown in the prompt; {', '.join(shown)} are")
    return [grid for grid in all_grids() if grid not in taken]


def split_solutions(seed: int, train: int = 200) -> tuple[list[str], list[str]]:
    """Split all grids into training solutions, which include those of the exemplars, and test solutions."""
    forced = [exemplar.solution for exemplar in EXEMPLARS]
    others = [grid for grid in all_grids() if grid not in forced]
    drawn = train - len(forced)
    require(
        0 <= drawn < len(others), f"train must lie in [3, 287], so that both sides have grids; got {train}"
    )
    order = torch.randperm(len(others), generator=stream(seed, "sudoku-split")).tolist()
    shuffled = [others[place] for place in order]
    return sorted([*forced, *shuffled[:drawn]]), sorted(shuffled[drawn:])


def generate(solutions: Sequence[str], count: int, seed: int) -> list[SudokuItem]:
    """Generate different puzzles with one completion each, with as many empty cells as test puzzles."""
    require(count > 0, f"count must be positive, got {count}")
    require(bool(solutions), "there must be solutions to make puzzles from")
    generator = stream(seed, "sudoku-puzzles")
    seen = {exemplar.puzzle for exemplar in EXEMPLARS}
    items: list[SudokuItem] = []
    for blanks in _blanks(count, generator):
        for _ in range(TRIES):
            item = _draw(solutions, blanks, generator)
            if item.puzzle not in seen and is_unique(item.puzzle):
                seen.add(item.puzzle)
                items.append(item)
                break
    require(
        len(items) == count,
        f"found {len(items)} different puzzles on {len(solutions)} solutions, not {count}: ask for fewer",
    )
    return items


def _blanks(count: int, generator: torch.Generator) -> list[int]:
    weights = torch.tensor(list(BLANKS.values()), dtype=torch.float64)
    drawn = torch.multinomial(weights, count, replacement=True, generator=generator).tolist()
    choices = list(BLANKS)
    return [choices[place] for place in drawn]


def _draw(solutions: Sequence[str], blanks: int, generator: torch.Generator) -> SudokuItem:
    solution = solutions[int(torch.randint(len(solutions), (), generator=generator))]
    empty = set(torch.randperm(CELLS, generator=generator)[:blanks].tolist())
    puzzle = "".join("0" if cell in empty else digit for cell, digit in enumerate(solution))
    return SudokuItem(puzzle, solution)
