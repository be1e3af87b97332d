"""Rewards for Sudoku: the share of empty cells filled correctly, read from the last closed answer pair."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dtm.tasks.answers.markup import last_pair
from dtm.tasks.answers.sudoku import correct_cells, padded

RANGE = (0.0, 2.0)


def reward(
    prompts: Sequence[Any],
    completions: Sequence[str],
    puzzle: Sequence[str],
    solution: Sequence[str],
    **columns: Any,
) -> list[float]:
    """Return twice the share of empty cells filled correctly [Appendix D]; ignore given cells."""
    return [2 * share for share in spg(prompts, completions, puzzle, solution)]


released = reward


def spg(
    prompts: Sequence[Any],
    completions: Sequence[str],
    puzzle: Sequence[str],
    solution: Sequence[str],
    **columns: Any,
) -> list[float]:
    """Return the share itself, in [0, 1], the reward of d1 and SPG."""
    rows = zip(completions, puzzle, solution, strict=True)
    return [_share(last_pair(text), given, gold) for text, given, gold in rows]


def _share(answer: str | None, puzzle: str, solution: str) -> float:
    digits = "".join(re.findall("[0-9]", answer or ""))
    empty = puzzle.count("0")
    return correct_cells(puzzle, solution, padded(digits)) / empty if digits and empty else 0.0
