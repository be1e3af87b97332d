"""The blocks of a completion, and the batch of rows that work on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Int32
from torch import Tensor

from dtm.engine.decoder import Decoder, quotas
from dtm.engine.noise import row_keys

Place = tuple[int, int]
"""A row's number, and the block that it works on."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a row of P prompt tokens and C completion tokens is cut into blocks of B tokens."""

    width: int
    """P."""
    length: int
    """L = P + C."""
    size: int
    """B; the last block may be shorter."""
    schedule: tuple[tuple[int, ...], ...]
    """Tokens that each step of each block reveals."""

    @classmethod
    def of(cls, width: int, completion: int, decoder: Decoder) -> Blocks:
        """Return the blocks of a completion of so many tokens."""
        size = min(decoder.block or completion, completion)
        sizes = [min(size, completion - start) for start in range(0, completion, size)]
        schedule = tuple(tuple(quotas(each, decoder.tokens_per_step)) for each in sizes)
        return cls(width, width + completion, size, schedule)

    def size_of(self, block: int) -> int:
        """Return the number of tokens in a block."""
        return sum(self.schedule[block])

    def end(self, block: int) -> int:
        """Return the first position after a block."""
        return min(self.width + (block + 1) * self.size, self.length)

    def table(self, device: torch.device) -> Int[Tensor, "K T"]:
        """Return the schedule as a tensor: blocks by steps, 0 beyond a block's last step."""
        steps = max(map(len, self.schedule))
        padded = [[*shares, *[0] * (steps - len(shares))] for shares in self.schedule]
        return torch.tensor(padded, device=device)


@dataclass(slots=True)
class Row:
    """Where a row stands; the loop keeps these on the host."""

    number: int
    """Which row it is, counted over all completions: its noise depends on it."""
    left: int
    """Masked positions of the current block."""
    block: int = 0
    step: int = 0
    """Steps taken in the current block."""
    earlier: int = 0
    """Steps taken in the blocks before."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows at work, on the device; it stays the same until a row moves on to another block."""

    places: Sequence[Place]
    """Number and block of each row, on the host."""
    row: Int[Tensor, " S"]
    """The number of each row."""
    block: Int[Tensor, " S"]
    step: Int[Tensor, " S"]
    """Steps taken in the block when the batch was made."""
    earlier: Int[Tensor, " S"]
    """Steps taken in the blocks before."""
    keys: Int32[Tensor, "S 2"]
    """Of the noise of each row in its block."""
    start: Int[Tensor, " S"]
    """The first position of each row's block."""
    where: Int[Tensor, "S B"]
    """Positions of the blocks; those beyond a short last block are not ``inside``."""
    inside: Bool[Tensor, "S B"]
    attention_mask: Bool[Tensor, "S L"] | None
    """False on the prompt's left padding; None where there is none."""

    @classmethod
    def of(
        cls, rows: Sequence[Row], blocks: Blocks, seed: int, attention_mask: Bool[Tensor, "N L"] | None,
        device: torch.device,
    ) -> Batch:  # fmt: skip
        """Return the batch of the given rows; one transfer to the device."""
        stand = [(row.number, row.block, row.step, row.earlier) for row in rows]
        number, block, step, earlier = torch.tensor(stand, device=device).unbind(1)
        start = blocks.width + block * blocks.size
        where = start[:, None] + torch.arange(blocks.size, device=device)
        return cls(
            [(row.number, row.block) for row in rows],
            number,
            block,
            step,
            earlier,
            row_keys(seed, number, block),
            start,
            where.clamp(max=blocks.length - 1),
            where < blocks.length,
            None if attention_mask is None else attention_mask[number],
        )
