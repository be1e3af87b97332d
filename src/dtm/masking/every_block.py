r"""Mask-count form (C) in every block at once, for models with block-causal attention.

`MaskCount` draws one block and one number k of masked positions in it:

    L · E_n E_S [ (1/k) Σ_{i ∈ S} ℓ_i ]  =  Σ_b B_b E_{k ~ U{1..B_b}} E_S [ (1/k) Σ_{i ∈ S} ℓ_i ],

since block b, of B_b positions, is drawn with probability B_b / L. Here every term of the right-hand side is
drawn for every sequence: x_t is masked in all blocks, and each block is scored given the clean ones before
it. One pass over x_t and x_1 side by side does this (`Denoiser.hidden_doubled`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.errors import require
from dtm.masking.mask_count import MaskCount
from dtm.padding import leads, prompt_width, where_padded
from dtm.records import MaskedStates, Sequences


@final
@dataclass(frozen=True, slots=True)
class EveryBlock:
    """A mask count and a subset for every block of ``block`` columns, with weight B_b / k.

    B_b are the completion positions of a block: a completion may begin inside one.
    """

    block: int
    """B, the block size of the model's attention."""
    end_id: int | None = None
    """If given, the blocks after the one in which this token first occurs are not trained on."""
    skew: float = 1.0
    """p: the masked share of a block is the largest of p uniform draws, as in `MaskCount`."""

    def __post_init__(self) -> None:
        require(self.block >= 1, f"the masks need a block of at least 1, got {self.block}")
        require(self.skew >= 1, f"the skew of masks must be at least 1, got {self.skew:g}")

    def states(
        self, clean: Sequences, mask_id: int, generator: torch.Generator, update: int = 0
    ) -> MaskedStates:
        """Draw one x_t per sequence; the mask counts are spread evenly over a block's 1..B_b.

        The counts of one column of blocks are spread over the rows, and those of one row over its blocks;
        each k is still uniform.
        """
        (rows, width), device = clean.tokens.shape, clean.tokens.device
        prompt, lead = int(prompt_width(clean.is_completion)), leads(clean.is_completion, self.block)
        length = MaskCount(self.block, self.end_id, in_columns=True).trained_length(clean)
        longest = width - prompt
        cells = rows, -(-width // self.block) - prompt // self.block

        def noise(shape: tuple[int, int]) -> Tensor:
            return torch.rand(shape, generator=generator, device=device, dtype=torch.float64)

        of_row, of_block = (noise(cells).argsort(dim) for dim in (0, 1))
        stratum = of_row + (of_block + noise(cells)) / cells[1]
        masked, weight = mask_blocks(
            clean.is_completion,
            length,
            (stratum / rows) ** (1 / self.skew),
            noise((rows, width)),
            self.block,
            lead,
        )
        return MaskedStates(
            tokens=torch.where(masked, mask_id, clean.tokens),
            clean=clean.tokens,
            attention=where_padded(clean.attention),
            eligible=masked,
            row_weight=torch.ones(rows, device=device),
            row_length=length,
            length=longest,
            batch_rows=rows,
            batch_length=length.sum(),
            position_weight=weight.float(),
            doubled=True,
        )


def mask_blocks(
    is_completion: Bool[Tensor, "B L"],
    length: Int[Tensor, " B"],
    share: Float[Tensor, "B N"],
    order: Float[Tensor, "B L"],
    block: int,
    lead: Int[Tensor, " B"],
) -> tuple[Bool[Tensor, "B L"], Float[Tensor, "B L"]]:
    """Return the masked positions, all of them scored, and the weight B_b / k of each position's block.

    Of B_b positions ⌊share · B_b⌋ + 1 are masked, those with the smallest ``order`` in [0, 1). Positions from
    ``length`` on are neither masked nor scored. The first block has ``lead`` columns of the prompt.
    """
    index = is_completion.long().cumsum(1) - 1
    trained = is_completion & (index < length[:, None])
    number = (index.clamp(min=0) + lead[:, None]) // block
    start = torch.arange(share.shape[1], device=share.device) * block - lead[:, None]
    size = (torch.minimum(start + block, length[:, None]) - start.clamp(min=0)).clamp(min=0)
    count = torch.minimum((share * size).long() + 1, size)
    # Sorted by block and then by order, the positions of a block have the ranks from its first index on.
    first = start.clamp(min=0).gather(1, number)
    rank = (number + order).masked_fill(~trained, torch.inf).argsort(1).argsort(1) - first
    count, size = count.gather(1, number), size.gather(1, number)
    return trained & (rank < count), size / count.clamp(min=1)


CountMasking = MaskCount | EveryBlock
"""A masking by uniform or skewed mask counts, in one block or in all."""
