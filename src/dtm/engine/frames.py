"""Replay a completion step by step from its recorded reveal steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Int
from torch import Tensor

Kind = Literal["masked", "new", "old"]


@dataclass(frozen=True, slots=True)
class Frame:
    """A completion after a step, as runs of neighbouring tokens."""

    step: int
    """Steps done; 0 is the fully masked completion."""
    runs: tuple[tuple[Kind, list[int]], ...]
    """Runs of equal kind with their token ids: masked, revealed by this step ("new"), or revealed before."""


def frames(tokens: Int[Tensor, " C"], revealed_at: Int[Tensor, " C"]) -> Iterator[Frame]:
    """The completion after each step, the fully masked one first.

    >>> import torch
    >>> [frame.runs for frame in frames(torch.tensor([7, 8, 9]), torch.tensor([1, 0, 1]))][1]
    (('masked', [7]), ('new', [8]), ('masked', [9]))
    """
    steps = revealed_at.tolist()
    for now in range(-1, max(steps) + 1):
        kinds: list[Kind] = ["masked" if at > now else "new" if at == now else "old" for at in steps]
        pairs = zip(kinds, tokens.tolist(), strict=True)
        grouped = itertools.groupby(pairs, key=lambda pair: pair[0])
        yield Frame(now + 1, tuple((kind, [token for _, token in run]) for kind, run in grouped))
