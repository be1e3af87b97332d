"""Many rows through one batch: rows that are done leave it and new prompts join, at the ends of blocks.

In a round every row of the batch writes a block, its own next one (see `rounds`). What a row becomes depends
on its prompt, its number and the seed, and not on the rows beside it: noise is the row's own (see `noise`),
and rows meet nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from dtm.engine.rounds import Round
from dtm.engine.sampler import Decoder
from dtm.engine.spans import Spans
from dtm.errors import require
from dtm.models.cache import KeyValues
from dtm.models.denoiser import Denoiser
from dtm.models.transformer import Transformer
from dtm.records import Completions, Prompts, where_padded

Ended = Callable[[Sequence[int], Int[Tensor, "S C"], Sequence[int]], Sequence[bool]]
"""Which rows are done: from their numbers, their completions, and how many tokens of each are written."""


def at_end_token(eos_id: int) -> Ended:
    """A completion ends with the block that has the end token."""

    def ended(rows: Sequence[int], completions: Int[Tensor, "S C"], written: Sequence[int]) -> list[bool]:
        reached = torch.tensor(written, device=completions.device)[:, None]
        inside = torch.arange(completions.shape[1], device=completions.device) < reached
        found: list[bool] = ((completions == eos_id) & inside).any(1).tolist()
        return found

    return ended


@torch.no_grad()
def decode_rows(
    denoiser: Denoiser,
    prompts: Prompts,
    length: int,
    decoder: Decoder,
    seed: int,
    batch: int,
    ended: Ended | None = None,
    between: Callable[[], None] = lambda: None,
) -> Completions:
    """Complete each prompt with ``length`` tokens, at most ``batch`` rows together.

    ``ended`` says which rows are done before their last block, by default those with an end token if the
    decoder stops there; what they leave unwritten becomes end tokens. ``between`` runs before each round.
    """
    decoder.require_weights(denoiser)
    if ended is None and decoder.until_end:
        ended = at_end_token(denoiser.eos_id)
    width, size, device = prompts.tokens.shape[1], decoder.block or length, prompts.tokens.device
    tokens = F.pad(prompts.tokens, (0, length), value=denoiser.mask_id)
    attention = F.pad(prompts.attention, (0, length), value=True)
    is_completion = torch.zeros_like(attention)
    is_completion[:, width:] = True
    revealed_at = torch.full_like(tokens, -1)
    mask = where_padded(attention)
    prompt = _numbers(torch.cat([tokens, attention], dim=1))
    working, waiting = list(range(len(prompts)))[:batch], list(range(len(prompts)))[batch:]
    written, taken = [0] * len(prompts), [0] * len(prompts)  # tokens and steps of each row so far
    cache = _room(denoiser, decoder, len(working), width + length)
    while working:
        between()
        rows, starts = torch.tensor(working, device=device), [width + written[row] for row in working]
        spans = Spans.of(starts, size, width + length, denoiser.shift, device)
        places = [(row, written[row] // size) for row in working]
        asked, looked = [prompt[row] for row in working], None if mask is None else mask[rows]
        block = Round(denoiser, decoder, spans, places, asked, seed, cache, looked)
        new, step, steps = block.write(tokens[rows])
        tokens[rows] = new
        begun = torch.tensor([taken[row] for row in working], device=device)[:, None]
        revealed_at[rows] = torch.where(step >= 0, begun + step, revealed_at[rows])
        for row, block_size, count in zip(working, spans.sizes, steps, strict=True):
            written[row] += block_size
            taken[row] += count
        if ended is not None:
            over = ended(working, new[:, width:], [written[row] for row in working])
            for row in [row for row, is_over in zip(working, over, strict=True) if is_over]:
                tokens[row, width + written[row] :] = denoiser.eos_id
                revealed_at[row, width + written[row] :] = taken[row]
                written[row] = length
        working, stay = _next_rows(working, waiting, [written[row] == length for row in working])
        if cache is not None and 0 < len(stay) < len(rows):
            cache = cache.keep(stay)
    return Completions(tokens, attention, is_completion, revealed_at)


def _numbers(rows: Int[Tensor, "B L"]) -> list[int]:
    """A number for each row, the same for equal ones."""
    numbers: list[int] = torch.unique(rows, dim=0, return_inverse=True)[1].tolist()
    return numbers


def _next_rows(working: list[int], waiting: list[int], done: list[bool]) -> tuple[list[int], list[int]]:
    """Rows that wait take the places of rows that are done; and the places that are still taken.

    >>> waiting = [5]
    >>> _next_rows([1, 2, 3], waiting, [True, False, True]), waiting
    (([5, 2], [0, 1]), [])
    """
    places = [
        (waiting.pop(0) if waiting else None) if is_done else row
        for row, is_done in zip(working, done, strict=True)
    ]
    stay = [place for place, row in enumerate(places) if row is not None]
    return [row for row in places if row is not None], stay


def _room(denoiser: Denoiser, decoder: Decoder, rows: int, length: int) -> KeyValues | None:
    if decoder.cache == "none" or rows == 0:
        return None
    require(
        isinstance(denoiser, Transformer),
        f"decoding.cache block needs a native transformer; a {type(denoiser).__name__} keeps no keys",
    )
    assert isinstance(denoiser, Transformer)
    return denoiser.new_cache(rows, length)
