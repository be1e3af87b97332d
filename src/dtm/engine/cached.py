"""Forward passes of a batch of rows with a cache of their keys and values.

    first   over the first columns of some rows, once for rows that are equal there
    window  over a few columns of every row, with the cached keys and values of the other columns

Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.engine.blocks import Batch, Place
from dtm.models.cache import KeyValues
from dtm.models.transformer import Transformer


@final
class CachedRows:
    """The keys and values of the rows being decoded."""

    def __init__(self, model: Transformer, prompts: Sequence[int], cache: KeyValues) -> None:
        self._model = model
        self._prompts = prompts  # a number for the prompt of each row
        self._cache = cache

    def keep(self, slots: Sequence[int]) -> None:
        """Move the keys and values of these places together, for a smaller batch."""
        self._cache = self._cache.keep(slots)

    def window(
        self,
        tokens: Int[Tensor, "N L"],
        batch: Batch,
        slot: Int[Tensor, " C"],
        predictor: Int[Tensor, " C"],
        width: int,
        before: int,
        stop: int,
    ) -> Float[Tensor, "C D"]:
        """Return the states of a pass over windows of ``width`` that begin ``before`` the blocks.

        All windows are equally wide, in any batch; the window of a short last block starts further to the
        left. Columns from ``stop`` on are not attended to.
        """
        width = min(width, stop)
        start = (batch.start - before).clamp(0, stop - width)
        where = start[:, None] + torch.arange(width, device=start.device)
        at = slot * width + predictor - start[slot]
        self._model.report_pass(where.numel(), stop, 0)
        mask = None if batch.attention_mask is None else batch.attention_mask[:, :stop]
        window = tokens[batch.row[:, None], where]
        return self._model.hidden(window, mask, self._cache.until(stop), start, at)

    def first(
        self,
        tokens: Int[Tensor, "N L"],
        batch: Batch,
        slot: Int[Tensor, " C"],
        predictor: Int[Tensor, " C"],
        due: Sequence[int],
        stop: int,
    ) -> Float[Tensor, "C D"] | None:
        """Cache the first ``stop`` columns of the due places; return the states if all places are due.

        Completions of one prompt are equal until a token is revealed: one row represents all of them.
        """
        if not due:
            return None
        model, cache, device = self._model, self._cache.until(stop), tokens.device
        source = representatives(due, batch.places, self._prompts)
        number = {row: count for count, row in enumerate(dict.fromkeys(source))}
        rows = torch.tensor(list(number), device=device)
        whole = tokens[batch.row[rows], :stop]
        mask = None if batch.attention_mask is None else batch.attention_mask[rows, :stop]
        room = cache if len(rows) == len(batch.places) else cache.of(rows)
        model.report_pass(whole.numel(), stop, 0)
        states = None
        if len(due) == len(batch.places):
            row = torch.tensor([number[i] for i in source], device=device)
            states = model.hidden(whole, mask, room, at=row[slot] * stop + predictor)
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
