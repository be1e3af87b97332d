"""Rewards for MATH: `reward` is the paper's, `spg` of SPG's and d1's code, `spg_text` of SPG's paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtm.tasks.answers.latex import same
from dtm.tasks.answers.markup import BOX, last_box, last_pair, published_box

RANGE = (-1.0, 1.375)


def reward(
    prompts: Sequence[Any], completions: Sequence[str], answer: Sequence[str], **columns: Any
) -> list[float]:
    """Return ±1 for the answer in the last box, plus up to 0.375 for the format [Appendix D].

    The paper's −1 is kept. Its released training code would clamp each term at 0, but was released without
    this task.
    """
    scores = []
    for text, gold in zip(completions, answer, strict=True):
        box = last_box(text)
        correct = box is not None and same(box, gold)
        scores.append((1.0 if correct else -1.0) + 0.125 * _form(text))
    return scores


def spg(
    prompts: Sequence[Any], completions: Sequence[str], answer: Sequence[str], **columns: Any
) -> list[float]:
    r"""Return +2 for the answer, plus 0.75 with an answer pair, 0.25 without.

    The code was meant to check for boxes too, but searches for a backspace and "oxed".
    """
    return [
        2.0 * same(published_box(text) or text, gold) + (0.25 if last_pair(text) is None else 0.75)
        for text, gold in zip(completions, answer, strict=True)
    ]


def spg_text(
    prompts: Sequence[Any], completions: Sequence[str], answer: Sequence[str], **columns: Any
) -> list[float]:
    """Return +2 for the answer, plus 1, 0.75, 0.5 or 0.25 for the format: `spg` without its defect."""
    return [
        2.0 * same(published_box(text) or text, gold) + 0.25 * (1 + _form(text))
        for text, gold in zip(completions, answer, strict=True)
    ]


def _form(text: str) -> int:
    """Return 3 for a box in the answer block, 2 for an answer block, 1 for a box elsewhere, 0 for neither."""
    block = last_pair(text)
    if block is None:
        return int(BOX in text)
    return 3 if BOX in block else 2
