"""One round: every row of a batch writes a block, its own next one.

    a pass over whole rows                        the first reveal
    passes over the blocks alone (cache block)    the other reveals, against the keys and values of that pass
    or over whole rows again (cache none)         the same, exactly

With ``refresh`` above 1 the first pass of most blocks is over the block and the one before it, whose last
tokens no kept key has seen. With a cache the completions of a prompt share the first pass of all. Nothing
waits for the device unless ``certainty`` asks how much is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from dtm.engine.draws import look_for
from dtm.engine.noise import Place, candidate_keys, row_keys, uniform
from dtm.engine.sampler import Decoder, quotas
from dtm.engine.spans import Spans
from dtm.models.cache import KeyValues
from dtm.models.denoiser import Denoiser
from dtm.models.transformer import Transformer

HEAD_ROWS = 1024
"""Positions whose distributions are held at a time; over a vocabulary of 126,464 that is half a gigabyte."""


@dataclass(frozen=True, slots=True)
class Round:
    """One block of every row of a batch."""

    denoiser: Denoiser
    decoder: Decoder
    spans: Spans
    places: Sequence[Place]
    prompts: Sequence[int]
    """The prompt of each row, by a number."""
    seed: int
    """Of the rows' noise."""
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
        rows = row_keys(self.seed, self.places, tokens.device)
        revealed = torch.full_like(tokens, -1)
        for step, quota in enumerate(schedule):
            if not any(left):
                break
            steps = [count + (remaining > 0) for count, remaining in zip(steps, left, strict=True)]
            where, chosen, drawn = self._reveal(tokens, step, left, quota, limits[step], rows)
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
        rows: Int32[Tensor, "S 2"],
    ) -> tuple[Int[Tensor, "S M"], Bool[Tensor, "S M"], Int[Tensor, "S M"]]:
        """Candidate positions, which of them to reveal, and the tokens drawn there."""
        masked, decoder = self._masked(tokens), self.decoder
        # The masked positions first, in order: their number is known here, so nothing waits for the device.
        order = masked.int().argsort(dim=1, descending=True, stable=True)[:, : max(left)]
        where, candidate = self.spans.where.gather(1, order), masked.gather(1, order)
        keys = candidate_keys(rows, step, where.shape[1])
        if not decoder.order.reads_posterior and decoder.certainty is None:
            best, chosen = _highest(uniform(keys), candidate, max(quota), limit)
            keys = keys.gather(1, best[..., None].expand(-1, -1, 2))
            where = where.gather(1, best)
            return where, chosen, self._look(tokens, where, step, keys)[0]
        drawn, score, peak = self._look(tokens, where, step, keys)
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
        keys: Int32[Tensor, "S M 2"],
    ) -> tuple[Int[Tensor, "S M"], Float[Tensor, "S M"], Float[Tensor, "S M"]]:
        """At each position the token drawn, its score, and the highest probability if that is needed."""
        states, model = self._states(tokens, where, begins=step == 0), self.denoiser
        model.report_pass(0, 0, where.numel())
        together, look = max(1, HEAD_ROWS // where.shape[1]), look_for(model, tokens.device)
        parts = []
        for first in range(0, len(where), together):
            some = slice(first, first + together)
            logits = model.head(states[some].flatten(0, 1))
            looked = look(
                logits,
                keys[some].flatten(0, 1),
                (model.vocab_size, model.mask_id),
                self.decoder.temperature,
                self.decoder.order,
                self.decoder.certainty is not None,
            )
            parts.append([value.view(-1, where.shape[1]) for value in looked])
        drawn, score, peak = (torch.cat(part) for part in zip(*parts, strict=True))
        return drawn, score, peak

    def _states(
        self, tokens: Int[Tensor, "S L"], where: Int[Tensor, "S M"], begins: bool
    ) -> Float[Tensor, "S M D"]:
        """The hidden states that predict the given positions."""
        shift, mask = self.denoiser.shift, self.mask
        if shift:  # a row's first real token has nothing before it and is predicted from its own state
            before = (where - shift).clamp(min=0)
            preceded = where >= shift if mask is None else (where >= shift) & mask.gather(1, before)
            where = torch.where(preceded, before, where)
        return self._pass(tokens, where, begins).view(*where.shape, -1)

    def _pass(
        self, tokens: Int[Tensor, "S L"], wanted: Int[Tensor, "S M"], begins: bool
    ) -> Float[Tensor, "N D"]:
        """Hidden states at the positions wanted, from a pass over whole rows or over windows of them."""
        length = tokens.shape[1]
        row = torch.arange(len(tokens), device=tokens.device)[:, None]
        if self.cache is None:
            self.denoiser.report_pass(tokens.numel(), length, 0)
            return self.denoiser.hidden_at(tokens, self.mask, (row * length + wanted).flatten())
        assert isinstance(self.denoiser, Transformer)
        start, reach = self.spans.window, self.spans.reach
        if begins:
            states = self._refresh(self.denoiser, self.cache, tokens, wanted)
            if states is not None:
                return states
            start, reach = self.spans.before, self.spans.far
        where = start[:, None] + torch.arange(reach, device=start.device)
        self.denoiser.report_pass(where.numel(), length, 0)
        at = (row * reach + wanted - start[:, None]).flatten()
        return self.denoiser.hidden(tokens.gather(1, where), self.mask, self.cache, start, at)

    def _refresh(
        self,
        denoiser: Transformer,
        cache: KeyValues,
        tokens: Int[Tensor, "S L"],
        wanted: Int[Tensor, "S M"],
    ) -> Float[Tensor, "N D"] | None:
        """A pass over the whole of the rows that are due; the states wanted if those are all.

        Completions of one prompt are alike until something is written: one stands for all of them.
        """
        due = [i for i, (_, block) in enumerate(self.places) if block % self.decoder.refresh == 0]
        if not due:
            return None
        source = _stand_ins(due, self.places, self.prompts)
        number = {row: count for count, row in enumerate(dict.fromkeys(source))}
        rows, length = torch.tensor(list(number), device=tokens.device), tokens.shape[1]
        mask = None if self.mask is None else self.mask[rows]
        room = cache if len(rows) == len(self.places) else cache.of(rows)
        denoiser.report_pass(len(rows) * length, length, 0)
        states = None
        if len(due) == len(self.places):
            row = torch.tensor([number[i] for i in source], device=tokens.device)[:, None]
            states = denoiser.hidden(tokens[rows], mask, room, at=(row * length + wanted).flatten())
        else:
            denoiser.fill(tokens[rows], mask, room)
        spared = [(theirs, own) for theirs, own in zip(source, due, strict=True) if theirs != own]
        if spared:
            cache.copy(*torch.tensor(spared, device=tokens.device).unbind(1))
        return states


def _stand_ins(due: Sequence[int], places: Sequence[Place], prompts: Sequence[int]) -> list[int]:
    """For each row that is due the first one in the same state: itself, unless neither has written anything.

    >>> _stand_ins([0, 1, 2, 3], places=[(5, 0), (6, 1), (7, 0), (8, 1)], prompts=[4, 4, 4, 4])
    [0, 1, 0, 3]
    """
    first: dict[Place, int] = {}
    return [first.setdefault(places[i] if places[i][1] else (prompts[i], 0), i) for i in due]


def _highest(
    score: Float[Tensor, "S M"], candidate: Bool[Tensor, "S M"], most: int, limit: Int[Tensor, " S"]
) -> tuple[Int[Tensor, "S Q"], Bool[Tensor, "S Q"]]:
    """The best candidates of each row, ``most`` of them, and which of these are within its own limit."""
    best = score.masked_fill(~candidate, -torch.inf).topk(min(most, score.shape[1]), dim=1).indices
    rank = torch.arange(best.shape[1], device=best.device)
    return best, candidate.gather(1, best) & (rank < limit[:, None])
