"""The sampler of steering: a model with decoder and reward, which counts passes, tokens and reward calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from dtm.engine.decoder import Decoder
from dtm.engine.generation import decode
from dtm.models.denoiser import Denoiser, heard_by
from dtm.records import Completions

Judge = Callable[[Completions, Sequence[int]], Sequence[float | None]]
"""Function that returns the rewards of finished rows (None: no reward), given each row's prompt number."""


@dataclass(slots=True)
class Effort:
    """Cost of steering so far."""

    forwards: int = 0
    """Forward passes, counted per row; a pass over a block with a cache counts as one."""
    rewards: int = 0
    """Completions that the reward function rated."""
    tokens: int = 0
    """Token positions that models processed."""
    flops: int = 0
    """Floating-point operations of these passes."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """Draw with a model, call a reward, and count the cost of both."""

    model: Denoiser
    decoder: Decoder
    judge: Judge
    batch: int
    between: Callable[[], None] = lambda: None
    target: Denoiser | None = None
    """Model whose law is tilted, if ``model`` is only the proposal; None: the same model."""
    effort: Effort = field(default_factory=Effort)

    def decode(
        self, canvas: Completions, rows: Sequence[int] | None, first: int, stop: int | None, seed: int
    ) -> None:
        """Decode the blocks ``first`` … ``stop`` − 1 of some rows; see `dtm.engine.generation.decode`."""
        self.effort.forwards += decode(
            self.model,
            canvas,
            self.decoder,
            seed=seed,
            batch=self.batch,
            rows=rows,
            first=first,
            stop=stop,
            between=self.between,
        )

    def rewards(self, finished: Completions, prompts: Sequence[int]) -> Float[Tensor, " M"]:
        """Return the reward of each finished row, nan without a reward."""
        if not len(finished):
            return torch.empty(0, dtype=torch.float64, device=finished.tokens.device)
        self.effort.rewards += len(finished)
        found = [torch.nan if reward is None else reward for reward in self.judge(finished, prompts)]
        return torch.tensor(found, dtype=torch.float64, device=finished.tokens.device)

    def counted(self) -> AbstractContextManager[None]:
        """Count the passes of the models inside the context, and hide them from other listeners."""
        return heard_by(self._count, *([self.model] if self.target is None else [self.model, self.target]))

    def _count(self, model: Denoiser, computed: int, attended: int, scored: int, trained: bool) -> None:
        self.effort.tokens += computed
        self.effort.flops += model.flops(computed, attended, scored)
