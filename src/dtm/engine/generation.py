"""The sampling loop [Algorithm 2]: blocks left to right, a few reveals per step, continuous batching of rows.

    while rows are at work:
        make a batch of them, each at its own block and step
        reveal tokens, step by step, until a row has finished its block (with a cache: until all have)
        rows move on to their next blocks; finished rows leave, waiting ones take their places

Without a cache a row waits for no other. With one, the first pass of a block is over more than the block, so
the rows of a batch begin their blocks together. A row's tokens depend on its prompt, its number and the seed,
and not on the other rows of the batch, since every row has its own noise (see `noise`). Without ``certainty``
and early ends nothing waits for the device within a block. Autoregressive models have a separate, shorter
loop with the same tokens (see `autoregressive`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from dtm.engine.autoregressive import CausalSampler, is_autoregressive
from dtm.engine.blocks import Batch, Blocks, Row
from dtm.engine.decoder import Decoder
from dtm.engine.passes import BATCH_SIZES, passes_of
from dtm.engine.reveal import Stepper
from dtm.errors import require
from dtm.models.denoiser import Denoiser
from dtm.padding import aligned, where_padded
from dtm.records import Completions, Prompts

HEAP = 31 * 2**20
"""Bytes of a block that is freed once, on a CPU. glibc returns freed memory to the system beyond twice the
largest block freed so far, so passes of one size would get theirs anew each time: a tenth of their time. A
block of this size raises the limit to its maximum."""

Ended = Callable[[Sequence[int], Int[Tensor, "S C"], Sequence[int]], Sequence[bool]]
"""Returns which rows end early: from their numbers, their completions, and how many tokens each has written.
It is called with rows that have just finished a block."""


@torch.no_grad()
def generate(
    model: Denoiser,
    prompts: Prompts | Int[Tensor, "N P"],
    length: int,
    decoder: Decoder = Decoder(),  # noqa: B008, frozen
    *,
    seed: int = 0,
    completions: int = 1,
    batch: int = 256,
    rows: Sequence[int] | None = None,
    between: Callable[[], None] = lambda: None,
    ended: Ended | None = None,
) -> Completions:
    """Complete each prompt with ``length`` tokens drawn from the model.

    Draws depend on the seed and on the number of a row, and never on ``batch`` or the other rows.

    Args:
        model: π, on the device of the prompts.
        prompts: N prompts, or their token ids of shape [N, P] where none is padded.
        length: C, the tokens of a completion.
        decoder: order, blocks, temperature and shortcuts; by default exact, any-order, one token per step.
        seed: seed of the draws; the same seed gives the same completions.
        completions: K, the completions per prompt; they are adjacent rows of the result.
        batch: rows decoded together.
        rows: numbers of the rows to decode and return; None: all.
        between: called every few steps; may raise to stop.
        ended: returns which rows end early; by default those with an end token, if the decoder stops there.
            Their remaining tokens become end tokens.

    Returns:
        N·K rows of P + C tokens, with the step and the log-probability of each reveal. For a model with
        block-causal attention P is rounded up to a multiple of its block, by padding on the left; where its
        blocks are counted from a row's first token, P + C is, and a completion has up to B − 1 more tokens.

    Example:
        >>> from dtm.models import Transformer, TransformerConfig
        >>> shape = TransformerConfig(vocab_size=9, mask_id=8, eos_id=0, width=8, layers=1, heads=2, ffn=8)
        >>> model = Transformer(shape, torch.Generator().manual_seed(0))
        >>> done = generate(model, torch.tensor([[1, 2, 3]]), 4, Decoder(block=2), completions=5)
        >>> done.tokens.shape, done.revealed_at[0].tolist()
        (torch.Size([5, 7]), [-1, -1, -1, 1, 0, 2, 3])
    """
    require(length >= 1 and completions >= 1 and batch >= 1, "length, completions and batch must be positive")
    canvas = masked_rows(prompts, length, completions, model)
    decode(model, canvas, decoder, seed=seed, batch=batch, rows=rows, between=between, ended=ended)
    return canvas if rows is None else canvas.select(rows)


@torch.no_grad()
def decode(
    model: Denoiser,
    canvas: Completions,
    decoder: Decoder,
    *,
    seed: int,
    batch: int,
    rows: Sequence[int] | None = None,
    first: int = 0,
    stop: int | None = None,
    between: Callable[[], None] = lambda: None,
    ended: Ended | None = None,
) -> int:
    """Write the blocks ``first`` … ``stop`` − 1 of some rows into the canvas.

    Returns the sum of the decoding steps of these rows.

    Blocks before ``first`` are finished and later ones are masked. Decoding block by block gives the same
    tokens as `generate`, since a row's noise in a block depends on its number and on the block. Other
    arguments as in `generate`.
    """
    decoder.require_model(model)
    device, attention_mask = canvas.tokens.device, where_padded(canvas.attention)
    if device.type == "cpu":
        torch.empty(HEAP, dtype=torch.uint8)
    starts, length = canvas.is_completion.int().argmax(1).tolist(), canvas.tokens.shape[1]
    numbers = range(len(canvas)) if rows is None else rows
    if ended is None and is_autoregressive(model, decoder) and len(set(starts)) == 1:
        start = starts[0]
        columns = range(start + first, length if stop is None else min(start + stop, length))
        sampler = CausalSampler(model, decoder, canvas, attention_mask, seed, start, columns)
        return sampler.write(numbers, batch, between)
    if ended is None and decoder.until_end:
        ended = at_end_token(model.eos_id)
    blocks = Blocks.of(starts, length, decoder, in_columns=model.attention_block is not None)
    earlier: list[int] = (canvas.revealed_at.amax(1) + 1).tolist()
    sizes = [blocks.spans[starts[number], first].size for number in numbers]
    waiting = deque(Row(n, size, first, 0, earlier[n]) for n, size in zip(numbers, sizes, strict=True))
    working, finished = [waiting.popleft() for _ in range(min(batch, len(waiting)))], list[Row]()
    known = torch.cat([canvas.tokens, canvas.attention], dim=1)
    passes = passes_of(model, decoder, blocks, known, len(working), first)
    stepper = Stepper(model, decoder, blocks, blocks.table(device), passes)
    grain = -(-len(working) // BATCH_SIZES)
    while working:
        between()
        filling = 0 if passes.in_rounds else -len(working) % grain
        together = working + finished[:filling]  # keep finished rows, so that the batch keeps its size
        now = Batch.of(together, blocks, seed, attention_mask, device)
        since, is_over = 0, all if passes.in_rounds else any
        while not is_over(row.left == 0 for row in working):
            stepper.step(canvas, now, together, since)
            since += 1
        over = _move_on(working, blocks, stop, canvas, ended, model.eos_id)
        if passes.in_rounds and not waiting and sum(over) < min(grain, len(over)):
            _stay(working, over, blocks)
            continue
        finished += [row for row, is_done in zip(working, over, strict=True) if is_done]
        working, slots = _next_rows(working, waiting, over)
        if 0 < len(slots) < len(over):
            passes.keep(slots)
    return sum(row.earlier - earlier[row.number] for row in finished)


def _stay(working: Sequence[Row], over: Sequence[bool], blocks: Blocks) -> None:
    """Keep ended rows in their places of a cached batch, at the block of the others.

    A batch that shrinks by a few rows is a new shape, for which kernels are chosen again, and it moves the
    whole cache. These rows have no masked position, so their steps reveal nothing.
    """
    block = max(row.block for row, is_over in zip(working, over, strict=True) if not is_over)
    for row, is_over in zip(working, over, strict=True):
        if is_over:
            row.block = min(max(block, row.block), blocks.count(row.number) - 1)


def at_end_token(eos_id: int) -> Ended:
    """Return an `Ended` rule: a completion ends with the block that has the end token."""

    def ended(rows: Sequence[int], completions: Int[Tensor, "S C"], written: Sequence[int]) -> list[bool]:
        reached = torch.tensor(written, device=completions.device)[:, None]
        inside = torch.arange(completions.shape[1], device=completions.device) < reached
        found: list[bool] = ((completions == eos_id) & inside).any(1).tolist()
        return found

    return ended


def masked_rows(
    prompts: Prompts | Int[Tensor, "N P"], length: int, completions: int, model: Denoiser
) -> Completions:
    """Return the rows before the first step: each prompt, repeated for its completions, then masks.

    Blocks of block-causal attention are columns of these rows. The completion begins one; where blocks are
    counted from a row's first token, that token does, and rows are whole blocks.
    """
    tokens = prompts if isinstance(prompts, Tensor) else prompts.tokens
    attention = torch.ones_like(tokens, dtype=torch.bool)
    if isinstance(prompts, Prompts):
        attention = prompts.attention
    tokens, attention = (each.repeat_interleave(completions, dim=0) for each in (tokens, attention))
    block = model.attention_block
    if block is not None and model.block_origin == "token":
        return _whole_blocks(tokens, attention, length, block, model.mask_id)
    is_completion = F.pad(torch.zeros_like(attention), (0, length), value=True)
    tokens = F.pad(tokens, (0, length), value=model.mask_id)
    attention = F.pad(attention, (0, length), value=True)
    return aligned(_unrevealed(tokens, attention, is_completion), block)


def _whole_blocks(
    tokens: Int[Tensor, "N P"], attention: Bool[Tensor, "N P"], length: int, block: int, mask_id: int
) -> Completions:
    """Return rows that are padded on the left by whole blocks and end with one; see `masked_rows`."""
    prompt = attention.sum(1, keepdim=True)
    total = (prompt + length + block - 1) // block * block
    width = int(total.max()) if len(total) else 0
    column = torch.arange(width, device=tokens.device)
    begin = width - total
    is_completion = column >= begin + prompt
    rows = tokens.new_zeros(len(tokens), width).masked_fill(is_completion, mask_id)
    inside = (column >= begin) & ~is_completion
    rows[inside] = tokens[attention]
    return _unrevealed(rows, column >= begin, is_completion)


def _unrevealed(
    tokens: Int[Tensor, "N L"], attention: Bool[Tensor, "N L"], is_completion: Bool[Tensor, "N L"]
) -> Completions:
    log_prob = torch.zeros(tokens.shape, device=tokens.device)
    return Completions(tokens, attention, is_completion, torch.full_like(tokens, -1), log_prob)


def _move_on(
    working: Sequence[Row],
    blocks: Blocks,
    stop: int | None,
    canvas: Completions,
    ended: Ended | None,
    eos_id: int,
) -> list[bool]:
    """Move rows that have finished a block to their next one; return which rows are finished altogether.

    Rows that end early are filled up with end tokens. No row goes on to the block ``stop``.
    """
    done = [row for row in working if row.left == 0]
    starts = [blocks.starts[row.number] for row in done]
    places = [(start, row.block) for row, start in zip(done, starts, strict=True)]
    written = [blocks.spans[place].end - place[0] for place in places]
    over = [(start, block + 1) not in blocks.spans for start, block in places]
    for row in done:
        row.earlier, row.step = row.earlier + row.step, 0
    if ended is not None and not all(over):
        numbers = [row.number for row in done]
        early = ended(numbers, from_columns(canvas.tokens[numbers], starts), written)
        for row, start, count, is_early in zip(done, starts, written, early, strict=True):
            if is_early:
                canvas.tokens[row.number, start + count :] = eos_id
                canvas.revealed_at[row.number, start + count :] = row.earlier
        over = [last or is_early for last, is_early in zip(over, early, strict=True)]
    for row, start, is_over in zip(done, starts, over, strict=True):
        if not is_over and row.block + 1 != stop:
            row.block += 1
            row.left = blocks.spans[start, row.block].size
    return [row.left == 0 for row in working]


def from_columns(tokens: Int[Tensor, "S L"], starts: Sequence[int]) -> Int[Tensor, "S C"]:
    """Return each row from its start on, padded to one length with its last token.

    >>> from_columns(torch.tensor([[1, 2, 3], [4, 5, 6]]), [1, 2]).tolist()
    [[2, 3], [6, 6]]
    """
    first = torch.tensor(starts, device=tokens.device)[:, None]
    width = tokens.shape[1] - min(starts)
    column = first + torch.arange(width, device=tokens.device)
    return tokens.gather(1, column.clamp(max=tokens.shape[1] - 1))


def _next_rows(
    working: Sequence[Row], waiting: deque[Row], over: Sequence[bool]
) -> tuple[list[Row], list[int]]:
    """Give the places of finished rows to waiting ones; return the rows and the places still taken."""
    places = [
        (waiting.popleft() if waiting else None) if is_over else row
        for row, is_over in zip(working, over, strict=True)
    ]
    slots = [slot for slot, row in enumerate(places) if row is not None]
    return [row for row in places if row is not None], slots
