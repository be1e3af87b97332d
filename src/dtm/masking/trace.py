"""Masks along the decoder's own trace: all its steps, merged into segments, or a random choice of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.errors import require
from dtm.masking.plan import Layout, Masks
from dtm.padding import prompt_width, where_padded
from dtm.records import Completions, MaskedStates, Sequences

EVEN = 0.2
"""Share of the draws that is uniform over the steps of a rollout; it bounds the weight of a step."""
MOST = 50.0
"""Largest surprise of a token, in nats, that counts for the choice of steps."""


@final
@dataclass(frozen=True, slots=True)
class TraceSegments:
    """Each run of ``merged`` decoding steps is a segment: earlier tokens are visible, its own are scored.

    With one step per segment and one token per step, the sum over segments is the log-probability with which
    the decoder chose these tokens, given the order it chose.
    """

    merged: int = 8
    count: int | None = None
    """Cut each trace into this many segments of equally many steps instead (d2)."""

    def __post_init__(self) -> None:
        require(self.merged >= 1, f"a segment needs at least one decoding step, got {self.merged}")
        require(self.count is None or self.count >= 1, f"a trace has at least one segment, got {self.count}")

    def draws(self, clean: Sequences) -> int:
        """Number of rows per sequence: segments of the longest trace; some rows may be empty."""
        return int(self._segments(_with_trace(clean).revealed_at).max()) + 1

    def _segments(self, revealed_at: Int[Tensor, "B L"]) -> Int[Tensor, "B L"]:
        if self.count is None:
            return segments(revealed_at, self.merged)
        return equal_segments(revealed_at, self.count)

    def masks(self, layout: Layout, generator: torch.Generator, update: int) -> Masks:
        """Return the masks; the weight is the number of rows, so that their mean is the sum over segments."""
        assert layout.revealed_at is not None
        segment = self._segments(layout.revealed_at)
        own = torch.arange(len(segment), device=segment.device)[:, None] % layout.draws
        masked = layout.is_completion & (segment >= own)
        weight = torch.full((len(segment),), float(layout.draws), device=segment.device)
        return Masks(masked, layout.counted & (segment == own), weight)


def segments(revealed_at: Int[Tensor, "B L"], merged: int) -> Int[Tensor, "B L"]:
    """Return the segment of each token: the rank of its step among the row's steps, divided by ``merged``.

    Prompts (step −1) have segment −1.
    """
    steps, order = revealed_at.sort(dim=1)
    fresh = torch.zeros_like(steps)
    fresh[:, 1:] = steps[:, 1:] > steps[:, :-1]
    rank = fresh.cumsum(1) - (steps[:, :1] < 0).long()  # −1 on a prompt, 0 at the first step
    ranks = torch.zeros_like(steps).scatter(1, order, rank)
    return torch.where(revealed_at < 0, -1, ranks // merged)


def equal_segments(revealed_at: Int[Tensor, "B L"], count: int) -> Int[Tensor, "B L"]:
    """The segment ⌊rank · N / T⌋ of each token: N = ``count`` equal parts of a row's T steps, at most T."""
    rank = segments(revealed_at, 1)
    steps = rank.amax(1, keepdim=True) + 1
    parts = steps.clamp(max=count)
    return torch.where(rank < 0, -1, rank * parts // steps.clamp(min=1))


@final
@dataclass(frozen=True, slots=True)
class SampledSteps:
    """``count`` decoding steps per rollout: the state before a step is visible, the step's tokens are scored.

    A step has the probability p_s of `step_law`, and its row the weight 1/p_s: the mean over rows of
    weight · Σ_S log π has the log-probability of the whole trace as its mean.
    """

    count: int
    even: float = EVEN
    """Share of the draws that is uniform over the steps; 1: all draws."""
    mean: bool = False
    """Divide by the number of steps that could be drawn: the mean over steps instead of the sum."""

    def __post_init__(self) -> None:
        require(self.count >= 1, f"at least one decoding step must be drawn, got {self.count}")
        require(0 < self.even <= 1, f"the share of evenly drawn steps must lie in (0, 1], got {self.even:g}")

    def draws(self, clean: Sequences) -> int:
        """Number of rows per sequence: ``count``."""
        _with_trace(clean)
        return self.count

    def masks(self, layout: Layout, generator: torch.Generator, update: int) -> Masks:
        """Draw the masks; steps that reveal nothing before the end are never drawn."""
        assert layout.revealed_at is not None
        assert layout.log_prob is not None
        first = slice(None, None, layout.draws)
        steps, written = layout.revealed_at[first], layout.counted[first]
        law = step_law(steps, layout.log_prob[first], written, self.even)
        step = spread_steps(law, self.count, generator)
        weight = 1 / law.gather(1, step)
        if self.mean:
            weight = weight / (law > 0).sum(1, keepdim=True)
        step, weight = step.flatten()[:, None], weight.flatten().float()
        masked = layout.is_completion & (layout.revealed_at >= step)
        return Masks(masked, layout.counted & (layout.revealed_at == step), weight)


def _with_trace(clean: Sequences) -> Completions:
    require(isinstance(clean, Completions), "trace segments need rollouts, with their decoding steps")
    assert isinstance(clean, Completions)
    return clean


def visited(clean: Completions, step: Int[Tensor, " B"], mask_id: int) -> MaskedStates:
    """Return the x_t before a decoding step of each sequence; the tokens revealed by the step are scored."""
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
    """Draw ``count`` decoding steps per rollout, with weights such that Σ weight · ℓ_s has the mean Σ_s ℓ_s.

    Step s has the probability p_s, in proportion to π_a's surprise −log π_a at the tokens it revealed apart
    from a share `EVEN`; its weight is 1 / (count · p_s). One uniform number places all draws of a rollout.
    """
    law = step_law(rollouts.revealed_at, rollouts.log_prob, _drawn(rollouts), EVEN)
    step = spread_steps(law, count, generator)
    return step, 1 / (count * law.gather(1, step))


def step_law(
    revealed_at: Int[Tensor, "N L"], log_prob: Float[Tensor, "N L"], written: Bool[Tensor, "N L"], even: float
) -> Float[Tensor, "N T"]:
    """Return the probability p_s of every decoding step that revealed a ``written`` token.

    They sum to 1: a share ``even`` is uniform, the rest is in proportion to the surprise −log π_a.
    """
    device, steps = revealed_at.device, int(revealed_at.max()) + 1 if len(revealed_at) else 1
    shape, place = (len(revealed_at), steps), revealed_at.clamp(min=0)
    surprise = torch.zeros(shape, dtype=torch.float64, device=device)
    surprise = surprise.scatter_add(1, place, -log_prob.double().clamp(-MOST, 0) * written)
    taken = torch.zeros(shape, dtype=torch.float64, device=device).scatter_add(1, place, written.double()) > 0
    alike = taken / taken.sum(1, keepdim=True)
    total = surprise.sum(1, keepdim=True)
    return torch.where(total > 0, even * alike + (1 - even) * surprise / total, alike)


def spread_steps(law: Float[Tensor, "N T"], count: int, generator: torch.Generator) -> Int[Tensor, "N M"]:
    """Draw ``count`` steps per row by systematic sampling, with one uniform number per row."""
    reached = law.cumsum(1)
    start = torch.rand(len(law), 1, generator=generator, dtype=torch.float64, device=law.device)
    ticks = (torch.arange(count, device=law.device) + start) / count
    # Rounding may leave the last sum below 1: the last step is the last with a share.
    return torch.searchsorted(reached / reached[:, -1:], ticks).clamp(max=law.shape[1] - 1)


def _drawn(clean: Completions) -> Bool[Tensor, "B L"]:
    """Return which tokens the decoder drew, without end tokens that were filled in, whose log π is 0.

    Tokens of probability 1 have log π = 0 too; two models agree there. Without a recorded log π all count.
    """
    drawn = clean.is_completion & (clean.log_prob < 0)
    return torch.where(drawn.any(1, keepdim=True), drawn, clean.is_completion)
