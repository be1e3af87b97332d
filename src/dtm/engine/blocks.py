"""The blocks of a completion, and a batch of rows that are at work on their blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Int32
from torch import Tensor

from dtm.engine.decoder import Decoder, quotas
from dtm.engine.noise import row_keys

Place = tuple[int, int]
"""A row's number, and the block that it works on."""


class Span(NamedTuple):
    """A block of a row."""

    begin: int
    """Its first column."""
    end: int
    """The first column after it."""
    size: int
    """Completion tokens in it."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The partition of completions in rows of L columns into blocks of B tokens.

    Blocks begin where a completion does. Those of block-causal models are columns: the first one may begin
    inside the prompt, and has fewer tokens to reveal.
    """

    starts: tuple[int, ...]
    """First column of each row's completion."""
    length: int
    """L."""
    size: int
    """B; the last block may be shorter."""
    in_columns: bool
    shares: Mapping[int, tuple[int, ...]]
    """Number of tokens that each step reveals, by the number of tokens in a block."""
    spans: Mapping[tuple[int, int], Span]
    """Every block, by the first column of the completion and the block's number. A table, because each step
    looks it up for each row, and a call would take longer."""

    @classmethod
    def of(cls, starts: Sequence[int], length: int, decoder: Decoder, in_columns: bool = False) -> Blocks:
        """Return the blocks of rows whose completions begin at the given columns."""
        longest = length - min(starts, default=0)
        size = decoder.block or longest
        if not in_columns:
            size = min(size, longest)
        made = cls(tuple(starts), length, size, in_columns, {}, {})
        spans = {
            (start, block): Span(made.begin(row, block), made.end(row, block), made.size_of(row, block))
            for start, row in {start: row for row, start in enumerate(starts)}.items()
            for block in range(made.count(row))
        }
        sizes = {span.size for span in spans.values()}
        shares = {each: tuple(quotas(each, decoder.tokens_per_step)) for each in sorted(sizes)}
        return replace(made, shares=shares, spans=spans)

    def begin(self, row: int, block: int) -> int:
        """Return the first column of a row's block."""
        start = self.starts[row]
        return start - self.in_columns * (start % self.size) + block * self.size

    def end(self, row: int, block: int) -> int:
        """Return the first column after a row's block."""
        return min(self.begin(row, block) + self.size, self.length)

    def size_of(self, row: int, block: int) -> int:
        """Return the number of completion tokens in a row's block."""
        return self.end(row, block) - max(self.begin(row, block), self.starts[row])

    def count(self, row: int) -> int:
        """Return the number of a row's blocks."""
        return -(-(self.length - self.begin(row, 0)) // self.size)

    def table(self, device: torch.device) -> Int[Tensor, "K T"]:
        """Return `shares` as a tensor: sizes of blocks by steps, 0 beyond a block's last step."""
        steps = max(map(len, self.shares.values()), default=0)
        table = torch.zeros(len(self.shares), steps, dtype=torch.long)
        for row, shares in zip(table, self.shares.values(), strict=True):
            row[: len(shares)] = torch.tensor(shares)
        return table.to(device)


@dataclass(slots=True)
class Row:
    """The state of a row in decoding; kept on the host."""

    number: int
    """Number of the row, counted over all completions; its noise depends on it."""
    left: int
    """Masked positions of the current block."""
    block: int = 0
    step: int = 0
    """Steps taken in the current block."""
    earlier: int = 0
    """Steps taken in the blocks before."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows being decoded, on the device; unchanged until a row moves on to another block."""

    places: Sequence[Place]
    """Number and block of each row, on the host."""
    row: Int[Tensor, " S"]
    """The number of each row."""
    block: Int[Tensor, " S"]
    step: Int[Tensor, " S"]
    """Steps taken in the block when the batch was made."""
    earlier: Int[Tensor, " S"]
    """Steps taken in the blocks before."""
    kind: Int[Tensor, " S"]
    """Row of the schedule `Blocks.table` for each block."""
    keys: Int32[Tensor, "S 2"]
    """Keys of the noise of each row in its block."""
    start: Int[Tensor, " S"]
    """The first position of each row's block."""
    where: Int[Tensor, "S B"]
    """Positions of the blocks; ``inside`` is false for prompt positions and beyond a short last block."""
    inside: Bool[Tensor, "S B"]
    attention_mask: Bool[Tensor, "S L"] | None
    """False on the prompt's left padding; None where there is none."""

    @classmethod
    def of(
        cls, rows: Sequence[Row], blocks: Blocks, seed: int, attention_mask: Bool[Tensor, "N L"] | None,
        device: torch.device,
    ) -> Batch:  # fmt: skip
        """Return the batch of the given rows; one transfer to the device."""
        order = {size: number for number, size in enumerate(blocks.shares)}
        starts = [blocks.starts[row.number] for row in rows]
        spans = [blocks.spans[start, row.block] for start, row in zip(starts, rows, strict=True)]
        stand = [
            (row.number, row.block, row.step, row.earlier, span.begin, start, order[span.size])
            for row, start, span in zip(rows, starts, spans, strict=True)
        ]
        number, block, step, earlier, begin, first, kind = torch.tensor(stand, device=device).unbind(1)
        where = begin[:, None] + torch.arange(blocks.size, device=device)
        return cls(
            [(row.number, row.block) for row in rows],
            number,
            block,
            step,
            earlier,
            kind,
            row_keys(seed, number, block),
            begin,
            where.clamp(max=blocks.length - 1),
            (where >= first[:, None]) & (where < blocks.length),
            None if attention_mask is None else attention_mask[number],
        )
