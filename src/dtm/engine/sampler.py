"""The plain sampling loop: blocks left to right, and within a block a few reveals a step [Algorithm 2].

Every step is a pass over whole rows that go in lockstep; `ragged` is the loop for a cache and for rows that
come and go. Token noise is float32 whatever the model's precision: Gumbel noise of bf16 uniforms is capped at
5.5 and never draws the tail (spec, section 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.engine.orders import Order, Uniform
from dtm.errors import require
from dtm.models.denoiser import Denoiser
from dtm.records import Completions, Prompts, where_padded


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """How sequences are unmasked."""

    order: Order = field(default_factory=Uniform)
    block: int | None = None
    """B, the block size of semi-autoregressive decoding; None is one block: any-order."""
    tokens_per_step: int = 1
    """Tokens revealed by one forward pass; 1 is exact, more treats them as independent."""
    temperature: float = 1.0
    """τ of the token draws; 1 samples the model's law, 0 takes the most likely token."""
    certainty: float | None = None
    """If set, also reveal every position whose most likely token has at least this probability. The
    sampled law moves by at most (1 − certainty) in total variation for each token revealed so."""
    cache: Literal["none", "block"] = "none"
    """block: the first pass of a block is over whole rows, the others over the block alone, against the keys
    and values that the first one left of everything else. An approximation; none is exact."""
    refresh: int = 1
    """With a cache: blocks from one pass over whole rows to the next. Between them the first pass of a block
    is over it and the block before it."""
    until_end: bool = False
    """A completion whose finished blocks have the end token is done: the rest becomes end tokens."""
    fp8: bool = False
    """The model's projections are in eight bits (see `dtm.models.fp8`). An approximation."""

    def __post_init__(self) -> None:
        require(self.block is None or self.block >= 1, f"decoding.block must be at least 1, got {self.block}")
        require(
            self.tokens_per_step >= 1,
            f"decoding.tokens-per-step must be at least 1, got {self.tokens_per_step}",
        )
        require(self.temperature >= 0, f"decoding.temperature must not be negative, got {self.temperature:g}")
        require(self.refresh >= 1, f"decoding.refresh must be at least 1, got {self.refresh}")
        require(
            self.refresh == 1 or self.cache == "block",
            "decoding.refresh says how long a cache is kept: add --decoding.cache block",
        )
        require(
            self.certainty is None or 0.5 < self.certainty <= 1,
            f"decoding.certainty is a probability in (0.5, 1], got {self.certainty}",
        )

    @property
    def is_exact(self) -> bool:
        """Whether the sampled law is the model's own ρ."""
        alone = self.tokens_per_step == 1 or self.block == 1
        return self.order.exact and alone and self.temperature == 1 and not self.takes_shortcuts

    @property
    def is_ragged(self) -> bool:
        """Whether it needs the loop in which rows come and go."""
        return self.cache != "none" or self.until_end

    @property
    def takes_shortcuts(self) -> bool:
        """Whether it leaves out passes or bits that the same decoder could have: what an audit compares."""
        return self.is_ragged or self.fp8 or self.certainty not in (None, 1.0)

    @property
    def without_shortcuts(self) -> Decoder:
        """The same decoder with every pass made, by the model itself."""
        return replace(self, cache="none", refresh=1, until_end=False, certainty=None, fp8=False)

    def require_weights(self, denoiser: Denoiser) -> None:
        """Refuse a model in eight bits that was not asked for, and one that is not where it was."""
        require(
            denoiser.fp8 == self.fp8,
            f"decoding.fp8 is {self.fp8}, and the model given has fp8 {denoiser.fp8}: take the one that "
            "`dtm.models.merging.for_decoding(model, decoder.fp8)` returns",
        )


