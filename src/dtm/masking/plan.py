r"""Mask plans: rules for the masked and the scored positions of a sequence, once or several times.

Policy-gradient methods differ in the states x_t at which they evaluate a sequence, and in their weights. This
module has the rest, which is common: the end of a completion, noise on the prompt, rows of a batch. Masks are
drawn once and shared by the student, π_a and π_0, so that the noise of the masks cancels in ratios.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.errors import require
from dtm.padding import leads, prompt_width, where_padded
from dtm.records import Completions, MaskedStates, Sequences


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of completions, one row per draw of every sequence; the draws of a sequence are adjacent."""

    is_completion: Bool[Tensor, "B L"]
    index: Int[Tensor, "B L"]
    """Completion positions from 0; -1 and below elsewhere."""
    span: Int[Tensor, " B"]
    """n_i: positions up to and including the first end token."""
    noise: Bool[Tensor, "B L"]
    """Positions that prompt noise masks in addition."""
    draws: int
    """Rows per sequence."""
    lead: Int[Tensor, " B"]
    """Prompt columns in the first block of each completion; 0 if that block starts with the completion."""
    revealed_at: Int[Tensor, "B L"] | None = None
    """Decoding step that revealed each token, if known."""
    log_prob: Float[Tensor, "B L"] | None = None
    """log π_a of each token at that step, if known."""

    @property
    def counted(self) -> Bool[Tensor, "B L"]:
        """Positions that may be scored: the first n_i."""
        return self.is_completion & (self.index < self.span[:, None])


@dataclass(frozen=True, slots=True)
class Masks:
    """The masks that a plan draws."""

    masked: Bool[Tensor, "B L"]
    """Completion positions that the model does not see."""
    scored: Bool[Tensor, "B L"]
    """The masked positions at which its prediction is scored."""
    weight: Float[Tensor, " B"]
    """The factor on the row's sum over S: the mean over draws of ``weight · Σ_S log π`` is the plan's
    estimate of the sequence's log-likelihood."""


@runtime_checkable
class MaskPlan(Protocol):
    """A rule for drawing masks."""

    def draws(self, clean: Sequences) -> int:
        """Number of masks per sequence."""
        ...

    def masks(self, layout: Layout, generator: torch.Generator, update: int) -> Masks:
        """Draw masks for every row; ``update`` counts the updates of an iteration, from 0."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Planned:
    """The masking that follows a mask plan."""

    plan: MaskPlan
    end_id: int | None = None
    """The token that ends a completion; positions after the first are never
    scored. None: all positions count."""
    prompt_noise: float = 0.0
    """Probability that a visible prompt token (or, in `ActiveBlock`, one of an earlier block) is masked."""
    block: int | None = None
    """B of the model's block-causal attention; None: full attention."""
    doubled: bool = False
    """Whether each block is scored given the clean blocks before it, in a pass over x_t and x_1."""

    def __post_init__(self) -> None:
        require(0 <= self.prompt_noise < 1, f"prompt noise must lie in [0, 1), got {self.prompt_noise:g}")

    def states(
        self, clean: Sequences, mask_id: int, generator: torch.Generator, update: int = 0
    ) -> MaskedStates:
        """Draw the masked states; the rows of a sequence are adjacent."""
        draws, device = self.plan.draws(clean), clean.tokens.device
        row = torch.arange(len(clean), device=device).repeat_interleave(draws)
        tokens, attention, is_completion = clean.tokens[row], clean.attention[row], clean.is_completion[row]
        noise = torch.rand(tokens.shape, generator=generator, device=device) < self.prompt_noise
        span = spans(clean, self.end_id)
        layout = Layout(
            is_completion,
            is_completion.long().cumsum(1) - 1,
            span[row],
            noise,
            draws,
            leads(is_completion, self.block),
            *((clean.revealed_at[row], clean.log_prob[row]) if isinstance(clean, Completions) else ()),
        )
        masks = self.plan.masks(layout, generator, update)
        hidden = masks.masked | (noise & attention & ~is_completion)
        return MaskedStates(
            tokens=torch.where(hidden, mask_id, tokens),
            clean=tokens,
            attention=where_padded(attention),
            eligible=masks.scored,
            row_weight=masks.weight,
            row_length=span[row],
            length=is_completion.shape[1] - int(prompt_width(is_completion)),
            batch_rows=len(row),
            batch_length=draws * span.sum(),
            draws=draws,
            doubled=self.doubled,
        )


def spans(clean: Sequences, end_id: int | None) -> Int[Tensor, " N"]:
    """Return n_i: completion positions up to and including the first end token; all without an end token."""
    length = clean.is_completion.sum(1)
    if end_id is None:
        return length
    index = clean.is_completion.long().cumsum(1) - 1
    ends = clean.is_completion & (clean.tokens == end_id)
    return torch.minimum(torch.where(ends, index + 1, length[:, None]).amin(1), length)
