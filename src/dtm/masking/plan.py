r"""Mask plans: which positions of a completion are masked and scored, once or several times per sequence.

Policy-gradient methods differ in the states x_t at which they evaluate a sequence, and in their weights. All
else (the end of a completion, noise on the prompt, rows of a batch) is the same and lives here. A plan is
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
    """Where completions lie, a row for every draw of every sequence; the draws of one are neighbours."""

    is_completion: Bool[Tensor, "B L"]
    index: Int[Tensor, "B L"]
    """Completion positions from 0; -1 and below elsewhere."""
    span: Int[Tensor, " B"]
    """n_i: positions up to and including the first end token."""
    noise: Bool[Tensor, "B L"]
    """Where prompt noise masks a position that is not masked already."""
    draws: int
    """Rows of a sequence."""
    lead: Int[Tensor, " B"]
    """Columns of the prompt in the block in which each completion begins; 0 if blocks begin where it does."""
    revealed_at: Int[Tensor, "B L"] | None = None
    """The decoding step that revealed each token, where that is known."""
    log_prob: Float[Tensor, "B L"] | None = None
    """log π_a of each token at that step, where it is known."""

    @property
    def counted(self) -> Bool[Tensor, "B L"]:
        """The first n_i positions, which may be scored."""
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
        """How often each sequence is masked."""
        ...

    def masks(self, layout: Layout, generator: torch.Generator, update: int) -> Masks:
        """Masks for every row; ``update`` counts the updates of an iteration, from 0."""
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
    """Chance that a visible prompt token (and, in `ActiveBlock`, one of an earlier block) is masked too."""
    block: int | None = None
    """B of the model's block-causal attention; None: full attention."""
    doubled: bool = False
    """Whether each block is scored given the clean blocks before it, in a pass over x_t and x_1."""

    def __post_init__(self) -> None:
        require(0 <= self.prompt_noise < 1, f"prompt noise must lie in [0, 1), got {self.prompt_noise:g}")

    def states(
        self, clean: Sequences, mask_id: int, generator: torch.Generator, update: int = 0
    ) -> MaskedStates:
        """The rows of every sequence, next to each other."""
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
    """n_i: completion positions up to and including the first end token; all where there is none."""
    length = clean.is_completion.sum(1)
    if end_id is None:
        return length
    index = clean.is_completion.long().cumsum(1) - 1
    ends = clean.is_completion & (clean.tokens == end_id)
    return torch.minimum(torch.where(ends, index + 1, length[:, None]).amin(1), length)
