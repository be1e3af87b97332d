"""4×4 Sudoku: sixteen digits, scored on the cells that the puzzle left empty.

The published rules (all three are equal) take the first non-empty one of five places, remove only white
space, and compare with the stored solution. ``fixed`` reads the digits of the last answer block, as the
reward does, and accepts any valid completion: some of d1's puzzles have several (docs/decisions.md).
"""

from __future__ import annotations

import re
from typing import Any

from dtm.errors import DataError, require
from dtm.tasks.answers.markup import CLOSE, OPEN, SPECIALS, last_answer, without_specials
from dtm.tasks.answers.verdict import Rules, Verdict
from dtm.tasks.sudoku.grids import CELLS, is_solution

FENCED = re.compile(r"```([\d\s]+)```")
BEFORE_CLOSING = re.compile(rf"([0-9]{{{CELLS}}})\s*{CLOSE}")
STANDALONE = re.compile(rf"\b([0-9]{{{CELLS}}})\b")


def grade(question: str, ground_truth: Any, generation: str, rules: Rules) -> Verdict:
    """Judge one generation; the ground truth is the solution, and the puzzle is in the question."""
    puzzle = _puzzle(question)
    require(
        isinstance(ground_truth, str) and re.fullmatch(rf"[0-9]{{{CELLS}}}", ground_truth) is not None,
        f"ground_truth must be the solution as {CELLS} digits, got {str(ground_truth)[:80]!r}",
        DataError,
    )
    empty = puzzle.count("0")
    found = _fixed(generation) if rules == "fixed" else _published(generation)
    if not found:  # which the published graders report as an empty answer
        return Verdict(None if rules == "fixed" else "", empty == 0, 0, empty)
    grid = padded(found)
    cells = correct_cells(puzzle, ground_truth, grid)
    if rules == "fixed":
        solved = is_solution(puzzle, grid)
        return Verdict(grid, solved, empty if solved else cells, empty)
    return Verdict(grid, cells == empty, cells, empty)


def padded(grid: str) -> str:
    """Pad with zeros, or cut, to sixteen characters."""
    return grid[:CELLS].ljust(CELLS, "0")


def correct_cells(puzzle: str, solution: str, grid: str) -> int:
    """Count the cells, empty in the puzzle, that the grid fills as in the solution."""
    return sum(p == "0" and s == g for p, s, g in zip(puzzle, solution, grid, strict=True))


def _published(text: str) -> str:
    for found in (_fenced(text), _opened(text), _after_closing(text), _digits(BEFORE_CLOSING, text)):
        if found and (kept := re.sub(r"\s", "", found)):
            return kept
    return _digits(STANDALONE, text)


def _fenced(text: str) -> str:
    opening = text.find(OPEN)
    found = FENCED.search(text, opening) if opening >= 0 else None
    return found.group(1) if found else ""


def _opened(text: str) -> str:
    """Return the text from the first answer tag to its end; empty if it has no end."""
    opening = text.find(OPEN)
    if opening < 0:
        return ""
    opening += len(OPEN)
    ends = [end for stop in (*SPECIALS, CLOSE) if (end := text.find(stop, opening)) >= 0]
    return text[opening : min(ends)] if ends else ""


def _after_closing(text: str) -> str:
    closing = text.find(CLOSE)
    return "" if closing < 0 else without_specials(text[closing + len(CLOSE) :].lstrip())


def _digits(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found.group(1) if found else ""


def _fixed(generation: str) -> str:
    text = without_specials(generation)
    block = last_answer(text)
    if block is None:
        return (STANDALONE.findall(text) or [""])[-1]
    return "".join(re.findall("[0-9]", block))


def _puzzle(question: str) -> str:
    found = re.match(rf"[0-9]{{{CELLS}}}", question) or re.search(rf"puzzle: ([0-9]{{{CELLS}}})", question)
    require(
        found is not None,
        f"the question must begin with the puzzle's {CELLS} digits, or say 'puzzle: ' before them; got "
        f"{question[:80]!r}",
        DataError,
    )
    assert found is not None
    return found.group(0)[-CELLS:]
