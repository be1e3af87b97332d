r"""Coupled masks: a random subset M of a completion and its complement, so that each position is scored once.

With x = |M| uniform in 0..n, each half of

    S = ½ [ (n+1)/x · Σ_{k∈M} log π(x_k | x_t) + (n+1)/(n−x) · Σ_{k∉M} log π(x_k | x_t') ]

has the evidence bound as its mean, since (1/(n+1)) Σ_{x≥1} (n+1)/x · E Σ_M = (1/n) Σ_x (n/x) E Σ_M; a half
that is empty counts 0 (claim B1c). ESPO and GDSD score sequences with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.errors import require
from dtm.masking.count_plans import hide
from dtm.masking.plan import Layout, Masks
from dtm.records import Sequences


@final
@dataclass(frozen=True, slots=True)
class Coupled:
    """``pairs`` of rows per sequence: the first of a pair masks M, the second the rest of the completion."""

    pairs: int = 1
    law: Literal["count", "bernoulli"] = "count"
    """count: x uniform in 0..n. bernoulli: each position with chance λ, λ uniform in [0.1, 1] (DMPO's), and
    weight n/x: no estimate of the evidence bound."""
    weighted: bool = True
    """Weight the halves as above; false: both by 1 (GDSD's plain form)."""
    spread: bool = True
    """Space the counts of a sequence's pairs evenly, for less variance; false: independent pairs, so that the
    mean of a product of two pairs is the product of their means (GDSD)."""

    def __post_init__(self) -> None:
        require(self.pairs >= 1, f"a sequence needs at least one pair of masks, got {self.pairs}")

    def draws(self, clean: Sequences) -> int:
        """Number of masks per sequence: two per pair."""
        return 2 * self.pairs

    def masks(self, layout: Layout, generator: torch.Generator, update: int) -> Masks:
        """Draw counts, by default spread evenly over pairs and sequences, and a subset per pair."""
        device, rows = layout.span.device, len(layout.span)
        order = torch.rand(rows // 2, layout.index.shape[1], generator=generator, device=device)
        if self.spread:
            level = spread_levels(rows // (2 * self.pairs), self.pairs, generator, device)
        else:
            level = torch.rand(rows // 2, generator=generator, device=device, dtype=torch.float64)
        order, span = order.repeat_interleave(2, 0), layout.span
        if self.law == "count":
            size = coupled_counts(level.repeat_interleave(2), span)
        else:
            share = (0.1 + 0.9 * level).repeat_interleave(2)[:, None]
            size = (layout.counted & (order < share)).sum(1)
        return coupled_masks(layout, size, order, weighted=self.weighted, empty=self.law == "count")


def spread_levels(
    sequences: int, pairs: int, generator: torch.Generator, device: torch.device
) -> Float[Tensor, " P"]:
    """Draw a uniform number in [0, 1) for every pair.

    Sequences are in different strata, and the pairs of one are evenly spaced.
    """
    stratum = torch.rand(sequences, generator=generator, device=device).argsort()
    place = torch.rand(sequences, generator=generator, device=device, dtype=torch.float64)
    start = (stratum + place) / max(sequences, 1)
    level = (start[:, None] + torch.arange(pairs, device=device) / pairs) % 1.0
    return level.flatten()


def coupled_counts(level: Float[Tensor, " B"], span: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """x = ⌊level · (n + 1)⌋, uniform in 0..n."""
    return torch.minimum((level * (span + 1)).long(), span)


def coupled_masks(
    layout: Layout,
    size: Int[Tensor, " B"],
    order: Float[Tensor, "B L"],
    *,
    weighted: bool = True,
    empty: bool = True,
) -> Masks:
    """Return the masks of adjacent rows with the same ``size`` x and ``order``: M, then its complement.

    ``empty``: x may be 0 or n, hence the factor (n+1)/x; else n/x. Without ``weighted`` the factor is 1.
    """
    _, chosen = hide(layout, size, order)
    first = torch.arange(len(size), device=size.device)[:, None] % 2 == 0
    scored = torch.where(first, chosen, layout.counted & ~chosen)
    weight = (layout.span + empty) / scored.sum(1).clamp(min=1)
    masked = scored | (layout.is_completion & ~layout.counted)
    return Masks(masked, scored, weight if weighted else torch.ones_like(weight))
