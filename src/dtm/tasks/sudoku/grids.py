"""All 288 complete 4×4 grids, and the completions of a puzzle.

A set of grids is an integer with a bit per grid. The completions of a puzzle are the intersection of one set
per given digit; it has exactly one completion if the integer is a power of two.
"""

from __future__ import annotations

from functools import cache
from itertools import permutations

SIDE, CELLS = 4, 16


@cache
def all_grids() -> tuple[str, ...]:
    """Return every valid grid, in order."""
    rows, found = ["".join(row) for row in permutations("1234")], [""]
    for _ in range(SIDE):
        found = [above + row for above in found for row in rows if _columns_differ(above, row)]
    return tuple(grid for grid in found if is_valid(grid))


def is_valid(grid: str) -> bool:
    """Return whether each row, column and 2×2 box has 1, 2, 3 and 4."""
    return len(grid) == CELLS and all({grid[cell] for cell in unit} == set("1234") for unit in units())


@cache
def units() -> tuple[tuple[int, ...], ...]:
    """Return the cells of each row, column and box."""
    rows = [tuple(range(SIDE * row, SIDE * row + SIDE)) for row in range(SIDE)]
    columns = [tuple(range(column, CELLS, SIDE)) for column in range(SIDE)]
    boxes = [(corner, corner + 1, corner + SIDE, corner + SIDE + 1) for corner in (0, 2, 8, 10)]
    return (*rows, *columns, *boxes)


def completions(puzzle: str) -> list[str]:
    """Return the valid grids that keep the puzzle's digits."""
    bits = _allowed(puzzle)
    return [grid for place, grid in enumerate(all_grids()) if bits >> place & 1]


def is_unique(puzzle: str) -> bool:
    """Return whether the puzzle has exactly one completion."""
    return _allowed(puzzle).bit_count() == 1


def is_solution(puzzle: str, grid: str) -> bool:
    """Return whether the grid is valid and keeps the puzzle's digits."""
    return is_valid(grid) and all(p in ("0", g) for p, g in zip(puzzle, grid, strict=True))


def _allowed(puzzle: str) -> int:
    bits = (1 << len(all_grids())) - 1
    for cell, digit in enumerate(puzzle):
        if digit != "0":
            bits &= _with_digit().get((cell, digit), 0)
    return bits


@cache
def _with_digit() -> dict[tuple[int, str], int]:
    """Return, for each cell and digit, the set of grids with this digit there."""
    sets: dict[tuple[int, str], int] = {}
    for place, grid in enumerate(all_grids()):
        for cell, digit in enumerate(grid):
            sets[cell, digit] = sets.get((cell, digit), 0) | 1 << place
    return sets


def _columns_differ(above: str, row: str) -> bool:
    """Return whether no digit of a row is in the same column of a row above it."""
    return all(digit not in above[column::SIDE] for column, digit in enumerate(row))
