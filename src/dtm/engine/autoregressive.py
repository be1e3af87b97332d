"""Autoregressive decoding: causal attention, one new token for every row of a batch in each step.

    first pass  over the prompts, once for prompts that are equal
    each step   a pass over the newest token of each row against the keys and values of the others, and a draw

The tokens are those of the general loop (`generation`), which keeps the state of each row on the host because
rows may be at different blocks and steps. Here all rows of a batch are at one position and their state is on
the device, so that the host does nothing for single rows. It waits for the device only at intervals, to count
the rows that have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.engine.decoder import Decoder
from dtm.engine.draws import draw
from dtm.engine.noise import candidate_keys, row_keys
from dtm.engine.passes import BATCH_SIZES, KEYS
from dtm.models.cache import KeyValues
from dtm.models.denoiser import Denoiser, predictors
from dtm.models.transformer import Transformer
from dtm.records import Completions

CHECKED = 16
"""Steps between counts of ended rows; each count waits for the device."""
SMALLER = 0.75
"""A batch shrinks only to at most this share of its size: each time the cache is moved and kernels change."""


def is_autoregressive(model: Denoiser, decoder: Decoder) -> TypeGuard[Transformer]:
    """Return whether each token is predicted by the state before it, and the cache keeps earlier tokens."""
    is_causal = isinstance(model, Transformer) and model.attention_block == model.shift == 1
    return is_causal and decoder.cache == "prefix"


@dataclass(frozen=True, slots=True)
class CausalSampler:
    """Writes tokens into rows of a canvas. Letters: S rows of a batch, W columns of a prompt, D width."""

    model: Transformer
    decoder: Decoder
    canvas: Completions
    attention_mask: Bool[Tensor, "N L"] | None
    """False on the left padding of prompts; None without padding."""
    seed: int
    start: int
    """The first column of all completions."""
    columns: range
    """The columns to write; earlier ones are known, later ones masked."""

    def write(self, rows: Sequence[int], batch: int, between: Callable[[], None]) -> int:
        """Write the columns of some rows, up to ``batch`` rows together; return the sum of their steps.

        ``between`` is called before each step.
        """
        steps = 0
        for number in range(0, len(rows), batch):
            row = torch.tensor(rows[number : number + batch], device=self.canvas.tokens.device)
            self._draw(row, between)
            steps += self._finish(row)
        return steps

    def _draw(self, row: Int[Tensor, " S"], between: Callable[[], None]) -> None:
        """Draw the tokens of a batch of rows until all columns are written or all rows have ended.

        Rows that have ended keep drawing until the batch shrinks; `_finish` overwrites these tokens.
        """
        model, canvas, begin, stop = self.model, self.canvas, self.columns.start, self.columns.stop
        mask = None if self.attention_mask is None else self.attention_mask[row, :stop]
        cache, is_over = model.new_cache(len(row), stop), torch.zeros_like(row, dtype=torch.bool)
        grain = -(-len(row) // BATCH_SIZES)
        for column in self.columns:
            between()
            if self.decoder.until_end and column > begin and (column - begin) % CHECKED == 0:
                kept = places_kept(is_over, grain)
                if len(kept) == 0:
                    return
                if len(kept) < len(row):
                    cache, row, is_over = cache.keep(kept.tolist()), row[kept], is_over[kept]
                    mask = None if mask is None else mask[kept]
            if column == begin:
                states = first_pass(model, canvas.tokens[row, : begin + 1], mask, cache)
            else:
                states = next_pass(model, canvas.tokens[row, column - 1], mask, cache, column - 1)
            block = row_keys(self.seed, row, torch.full_like(row, column - self.start))
            keys = candidate_keys(block, torch.zeros_like(row), 1)[:, 0]
            drawn = draw(model, self.decoder, states, keys)
            canvas.tokens[row, column] = drawn.tokens
            canvas.log_prob[row, column] = drawn.log_prob
            is_over |= drawn.tokens == model.eos_id

    def _finish(self, row: Int[Tensor, " S"]) -> int:
        """Number the reveals, fill up rows that have ended with end tokens, and return the steps taken."""
        canvas, eos_id = self.canvas, self.model.eos_id
        column = torch.arange(canvas.tokens.shape[1], device=row.device)
        is_written = (column >= self.columns.start) & (column < self.columns.stop)
        is_end = (canvas.tokens[row] == eos_id) & is_written & self.decoder.until_end
        has_ended = is_end.any(1, keepdim=True)
        end = torch.where(has_ended, is_end.int().argmax(1, keepdim=True) + 1, self.columns.stop)
        is_filled = has_ended & (column >= end)
        step = torch.where(is_written, column - self.start, canvas.revealed_at[row])
        canvas.revealed_at[row] = torch.where(is_filled, end - self.start, step)
        canvas.tokens[row] = canvas.tokens[row].masked_fill(is_filled, eos_id)
        canvas.log_prob[row] = canvas.log_prob[row].masked_fill(is_filled, 0.0)
        return int((end - self.columns.start).sum())


def first_pass(
    model: Transformer, tokens: Int[Tensor, "S W"], mask: Bool[Tensor, "S L"] | None, cache: KeyValues
) -> Float[Tensor, "S D"]:
    """Cache the known columns; return the states that predict the last column, which is masked.

    The masked column is in the pass because an empty prompt has no other; the next pass replaces its keys.
    """
    width, cache = tokens.shape[1], cache.until(tokens.shape[1])
    known = tokens
    if mask is not None:
        mask = mask[:, :width]
        known = torch.cat([tokens, mask], dim=1)
    first, equal = first_of_equal(known)
    mask = None if mask is None else mask[first]
    last = torch.arange(1, len(first) + 1, device=tokens.device) * width - 1
    at = predictors(last, mask, torch.Size([len(first), width]), model.shift)
    model.report_pass(len(first) * width, width, len(tokens))
    states = model.hidden(tokens[first], mask, cache.of(first), at=at)
    if len(first) < len(tokens):
        cache.copy(first[equal], torch.arange(len(tokens), device=tokens.device))
    return states[equal]


def next_pass(
    model: Transformer,
    newest: Int[Tensor, " S"],
    mask: Bool[Tensor, "S L"] | None,
    cache: KeyValues,
    column: int,
) -> Float[Tensor, "S D"]:
    """Return the states of the newest token of each row, at ``column``, and cache its keys and values."""
    stop = min(-(-(column + 1) // KEYS) * KEYS, cache.length)
    mask = None if mask is None else mask[:, :stop]
    model.report_pass(len(newest), stop, len(newest))
    return model.hidden(newest[:, None], mask, cache.until(stop), torch.full_like(newest, column))[:, 0]


def first_of_equal(rows: Int[Tensor, "S W"]) -> tuple[Int[Tensor, " U"], Int[Tensor, " S"]]:
    """Return the first of each set of equal rows, and which of these each row equals.

    >>> first, equal = first_of_equal(torch.tensor([[5], [3], [5], [3]]))
    >>> first[equal].tolist()
    [0, 1, 0, 1]
    """
    distinct, equal = torch.unique(rows, dim=0, return_inverse=True)
    place = torch.arange(len(rows), device=rows.device)
    return place.new_zeros(len(distinct)).scatter_reduce(0, equal, place, "amin", include_self=False), equal


def places_kept(is_over: Bool[Tensor, " S"], grain: int) -> Int[Tensor, " C"]:
    """Return the places that a batch keeps: unfinished rows, and ended ones up to a multiple of ``grain``.

    If that saves little, all are kept. This waits for the device.

    >>> places_kept(torch.tensor([True, False, True, True, False, True]), grain=3).tolist()
    [1, 4, 0]
    """
    left = len(is_over) - int(is_over.sum())
    size = -(-left // grain) * grain
    return is_over.int().argsort(stable=True)[: size if size <= SMALLER * len(is_over) else None]
