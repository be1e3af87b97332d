"""Diversity of the answers to a prompt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from jaxtyping import Int
from torch import Tensor


def distinct_share(completions: Sequence[str], group: Int[Tensor, " N"]) -> float:
    """Return the number of distinct texts over that of all texts in a group, the mean over groups."""
    answers: dict[int, list[str]] = defaultdict(list)
    for text, key in zip(completions, group.tolist(), strict=True):
        answers[key].append(text)
    return fmean(len(set(texts)) / len(texts) for texts in answers.values())
