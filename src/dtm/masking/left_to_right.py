"""The states of decoding from left to right, one token per step: JustGRPO's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.errors import require
from dtm.masking.plan import Layout, Masks
from dtm.records import Sequences


@final
@dataclass(frozen=True, slots=True)
class LeftToRight:
    r"""Row t sees the prompt and o_{<t}; everything from t on is masked, and only o_t is scored.

    All n rows give log ρ(o) = Σ_t log π(o_t | o_{<t}), exactly. Of ``positions`` < n evenly spaced ones, each
    t is drawn with probability positions/n and counts n/positions: unbiased (claim B5b).
    """

    positions: int

    def __post_init__(self) -> None:
        require(self.positions >= 1, f"at least one position must be scored, got {self.positions}")

    def draws(self, clean: Sequences) -> int:
        """Number of rows per sequence: ``positions``, or the longest completion; some rows may be empty."""
        return min(self.positions, int(clean.is_completion.sum(1).max()))

    def masks(self, layout: Layout, generator: torch.Generator, update: int) -> Masks:
        """Draw one offset per sequence; with the weight, the mean over rows is the sum over positions."""
        count, device = len(layout.span) // layout.draws, layout.span.device
        offset = torch.rand(count, generator=generator, device=device, dtype=torch.float64)
        return self.at(layout, offset)

    def at(self, layout: Layout, offset: Float[Tensor, " S"]) -> Masks:
        """Return the masks of sequences with the given offsets in [0, 1)."""
        draws = layout.draws
        row = torch.arange(len(layout.span), device=layout.span.device)
        place, taken = spaced(offset.repeat_interleave(draws), row % draws, layout.span, draws)
        masked = layout.is_completion & (layout.index >= torch.where(taken, place, 0)[:, None])
        scored = layout.counted & (layout.index == place[:, None]) & taken[:, None]
        chosen = torch.minimum(layout.span, torch.full_like(layout.span, draws))
        return Masks(masked, scored, draws * layout.span / chosen)


def spaced(
    offset: Float[Tensor, " B"], number: Int[Tensor, " B"], span: Int[Tensor, " B"], draws: int
) -> tuple[Int[Tensor, " B"], Bool[Tensor, " B"]]:
    """Return the position ⌊(number + offset) n/draws⌋ of each row, and whether the row is used.

    Where n ≤ draws, row t has position t, and the rows from n on are unused. For an offset uniform in [0, 1)
    each of n > draws positions is drawn with probability draws/n.
    """
    place = ((number + offset) * span / draws).long()
    short = span <= draws
    place = torch.where(short, number, torch.minimum(place, span - 1))
    return place, ~short | (number < span)
