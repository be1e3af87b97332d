"""The forward passes of a step: hidden states that predict the candidates, without and with a cache.

    WholeRows     every pass is over whole rows: exact
    CachedBlocks  the first pass of a block is over whole rows, the others over the blocks alone, against the
                  keys and values that the first pass left

With ``refresh`` above 1 the first pass of most blocks is over the block and the one before it: no cached key
has seen the last tokens of that one. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.engine.blocks import Batch, Blocks, Place
from dtm.engine.decoder import Decoder
from dtm.errors import require
from dtm.models.cache import KeyValues
from dtm.models.denoiser import Denoiser, predictors
from dtm.models.transformer import Transformer


@runtime_checkable
class Passes(Protocol):
    """Makes the forward pass of one step."""

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
        """Keep these places of the batch alone; the rows in them move together."""
        ...


def passes_of(
    model: Denoiser, decoder: Decoder, blocks: Blocks, prompts: Int[Tensor, "N P"], rows: int
) -> Passes:
    """Return the passes that a decoder asks for, for batches of up to ``rows`` rows.

    ``prompts`` are equal where completions may share the first pass.
    """
    if decoder.cache == "none" or rows == 0:
        return WholeRows(model)
    require(
        isinstance(model, Transformer),
        f"decoding.cache block needs a native transformer; a {type(model).__name__} keeps no keys",
    )
    assert isinstance(model, Transformer)
    ids: list[int] = torch.unique(prompts, dim=0, return_inverse=True)[1].tolist()
    return CachedBlocks(model, blocks, decoder.refresh, ids, model.new_cache(rows, blocks.length))


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
        """Do nothing: no row leaves anything behind."""


@final
class CachedBlocks:
    """A pass over whole rows where a block begins, then passes over the blocks against a cache."""

    in_rounds: ClassVar[bool] = True

    def __init__(
        self, model: Transformer, blocks: Blocks, refresh: int, prompts: Sequence[int], cache: KeyValues
    ) -> None:
        self._model, self._blocks, self._refresh_every = model, blocks, refresh
        self._prompts = prompts  # a number for the prompt of each row
        self._cache = cache

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
        shape = torch.Size([len(batch.row), length])
        predictor = predictors(slot * length + position, batch.attention_mask, shape, shift) - slot * length
        self._model.report_pass(0, 0, len(slot))
        if not begins:
            return self._window(tokens, batch, slot, predictor, size + shift, shift)
        states = self._refresh(tokens, batch, slot, predictor)
        if states is None:  # some rows have no pass over the whole of them: the block before is needed too
            states = self._window(tokens, batch, slot, predictor, 2 * size + shift, size + shift)
        return states

    def keep(self, slots: Sequence[int]) -> None:
        """Move the keys and values of these places together, for a smaller batch."""
        self._cache = self._cache.keep(slots)

    def _window(
        self,
        tokens: Int[Tensor, "N L"],
        batch: Batch,
        slot: Int[Tensor, " C"],
        predictor: Int[Tensor, " C"],
        width: int,
        before: int,
    ) -> Float[Tensor, "C D"]:
        """Return the states of a pass over windows of ``width`` that begin ``before`` the blocks.

        All windows are equally wide, whichever rows are in the batch; that of a short last block reaches
        further to the left.
        """
        length = self._blocks.length
        width = min(width, length)
        start = (batch.start - before).clamp(0, length - width)
        where = start[:, None] + torch.arange(width, device=start.device)
        at = slot * width + predictor - start[slot]
        self._model.report_pass(where.numel(), length, 0)
        window = tokens[batch.row[:, None], where]
        return self._model.hidden(window, batch.attention_mask, self._cache, start, at)

    def _refresh(
        self,
        tokens: Int[Tensor, "N L"],
        batch: Batch,
        slot: Int[Tensor, " C"],
        predictor: Int[Tensor, " C"],
    ) -> Float[Tensor, "C D"] | None:
        """Cache the keys and values of whole rows that are due; return the states if all rows are.

        Completions of one prompt are equal until a token is revealed: one row represents all of them.
        """
        due = [i for i, (_, block) in enumerate(batch.places) if block % self._refresh_every == 0]
        if not due:
            return None
        model, cache, length, device = self._model, self._cache, self._blocks.length, tokens.device
        source = representatives(due, batch.places, self._prompts)
        number = {row: count for count, row in enumerate(dict.fromkeys(source))}
        rows = torch.tensor(list(number), device=device)
        whole = tokens[batch.row[rows]]
        mask = None if batch.attention_mask is None else batch.attention_mask[rows]
        room = cache if len(rows) == len(batch.places) else cache.of(rows)
        model.report_pass(whole.numel(), length, 0)
        states = None
        if len(due) == len(batch.places):
            row = torch.tensor([number[i] for i in source], device=device)
            states = model.hidden(whole, mask, room, at=row[slot] * length + predictor)
        else:
            model.fill(whole, mask, room)
        copies = [(theirs, own) for theirs, own in zip(source, due, strict=True) if theirs != own]
        if copies:
            cache.copy(*torch.tensor(copies, device=device).unbind(1))
        return states


def representatives(due: Sequence[int], places: Sequence[Place], prompts: Sequence[int]) -> list[int]:
    """Return for each due row the first row equal to it: itself, unless neither has a revealed token.

    ``prompts`` gives the prompt of each row by the row's number.

    >>> representatives([0, 1, 2, 3], places=[(5, 0), (6, 1), (7, 0), (8, 1)], prompts=[4] * 9)
    [0, 1, 0, 3]
    """
    first: dict[tuple[str, int], int] = {}
    rows = [("row", places[i][0]) if places[i][1] else ("prompt", prompts[places[i][0]]) for i in due]
    return [first.setdefault(row, i) for row, i in zip(rows, due, strict=True)]