def quotas(positions: int, tokens_per_step: int) -> list[int]:
    """How many tokens each step reveals: as even as possible, larger shares first.

    >>> quotas(7, 2)
    [2, 2, 2, 1]
    >>> quotas(10, 4)
    [4, 3, 3]
    """
    steps = -(-positions // tokens_per_step)
    share, extra = divmod(positions, steps)
    return [share + (step < extra) for step in range(steps)]


@torch.no_grad()
def decode(
    denoiser: Denoiser, prompts: Prompts, length: int, decoder: Decoder, generator: torch.Generator
) -> Completions:
    """Complete each prompt with ``length`` tokens, recording the step that revealed each of them."""
    decoder.require_weights(denoiser)
    width = prompts.tokens.shape[1]
    tokens = torch.nn.functional.pad(prompts.tokens, (0, length), value=denoiser.mask_id)
    attention = torch.nn.functional.pad(prompts.attention, (0, length), value=True)
    mask = where_padded(attention)
    is_completion = torch.zeros_like(attention)
    is_completion[:, width:] = True
    masked = is_completion.clone()
    revealed_at = torch.full_like(tokens, -1)
    step = 0
    for start in range(width, width + length, decoder.block or length):
        stop = min(start + (decoder.block or length), width + length)
        block = torch.zeros_like(masked)
        block[:, start:stop] = True
        for quota in quotas(stop - start, decoder.tokens_per_step):
            candidates = masked & block
            if decoder.certainty is None:
                live = torch.arange(len(tokens), device=tokens.device)
            else:  # rows that have finished the block early leave the batch
                live = _unfinished(candidates.any(1))
                if len(live) == 0:
                    break
            chosen, drawn = _reveal(
                denoiser,
                tokens[live],
                None if mask is None else mask[live],
                candidates[live],
                quota,
                decoder,
                generator,
            )
            tokens[live] = torch.where(chosen, drawn, tokens[live])
            masked[live] &= ~chosen
            revealed_at[live] = torch.where(chosen, step, revealed_at[live])
            step += 1
    return Completions(tokens, attention, is_completion, revealed_at)


def _reveal(
    denoiser: Denoiser,
    tokens: Int[Tensor, "B L"],
    attention: Bool[Tensor, "B L"] | None,
    candidates: Bool[Tensor, "B L"],
    quota: int,
    decoder: Decoder,
    generator: torch.Generator,
) -> tuple[Bool[Tensor, "B L"], Int[Tensor, "B L"]]:
    """Positions to reveal in one step, and the tokens drawn there."""
    noise = torch.rand(tokens.shape, generator=generator, device=tokens.device)
    if not decoder.order.reads_posterior and decoder.certainty is None:
        chosen = _highest(noise, candidates, quota)
        log_pi = denoiser(tokens, attention, chosen)
        return chosen, torch.zeros_like(tokens).masked_scatter(chosen, _draw(log_pi, decoder, generator))
    log_pi = denoiser(tokens, attention, candidates)
    proposed = _draw(log_pi, decoder, generator)
    score = torch.zeros(noise.shape, dtype=log_pi.dtype, device=noise.device).masked_scatter(
        candidates, decoder.order.score(log_pi, proposed, noise[candidates].to(log_pi.dtype))
    )
    chosen = _highest(score, candidates, quota)
    if decoder.certainty is not None:
        certain = log_pi.amax(-1).exp() >= decoder.certainty
        chosen |= torch.zeros_like(candidates).masked_scatter(candidates, certain)
    return chosen, torch.zeros_like(tokens).masked_scatter(candidates, proposed)


def _unfinished(rows: Bool[Tensor, " B"]) -> Int[Tensor, " M"]:
    """The rows that are true, filled up with others to one of at most sixteen sizes.

    Kernels are chosen, and some are built, for every new size of a batch.
    """
    share = -(-len(rows) // 16)
    count = -(-int(rows.sum()) // share) * share
    return rows.int().argsort(descending=True, stable=True)[:count]


def _highest(score: Float[Tensor, "B L"], candidates: Bool[Tensor, "B L"], quota: int) -> Bool[Tensor, "B L"]:
    """The ``quota`` best candidates of each row (all of them where fewer are left)."""
    best = score.masked_fill(~candidates, -torch.inf).topk(quota, dim=1).indices
    return torch.zeros_like(candidates).scatter(1, best, True) & candidates


def _draw(log_pi: Float[Tensor, "N V"], decoder: Decoder, generator: torch.Generator) -> Int[Tensor, " N"]:
    """A token for each row by the Gumbel-max rule, or the most likely one at temperature 0."""
    if decoder.temperature == 0:
        return log_pi.argmax(-1)
    exponential = torch.empty_like(log_pi).exponential_(generator=generator)
    return (log_pi / decoder.temperature - exponential.log()).argmax(-1)
