"""The states that the decoder visited: one at a time, or a few steps merged into one (TraceRL's masks)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.errors import require
from dtm.masking.plan import Layout, Masks
from dtm.records import Completions, MaskedStates, Sequences, prompt_width, where_padded

EVEN = 0.2
"""Share of the draws that goes to all steps of a rollout alike; bounds the weight of any step."""
MOST = 50.0
"""Nats of surprise at one token, at most, that count for the choice of steps."""


@final
@dataclass(frozen=True, slots=True)
class TraceSegments:
    """Each run of ``merged`` decoding steps is a segment: earlier tokens are visible, its own are scored.

    With one step per segment and one token per step, the sum over segments is the log-probability with which
    the decoder chose these tokens, given the order it chose.
    """

    merged: int = 8

    def __post_init__(self) -> None:
        require(self.merged >= 1, f"a segment needs at least one decoding step, got {self.merged}")

    def draws(self, clean: Sequences) -> int:
        """Segments of the longest trace; shorter ones have empty rows at the end."""
        require(
            isinstance(clean, Completions), "trace segments need rollouts: examples have no decoding steps"
        )
        assert isinstance(clean, Completions)
        return int(segments(clean.revealed_at, self.merged).max()) + 1

    def masks(self, layout: Layout, generator: torch.Generator, update: int) -> Masks:
        """Weight: the number of rows, so that their mean is the sum over segments."""
        assert layout.revealed_at is not None
        segment = segments(layout.revealed_at, self.merged)
        own = torch.arange(len(segment), device=segment.device)[:, None] % layout.draws
        masked = layout.is_completion & (segment >= own)
        weight = torch.full((len(segment),), float(layout.draws), device=segment.device)
        return Masks(masked, layout.counted & (segment == own), weight)


def segments(revealed_at: Int[Tensor, "B L"], merged: int) -> Int[Tensor, "B L"]:
    """The segment of each token: its step's rank among the row's distinct steps, divided by ``merged``.

    Prompts (step −1) have segment −1.
    """
    steps, order = revealed_at.sort(dim=1)
    fresh = torch.zeros_like(steps)
    fresh[:, 1:] = steps[:, 1:] > steps[:, :-1]
    rank = fresh.cumsum(1) - (steps[:, :1] < 0).long()  # −1 on a prompt, 0 at the first step
    ranks = torch.zeros_like(steps).scatter(1, order, rank)
    return torch.where(revealed_at < 0, -1, ranks // merged)


def visited(clean: Completions, step: Int[Tensor, " B"], mask_id: int) -> MaskedStates:
    """The x_t that the decoder saw before a step of each sequence; the tokens that it revealed are scored."""
    hidden = clean.is_completion & (clean.revealed_at >= step[:, None])
    at_step = _drawn(clean) & (clean.revealed_at == step[:, None])
    length = clean.is_completion.sum(1)
    return MaskedStates(
        tokens=torch.where(hidden, mask_id, clean.tokens),
        clean=clean.tokens,
        attention=where_padded(clean.attention),
        eligible=at_step,
        row_weight=torch.ones(len(step), device=step.device),
        row_length=length,
        length=clean.is_completion.shape[1] - int(prompt_width(clean.is_completion)),
        batch_rows=len(step),
        batch_length=length.sum(),
    )


def choose_steps(
    rollouts: Completions, count: int, generator: torch.Generator
) -> tuple[Int[Tensor, "N M"], Float[Tensor, "N M"]]:
    """``count`` decoding steps of each rollout and their weights: Σ weight · ℓ_s has the mean Σ_s ℓ_s.

    Step s has the probability p_s, in proportion to π_a's surprise −log π_a at the tokens it revealed apart
    from a share `EVEN`; its weight is 1 / (count · p_s). One uniform number places all draws of a rollout.
    """
    device, steps = rollouts.tokens.device, int(rollouts.revealed_at.max()) + 1 if len(rollouts) else 1
    shape, place = (len(rollouts), steps), rollouts.revealed_at.clamp(min=0)
    written = _drawn(rollouts).double()
    surprise = torch.zeros(shape, dtype=torch.float64, device=device)
    surprise = surprise.scatter_add(1, place, -rollouts.log_prob.double().clamp(-MOST, 0) * written)
    taken = torch.zeros(shape, dtype=torch.float64, device=device).scatter_add(1, place, written) > 0
    even = taken / taken.sum(1, keepdim=True)
    total = surprise.sum(1, keepdim=True)
    probability = torch.where(total > 0, EVEN * even + (1 - EVEN) * surprise / total, even)
    reached = probability.cumsum(1)
    start = torch.rand(len(rollouts), 1, generator=generator, dtype=torch.float64, device=device)
    ticks = (torch.arange(count, device=device) + start) / count
    step = torch.searchsorted(reached / reached[:, -1:], ticks).clamp(max=steps - 1)
    return step, 1 / (count * probability.gather(1, step))


def _drawn(clean: Completions) -> Bool[Tensor, "B L"]:
    """The tokens that the decoder drew, without end tokens that were filled in: these have log π = 0.

    So has a token of probability 1, at which two models agree. Rows without a recorded log π count whole.
    """
    drawn = clean.is_completion & (clean.log_prob < 0)
    return torch.where(drawn.any(1, keepdim=True), drawn, clean.is_completion)
