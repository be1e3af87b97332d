"""Data for drawing a sample on a page: the maze, a Sudoku grid, or Countdown's arithmetic, checked here."""

from __future__ import annotations

import re
from typing import Any

from dtm.config import MazeConfig, RunConfig
from dtm.errors import DtmError
from dtm.evaluation.reveals import as_text
from dtm.tasks.answers import countdown, sudoku
from dtm.tasks.arithmetic import evaluate
from dtm.tasks.maze import Maze
from dtm.tasks.sudoku.grids import CELLS, is_solution, units

PUZZLE = re.compile(rf"(?<![0-9])[0-9]{{{CELLS}}}(?![0-9])")
ASKED = (
    re.compile(r"^([0-9]+(?:,[0-9]+)+)=([0-9]+)>"),
    re.compile(r"Numbers: \[([0-9, ]{1,200})\]\s{1,9}Target: ([0-9]{1,9})"),
    re.compile(r"only the numbers \[([0-9, ]{1,200})\][^.]{1,200}? exactly ([0-9]{1,9})"),
)
"""Patterns of the numbers and the target in Countdown prompts."""


def scene(config: RunConfig) -> dict[str, Any]:
    """Return how to draw a run's samples: "maze" with its walls, "sudoku", "countdown" or "text"."""
    task = config.task
    if isinstance(task, MazeConfig):
        maze = Maze.generate(task.size, task.door_fraction, task.seed)
        walls = ["".join("." if is_open else "#" for is_open in row) for row in maze.open.tolist()]
        return {"kind": "maze", "walls": walls}
    for kind in ("sudoku", "countdown"):
        if task.kind in (kind, f"{kind}-mini"):
            return {"kind": kind, "whole": task.kind.endswith("-mini")}
    return {"kind": "text"}


def drawing(scene: dict[str, Any], prompt: Any, completion: Any) -> dict[str, Any] | None:
    """Return the drawing of one sample; None if it cannot be parsed."""
    match scene["kind"]:
        case "maze":
            return _maze(prompt, completion)
        case "sudoku":
            return _sudoku(as_text(prompt), _answer(completion, scene))
        case "countdown":
            return _countdown(as_text(prompt), _answer(completion, scene))
    return None


def _answer(completion: Any, scene: dict[str, Any]) -> str:
    """Return the completion with its answer marked; a small model's completion is the answer itself."""
    return f"<answer>{as_text(completion)}</answer>" if scene["whole"] else as_text(completion)


def _maze(prompt: Any, completion: Any) -> dict[str, Any] | None:
    def is_cell(cell: Any) -> bool:
        return isinstance(cell, (list, tuple)) and len(cell) == 2 and all(isinstance(k, int) for k in cell)

    cells = completion if isinstance(completion, (list, tuple)) else None
    ends = prompt if isinstance(prompt, (list, tuple)) and len(prompt) == 2 else ()
    if cells is None or not ends or not all(map(is_cell, ends)):
        return None
    return {"ends": list(ends), "path": [list(cell) if is_cell(cell) else None for cell in cells]}


def _sudoku(prompt: str, answer: str) -> dict[str, Any] | None:
    """Return puzzle and grid as digits, and the cells that break a rule or change a given digit."""
    puzzles = PUZZLE.findall(prompt)  # exemplars come first
    if not puzzles:
        return None
    puzzle = puzzles[-1]
    grid = str(sudoku.grade(puzzle, "0" * CELLS, answer, "fixed").extracted or "0" * CELLS)
    return {
        "puzzle": puzzle,
        "grid": grid,
        "wrong": _wrong(puzzle, grid),
        "solved": is_solution(puzzle, grid),
    }


def _wrong(puzzle: str, grid: str) -> list[int]:
    """Return the cells that change a given digit or repeat one in a row, column or box."""
    changed = {cell for cell in range(CELLS) if puzzle[cell] not in ("0", grid[cell])}
    repeated = {
        cell
        for unit in units()
        for cell in unit
        if grid[cell] != "0" and sum(grid[other] == grid[cell] for other in unit) > 1
    }
    return sorted(changed | repeated)


def _countdown(prompt: str, answer: str) -> dict[str, Any] | None:
    """Return numbers, target, expression, value, and whether it uses the numbers and reaches the target."""
    asked = next((found for pattern in ASKED if (found := pattern.search(prompt))), None)
    if asked is None:
        return None
    numbers, target = [int(number) for number in re.findall("[0-9]+", asked[1])], int(asked[2])
    try:
        verdict = countdown.grade("", [numbers, target], answer, "fixed")
    except DtmError:
        return None
    expression = str(verdict.extracted or "")
    value = evaluate(expression) if expression else None
    return {
        "numbers": numbers,
        "target": target,
        "expression": expression,
        "value": None if value is None else str(value),
        "uses": countdown.uses(expression, numbers),
        "solved": verdict.correct,
    }
