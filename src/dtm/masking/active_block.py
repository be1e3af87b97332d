r"""SPG's masks: one random block is partly masked; earlier blocks are visible and later ones masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Int
from torch import Tensor

from dtm.errors import require
from dtm.masking.plan import Layout, Masks
from dtm.records import Sequences


@final
@dataclass(frozen=True, slots=True)
class ActiveBlock:
    r"""Block b of nb = ⌈n/B⌉ and k uniform in 1..len_b; later blocks and positions after the end are masked.

    ``scores`` = "masked" (SPG): all K masked positions up to n are scored, with weight n/K. This is no bound,
    since a later block is also scored while everything before it is masked (claim B4).
    "active": the k positions of block b alone, with weight nb len_b / k: the evidence bound of decoding block
    by block.
    """

    size: int
    """B."""
    rows: int = 2
    """Masks of a sequence, in different blocks as long as there are enough."""
    scores: Literal["masked", "active"] = "masked"
    biased: bool = False
    """Choose blocks as in the published code: a permutation modulo nb, which takes early blocks too often."""

    def __post_init__(self) -> None:
        require(self.size >= 1, f"the block size must be at least 1, got {self.size}")
        require(self.rows >= 1, f"a sequence must be masked at least once, got {self.rows}")

    def draws(self, clean: Sequences) -> int:
        """Number of masks per sequence: ``rows``."""
        return self.rows

    def masks(self, layout: Layout, generator: torch.Generator, update: int) -> Masks:
        """Draw the masks; prompt noise also masks earlier blocks, scored if all masked positions are."""
        device, counted = layout.span.device, layout.counted
        blocks = (layout.lead + layout.span + self.size - 1) // self.size
        begin = self._chosen(layout, blocks, generator) * self.size - layout.lead
        start, stop = begin.clamp(min=0), torch.minimum(begin + self.size, layout.span)
        active = counted & (layout.index >= start[:, None]) & (layout.index < stop[:, None])
        uniform = torch.rand(len(start), generator=generator, device=device)
        width = stop - start
        count = torch.minimum((uniform * width).long() + 1, width)
        order = torch.rand(layout.index.shape, generator=generator, device=device)
        chosen = active & (order.masked_fill(~active, torch.inf).argsort(1).argsort(1) < count[:, None])
        before = layout.is_completion & (layout.index < start[:, None])
        after = layout.is_completion & (layout.index >= stop[:, None])
        masked = chosen | after | (before & layout.noise)
        if self.scores == "active":
            return Masks(masked, chosen, blocks * width / count)
        scored = masked & counted
        return Masks(masked, scored, layout.span / scored.sum(1))

    def _chosen(
        self, layout: Layout, blocks: Int[Tensor, " B"], generator: torch.Generator
    ) -> Int[Tensor, " B"]:
        """Choose a block per row; the rows of a sequence take theirs from one permutation."""
        limit = blocks[:: layout.draws, None]
        most = int(-(-(layout.is_completion.sum(1) + layout.lead).max() // self.size))
        noise = torch.rand(len(limit), most, generator=generator, device=limit.device)
        if self.biased:
            order = noise.argsort(1) % limit
        else:  # existing blocks come first, and start again if they run out
            absent = torch.arange(most, device=limit.device) >= limit
            order = noise.masked_fill(absent, torch.inf).argsort(1)
        draw = torch.arange(layout.draws, device=limit.device)
        place = draw % most if self.biased else draw % limit
        return order.gather(1, place.expand(len(limit), -1)).flatten()
