r"""The masking interpolant in mask-count form (C): any-order, and semi-autoregressive in blocks.

The paper's hazard integral over t equals, for every schedule α (docs/method.md, section 2),

    L · E_{n ~ U{1..L}} E_S [ (1/k) Σ_{i ∈ S} ℓ_i ],

where n picks a block and a number k of masked positions in it, and S is a uniform subset of that
size: earlier blocks are clean, later ones fully masked, only S is scored. One block of the whole
length is any-order; blocks of one are autoregressive. Sampling t instead and weighting by 1/(1 − t)
estimates the same integral with infinite variance.

With a skew p > 1 the masked share of a block is the largest of p uniform draws, so more states have most of
an answer masked. The weights of the states then differ from (C): a tabular model keeps its minimiser, but the
loss is no evidence bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.errors import require
from dtm.padding import leads, prompt_width, where_padded
from dtm.records import MaskedStates, Sequences


@runtime_checkable
class Masking(Protocol):
    """Rule that draws masked states of clean sequences."""

    def states(
        self, clean: Sequences, mask_id: int, generator: torch.Generator, update: int = 0
    ) -> MaskedStates:
        """Draw one or more x_t per sequence; ``update`` counts the updates of a phase, from 0."""
        ...


@dataclass(frozen=True, slots=True)
class MaskCount:
    """Form (C) with blocks of ``block`` completion positions; ``None`` is one block: any-order."""

    block: int | None = None
    end_id: int | None = None
    """If given, the blocks after the one in which this token first occurs are not trained on. There the
    posterior is the token itself and the loss is zero; a row then counts by its remaining length."""
    in_columns: bool = False
    """Whether blocks are counted in columns of a row, as in block-causal attention, so that a completion may
    start inside a block. Else the first block starts with the completion."""
    skew: float = 1.0
    """p: the masked share of a block is the largest of p uniform draws; 1: mask counts are uniform."""

    def __post_init__(self) -> None:
        require(self.skew >= 1, f"the skew of masks must be at least 1, got {self.skew:g}")
        require(
            self.block is None or self.block >= 1,
            f"the masks need a block of at least 1, got {self.block}",
        )

    def states(
        self, clean: Sequences, mask_id: int, generator: torch.Generator, update: int = 0
    ) -> MaskedStates:
        """Draw one x_t per sequence; the mask counts of a batch are spread evenly over 1..L.

        The n of row j is drawn from the j-th of B equal strata, in random order: each n is still
        uniform (before the skew), their sum varies far less.
        """
        rows, device = len(clean), clean.tokens.device
        length, lead = self.trained_length(clean), self._lead(clean)
        stratum = torch.randperm(rows, generator=generator, device=device)
        jitter = torch.rand(rows, generator=generator, device=device)
        place = (stratum + jitter) / rows * length
        cell = place.long().clamp(max=length - 1)  # the product may round up to the length
        if self.skew != 1:
            cell = self._skewed(place, cell, lead, clean.is_completion.sum(1))
        cell += lead
        order = torch.rand(clean.tokens.shape, generator=generator, device=device)
        masked, eligible, count = mask_cells(clean.is_completion, cell, order, self.block, lead)
        return MaskedStates(
            tokens=torch.where(masked, mask_id, clean.tokens),
            clean=clean.tokens,
            attention=where_padded(clean.attention),
            eligible=eligible,
            row_weight=(length / count).float(),
            row_length=length,
            length=clean.is_completion.shape[1] - int(prompt_width(clean.is_completion)),
            batch_rows=rows,
            batch_length=length.sum(),
        )

    def trained_length(self, clean: Sequences) -> Int[Tensor, " B"]:
        """Return L_row: completion positions up to the end of the block in which the sequence ends."""
        length = clean.is_completion.sum(1)
        if self.end_id is None or self.block is None:
            return length
        ends = clean.is_completion & (clean.tokens == self.end_id)
        index = clean.is_completion.long().cumsum(1) - 1
        first, lead = torch.where(ends, index, length[:, None]).amin(1), self._lead(clean)
        return torch.minimum(((first + lead) // self.block + 1) * self.block - lead, length)

    def _skewed(
        self,
        place: Float[Tensor, " B"],
        cell: Int[Tensor, " B"],
        lead: Int[Tensor, " B"],
        length: Int[Tensor, " B"],
    ) -> Int[Tensor, " B"]:
        """Move places towards the start of their block; the mask count is the distance to its end."""
        start, stop = torch.zeros_like(length), length
        if self.block is not None:
            begin = (cell + lead) // self.block * self.block - lead
            start, stop = begin.clamp(min=0), torch.minimum(begin + self.block, length)
        share = ((stop - place) / (stop - start)).clamp(min=0)
        moved = stop - (stop - start) * share ** (1 / self.skew)
        return torch.minimum(moved.long(), stop - 1)

    def _lead(self, clean: Sequences) -> Int[Tensor, " B"]:
        return leads(clean.is_completion, self.block if self.in_columns else None)


def mask_cells(
    is_completion: Bool[Tensor, "B L"],
    cell: Int[Tensor, " B"],
    order: Float[Tensor, "B L"],
    block: int | None,
    lead: Int[Tensor, " B"] | None = None,
) -> tuple[Bool[Tensor, "B L"], Bool[Tensor, "B L"], Int[Tensor, " B"]]:
    """Return masked positions, scored positions S and k = |S| for the chosen (block, k) cell of each row.

    Completion positions are numbered from ``lead``, else from 0. Cell j belongs to the block that holds
    position j, and masks k = (end of the block) − j of its positions: every (block, k) occurs for exactly one
    j, also when the last block is shorter. ``order`` is random; S takes the k smallest of the block.
    """
    lead = torch.zeros_like(cell) if lead is None else lead
    index = is_completion.long().cumsum(1) - 1 + lead[:, None]
    length = is_completion.sum(1)
    size = length if block is None else torch.full_like(length, block)
    start = cell // size * size
    stop = torch.minimum(start + size, lead + length)
    count = stop - cell
    active = is_completion & (index >= start[:, None]) & (index < stop[:, None])
    rank = order.masked_fill(~active, torch.inf).argsort(1).argsort(1)
    eligible = active & (rank < count[:, None])
    later = is_completion & (index >= stop[:, None])
    return eligible | later, eligible, count
