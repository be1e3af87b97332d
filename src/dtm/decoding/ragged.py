"""Many rows through one batch: rows that are done leave it and new prompts join, at the ends of blocks.

In a round every row of the batch writes a block, its own next one:

    one pass over whole rows                      the first reveal
    passes over the blocks alone (cache block)    the other reveals, against the keys and values of that pass
    or over whole rows again (cache none)         the same, exactly

What a row becomes depends on its prompt, its number and the seed, and not on the rows beside it: noise is
the row's own (see `noise`), and rows meet nowhere else. Nothing in a round waits for the device unless
``certainty`` asks how much is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.decoding.noise import Place, RowNoise
from dtm.decoding.sampler import Decoder, quotas
from dtm.decoding.spans import Spans
from dtm.errors import require
from dtm.models.cache import KeyValues
from dtm.models.denoiser import Denoiser
from dtm.models.transformer import Transformer
from dtm.records import Completions, Prompts, where_padded

HEAD_ROWS = 1024
"""Positions whose distributions are held at a time; over a vocabulary of 126,464 that is half a gigabyte."""

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
    if ended is None and decoder.until_end:
        ended = at_end_token(denoiser.eos_id)
    width, size, device = prompts.tokens.shape[1], decoder.block or length, prompts.tokens.device
    tokens = F.pad(prompts.tokens, (0, length), value=denoiser.mask_id)
    attention = F.pad(prompts.attention, (0, length), value=True)
    is_completion = torch.zeros_like(attention)
    is_completion[:, width:] = True
    revealed_at = torch.full_like(tokens, -1)
    mask, noise = where_padded(attention), RowNoise(seed, device)
    cache = _room(denoiser, decoder, min(batch, len(prompts)), width + length)
    waiting, working = deque(range(len(prompts))), list[int]()
    written, taken = [0] * len(prompts), [0] * len(prompts)
    while waiting or working:
        between()
        while waiting and len(working) < batch:
            working.append(waiting.popleft())
        rows = torch.tensor(working, device=device)
        spans = Spans.of(
            [width + written[row] for row in working], size, width + length, denoiser.shift, device
        )
        places = [(row, written[row] // size) for row in working]
        room = None if cache is None else cache.first(len(working))
        looked = None if mask is None else mask[rows]
        writer = _Round(denoiser, decoder, spans, places, noise, room, looked)
        new, step, steps = writer.write(tokens[rows])
        begun = torch.tensor([taken[row] for row in working], device=device)[:, None]
        tokens[rows] = new
        revealed_at[rows] = torch.where(step >= 0, begun + step, revealed_at[rows])
        for row, block_size, count in zip(working, spans.sizes, steps, strict=True):
            written[row] += block_size
            taken[row] += count
        over = [False] * len(working)
        if ended is not None:
            over = list(ended(working, new[:, width:], [written[row] for row in working]))
        for row, is_over in zip(working, over, strict=True):
            if is_over and written[row] < length:
                tokens[row, width + written[row] :] = denoiser.eos_id
                revealed_at[row, width + written[row] :] = taken[row]
                written[row] = length
        working = [row for row in working if written[row] < length]
    return Completions(tokens, attention, is_completion, revealed_at)


def _room(denoiser: Denoiser, decoder: Decoder, rows: int, length: int) -> KeyValues | None:
    if decoder.cache == "none" or rows == 0:
        return None
    require(
        isinstance(denoiser, Transformer),
        f"decoding.cache block needs a native transformer; a {type(denoiser).__name__} keeps no keys",
    )
    assert isinstance(denoiser, Transformer)
    return denoiser.new_cache(rows, length)


@dataclass(frozen=True, slots=True)
class _Round:
    """One block of every row of a batch."""

    denoiser: Denoiser
    decoder: Decoder
    spans: Spans
    places: Sequence[Place]
    noise: RowNoise
    cache: KeyValues | None
    mask: Bool[Tensor, "S L"] | None

    def write(
        self, tokens: Int[Tensor, "S L"]
    ) -> tuple[Int[Tensor, "S L"], Int[Tensor, "S L"], Sequence[int]]:
        """The rows with their blocks written, the step that revealed each token, the steps of each row.

        Steps are those of this round; tokens that it has not revealed have −1.
        """
        spans, left, steps = self.spans, list(self.spans.sizes), [0] * len(self.places)
        shares = [quotas(size, self.decoder.tokens_per_step) for size in spans.sizes]
        schedule = [
            [share[step] if step < len(share) else 0 for share in shares]
            for step in range(max(map(len, shares)))
        ]
        limits = torch.tensor(schedule, device=tokens.device)
        revealed = torch.full_like(tokens, -1)
        for step, quota in enumerate(schedule):
            if not any(left):
                break
            steps = [count + (remaining > 0) for count, remaining in zip(steps, left, strict=True)]
            where, chosen, drawn = self._reveal(tokens, step, left, quota, limits[step])
            tokens = tokens.scatter(1, where, torch.where(chosen, drawn, tokens.gather(1, where)))
            revealed = revealed.scatter(1, where, torch.where(chosen, step, revealed.gather(1, where)))
            if self.decoder.certainty is None:
                left = [max(remaining - share, 0) for remaining, share in zip(left, quota, strict=True)]
            else:
                left = self._masked(tokens).sum(1).tolist()
        return tokens, revealed, steps

    def _masked(self, tokens: Int[Tensor, "S L"]) -> Bool[Tensor, "S B"]:
        """Which positions of the blocks are still masked; a mask is never drawn."""
        return self.spans.inside & (tokens.gather(1, self.spans.where) == self.denoiser.mask_id)

    def _reveal(
        self,
        tokens: Int[Tensor, "S L"],
        step: int,
        left: list[int],
        quota: list[int],
        limit: Int[Tensor, " S"],
    ) -> tuple[Int[Tensor, "S M"], Bool[Tensor, "S M"], Int[Tensor, "S M"]]:
        """Candidate positions, which of them to reveal, and the tokens drawn there."""
        masked, decoder = self._masked(tokens), self.decoder
        # The masked positions first, in order: their number is known here, so nothing waits for the device.
        order = masked.int().argsort(dim=1, descending=True, stable=True)[:, : max(left)]
        where, candidate = self.spans.where.gather(1, order), masked.gather(1, order)
        uniform = None
        if not decoder.order.reads_posterior:
            uniform = self.noise.uniform(self.places, step, left, where.shape[1])
            if decoder.certainty is None:  # then the head runs on the revealed positions alone
                best, chosen = _highest(uniform, candidate, max(quota), limit)
                counts = [min(share, remaining) for share, remaining in zip(quota, left, strict=True)]
                where = where.gather(1, best)
                return where, chosen, self._look(tokens, where, step, counts, None)[0]
        drawn, score, peak = self._look(tokens, where, step, left, uniform)
        best, kept = _highest(score, candidate, max(quota), limit)
        chosen = torch.zeros_like(candidate).scatter(1, best, kept)
        if decoder.certainty is not None:
            chosen |= candidate & (peak >= decoder.certainty)
        return where, chosen, drawn

    def _look(
        self,
        tokens: Int[Tensor, "S L"],
        where: Int[Tensor, "S M"],
        step: int,
        counts: list[int],
        uniform: Float[Tensor, "S M"] | None,
    ) -> tuple[Int[Tensor, "S M"], Float[Tensor, "S M"], Float[Tensor, "S M"]]:
        """At each position the token drawn, its score in the decoder's order, and the highest probability."""
        states, order = self._states(tokens, where, whole=step == 0), self.decoder.order
        together = max(1, HEAD_ROWS // where.shape[1])
        parts = []
        for first in range(0, len(where), together):
            some = slice(first, first + together)
            log_pi = self.denoiser.log_pi(states[some].flatten(0, 1))
            drawn = self._draw(log_pi, some, step, counts)
            ranks = torch.zeros_like(log_pi[:, 0]) if uniform is None else uniform[some].flatten().to(log_pi)
            looked = drawn, order.score(log_pi, drawn, ranks), log_pi.amax(-1).exp()
            parts.append([value.view(-1, where.shape[1]) for value in looked])
        drawn, score, peak = (torch.cat(part) for part in zip(*parts, strict=True))
        return drawn, score, peak

    def _draw(
        self, log_pi: Float[Tensor, "N V"], some: slice, step: int, counts: list[int]
    ) -> Int[Tensor, " N"]:
        """A token for each position by the Gumbel-max rule, or the most likely one at temperature 0."""
        if self.decoder.temperature == 0:
            return log_pi.argmax(-1)
        places = self.places[some]
        noise = self.noise.exponential(
            places, step, counts[some], log_pi.view(len(places), -1, log_pi.shape[1])
        )
        return noise.flatten(0, 1).log_().neg_().add_(log_pi, alpha=1 / self.decoder.temperature).argmax(-1)

    def _states(
        self, tokens: Int[Tensor, "S L"], where: Int[Tensor, "S M"], whole: bool
    ) -> Float[Tensor, "S M D"]:
        """The hidden states that predict the given positions, from whole rows or from their windows."""
        shift, mask = self.denoiser.shift, self.mask
        if shift:  # a row's first real token has nothing before it and is predicted from its own state
            before = (where - shift).clamp(min=0)
            preceded = where >= shift if mask is None else (where >= shift) & mask.gather(1, before)
            where = torch.where(preceded, before, where)
        if self.cache is None:
            hidden = self.denoiser.hidden(tokens, mask)
        else:
            assert isinstance(self.denoiser, Transformer)
            if whole:
                hidden = self.denoiser.hidden(tokens, mask, self.cache)
            else:
                spans = self.spans
                hidden = self.denoiser.hidden(tokens.gather(1, spans.windows), mask, self.cache, spans.window)
                where = where - spans.window[:, None]
        return hidden.gather(1, where[..., None].expand(-1, -1, hidden.shape[-1]))


def _highest(
    score: Float[Tensor, "S M"], candidate: Bool[Tensor, "S M"], most: int, limit: Int[Tensor, " S"]
) -> tuple[Int[Tensor, "S Q"], Bool[Tensor, "S Q"]]:
    """The best candidates of each row, ``most`` of them, and which of these are within its own limit."""
    best = score.masked_fill(~candidate, -torch.inf).topk(min(most, score.shape[1]), dim=1).indices
    rank = torch.arange(best.shape[1], device=best.device)
    return best, candidate.gather(1, best) & (rank < limit[:, None])
