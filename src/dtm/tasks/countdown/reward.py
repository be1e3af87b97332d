"""Rewards for Countdown: `reward` is the paper's, `released` that of published code.

All read the last closed answer pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtm.tasks.answers.countdown import solves, uses
from dtm.tasks.answers.markup import last_pair

RANGE = (0.0, 1.0)
SOLVED, CLOSE = 1.0, 0.1


def reward(
    prompts: Sequence[Any],
    completions: Sequence[str],
    numbers: Sequence[Sequence[int]],
    target: Sequence[int],
    **columns: Any,
) -> list[float]:
    """Return 1 for the target, 0.1 for the right numbers, 0 otherwise [Appendix D]."""
    rows = zip(completions, numbers, target, strict=True)
    return [_score(last_pair(text), given, goal) for text, given, goal in rows]


def released(
    prompts: Sequence[Any],
    completions: Sequence[str],
    numbers: Sequence[Sequence[int]],
    target: Sequence[int],
    **columns: Any,
) -> list[float]:
    """Return the reward of the released code, d1 and SPG: 0.1 for any closed answer pair, even if wrong."""
    scores = reward(prompts, completions, numbers, target)
    tags = [last_pair(text) is not None for text in completions]
    return [max(score, CLOSE) if tagged else 0.0 for score, tagged in zip(scores, tags, strict=True)]


spg = released


def _score(answer: str | None, numbers: Sequence[int], target: int) -> float:
    if answer is None or not uses(answer, numbers):
        return 0.0
    return SOLVED if solves(answer.strip(), numbers, target) else CLOSE
