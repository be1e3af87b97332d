"""The forward passes of a step: hidden states that predict the candidates, without and with a cache.

    WholeRows     every pass is over whole rows: exact
    CachedBlocks  the first pass of a block is over whole rows, the others over the blocks alone, against the
                  keys and values that the first pass left: an approximation
    PrefixBlocks  for block-causal attention: the first pass of a block is over the block and the one before
                  it, the others over the block alone, against the keys and values of what is finished: exact

With ``refresh`` above 1 the first pass of most `CachedBlocks` is over the block and the one before it too: no
cached key has seen the last tokens of that one. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.engine.blocks import Batch, Blocks
from dtm.engine.cached import CachedRows
from dtm.engine.decoder import Decoder
from dtm.errors import require
from dtm.models.denoiser import Denoiser, predictors
from dtm.models.transformer import Transformer

KEYS = 64
"""Exact passes run over a multiple of this many columns, since each new width selects or compiles kernels."""
BATCH_SIZES = 16
"""Largest number of batch sizes in one call, since each new size selects or compiles kernels."""


@runtime_checkable
class Passes(Protocol):
    """Strategy for the forward pass of a decoding step."""

    in_rounds: ClassVar[bool]
    """Whether the rows of a batch must begin their blocks together."""

    def states(
        self,
        tokens: Int[Tensor, "N L"],
        batch: Batch,
        slot: Int[Tensor, " C"],
        position: Int[Tensor, " C"],
        begins: bool,
    ) -> Float[Tensor, "C D"]:
        """Return the hidden states that predict C positions.

        Args:
            tokens: all rows.
            batch: the rows of this pass.
            slot: the place of each candidate's row in the batch.
            position: the position of each candidate in its row.
            begins: whether this is the first step since the batch was made.
        """
        ...

    def keep(self, slots: Sequence[int]) -> None:
        """Keep only these places of the batch, moved together."""
        ...


def passes_of(
    model: Denoiser,
    decoder: Decoder,
    blocks: Blocks,
    prompts: Int[Tensor, "N P"],
    rows: int,
    first: int = 0,
) -> Passes:
    """Return the strategy of passes for a decoder, for batches of up to ``rows`` rows.

    Completions with equal numbers in ``prompts`` may share the first pass. Rows begin with the block
    ``first``; nothing before it is cached.
    """
    is_causal = isinstance(model, Transformer) and model.attention_block is not None
    if decoder.cache == "none" or rows == 0 or (decoder.cache == "prefix" and not is_causal):
        return WholeRows(model)
    require(
        isinstance(model, Transformer),
        f"decoding.cache block needs a native transformer; a {type(model).__name__} has no cache",
    )
    assert isinstance(model, Transformer)
    ids: list[int] = torch.unique(prompts, dim=0, return_inverse=True)[1].tolist()
    cached = CachedRows(model, ids, model.new_cache(rows, blocks.length))
    if decoder.cache == "prefix":
        return PrefixBlocks(model, blocks, cached, first)
    require(
        first == 0 or decoder.refresh == 1,
        "decoding block by block cannot keep a cache over several blocks: set decoding.refresh to 1",
    )
    return CachedBlocks(model, blocks, decoder.refresh, cached)


@final
class WholeRows:
    """A pass over whole rows at every step."""

    in_rounds: ClassVar[bool] = False

    def __init__(self, model: Denoiser) -> None:
        self._model = model

    def states(
        self,
        tokens: Int[Tensor, "N L"],
        batch: Batch,
        slot: Int[Tensor, " C"],
        position: Int[Tensor, " C"],
        begins: bool,
    ) -> Float[Tensor, "C D"]:
        """Return the hidden states that predict C positions."""
        at = slot * tokens.shape[1] + position
        states: Tensor = self._model(tokens[batch.row], batch.attention_mask, at, head=False)
        return states

    def keep(self, slots: Sequence[int]) -> None:
        """Do nothing: there is no cache."""


@final
class CachedBlocks:
    """A pass over whole rows where a block begins, then passes over the blocks against a cache."""

    in_rounds: ClassVar[bool] = True

    def __init__(self, model: Transformer, blocks: Blocks, refresh: int, cached: CachedRows) -> None:
        self._model, self._blocks, self._refresh_every, self._cached = model, blocks, refresh, cached

    def states(
        self,
        tokens: Int[Tensor, "N L"],
        batch: Batch,
        slot: Int[Tensor, " C"],
        position: Int[Tensor, " C"],
        begins: bool,
    ) -> Float[Tensor, "C D"]:
        """Return the hidden states that predict C positions."""
        length, size, shift = self._blocks.length, self._blocks.size, self._model.shift
        asked = (tokens, batch, slot, _predictors(self._model, batch, slot, position, length))
        if not begins:
            return self._cached.window(*asked, size + shift, shift, length)
        due = [i for i, (_, block) in enumerate(batch.places) if block % self._refresh_every == 0]
        states = self._cached.first(*asked, due, length)
        if states is None:  # rows without a pass over the whole row need the block before too
            states = self._cached.window(*asked, 2 * size + shift, size + shift, length)
        return states

    def keep(self, slots: Sequence[int]) -> None:
        """Move the keys and values of these places together, for a smaller batch."""
        self._cached.keep(slots)


@final
class PrefixBlocks:
    """Exact passes of block-causal models: over the block, and where it begins over what has just finished.

    A block's first pass is over the block before it, whose tokens are now final, and over the block itself;
    that of the first block is over all before it and the block. Later passes are over the block, and with a
    shift over the position before it, whose state predicts the block's first. Nothing attends to the keys
    after a row's block.
    """

    in_rounds: ClassVar[bool] = True

    def __init__(self, model: Transformer, blocks: Blocks, cached: CachedRows, first: int = 0) -> None:
        self._model, self._blocks, self._cached, self._first = model, blocks, cached, first

    def states(
        self,
        tokens: Int[Tensor, "N L"],
        batch: Batch,
        slot: Int[Tensor, " C"],
        position: Int[Tensor, " C"],
        begins: bool,
    ) -> Float[Tensor, "C D"]:
        """Return the hidden states that predict C positions."""
        blocks, size, shift = self._blocks, self._blocks.size, self._model.shift
        asked = (tokens, batch, slot, _predictors(self._model, batch, slot, position, blocks.length))
        stop = -(-max(blocks.end(*place) for place in batch.places) // KEYS) * KEYS
        stop = min(stop, blocks.length)
        if not begins:
            return self._cached.window(*asked, size + shift, shift, stop)
        due = [i for i, (_, block) in enumerate(batch.places) if block == self._first]
        begun = max((blocks.end(*batch.places[i]) for i in due), default=0)
        states = self._cached.first(*asked, due, begun)
        if states is None:
            states = self._cached.window(*asked, 2 * size, size, stop)
        return states

    def keep(self, slots: Sequence[int]) -> None:
        """Move the keys and values of these places together, for a smaller batch."""
        self._cached.keep(slots)


def _predictors(
    model: Transformer, batch: Batch, slot: Int[Tensor, " C"], position: Int[Tensor, " C"], length: int
) -> Int[Tensor, " C"]:
    """Return the column of the state that predicts each candidate, and report the candidates as scored."""
    model.report_pass(0, 0, len(slot))
    shape = torch.Size([len(batch.row), length])
    return predictors(slot * length + position, batch.attention_mask, shape, model.shift) - slot * length
