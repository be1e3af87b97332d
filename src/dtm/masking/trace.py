"""TraceRL's masks: the states that the decoder visited, a few steps merged into one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from dtm.errors import require
from dtm.masking.plan import Layout, Masks
from dtm.records import Completions, Sequences


@final
@dataclass(frozen=True, slots=True)
class TraceSegments:
    """Each run of ``merged`` decoding steps is a segment: earlier tokens are visible, its own are scored.

    With one step per segment and one token per step, the sum over segments is the log-probability with which
    the decoder chose these tokens, given the order it chose.
    """

    merged: int = 8

    def __post_init__(self) -> None:
        require(self.merged >= 1, f"a segment needs at least one decoding step, got {self.merged}")

    def draws(self, clean: Sequences) -> int:
        """Segments of the longest trace; shorter ones have empty rows at the end."""
        require(
            isinstance(clean, Completions), "trace segments need rollouts: examples have no decoding steps"
        )
        assert isinstance(clean, Completions)
        return int(segments(clean.revealed_at, self.merged).max()) + 1

    def masks(self, layout: Layout, generator: torch.Generator, update: int) -> Masks:
        """Weight: the number of rows, so that their mean is the sum over segments."""
        assert layout.revealed_at is not None
        segment = segments(layout.revealed_at, self.merged)
        own = torch.arange(len(segment), device=segment.device)[:, None] % layout.draws
        masked = layout.is_completion & (segment >= own)
        weight = torch.full((len(segment),), float(layout.draws), device=segment.device)
        return Masks(masked, layout.counted & (segment == own), weight)


def segments(revealed_at: Int[Tensor, "B L"], merged: int) -> Int[Tensor, "B L"]:
    """The segment of each token: its step's rank among the row's distinct steps, divided by ``merged``.

    Prompts (step −1) have segment −1.
    """
    steps, order = revealed_at.sort(dim=1)
    fresh = torch.zeros_like(steps)
    fresh[:, 1:] = steps[:, 1:] > steps[:, :-1]
    rank = fresh.cumsum(1) - (steps[:, :1] < 0).long()  # −1 on a prompt, 0 at the first step
    ranks = torch.zeros_like(steps).scatter(1, order, rank)
    return torch.where(revealed_at < 0, -1, ranks // merged)
