"""How much the answers to one prompt differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from jaxtyping import Int
from torch import Tensor


def distinct_share(completions: Sequence[str], group: Int[Tensor, " N"]) -> float:
    """Different texts over all texts of a group, the mean over groups; 1 over their number if all agree."""
    answers: dict[int, list[str]] = defaultdict(list)
    for text, key in zip(completions, group.tolist(), strict=True):
        answers[key].append(text)
    return fmean(len(set(texts)) / len(texts) for texts in answers.values())
