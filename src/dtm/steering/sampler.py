"""The proposal of steering: a model, its decoder and a reward, with a count of what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from dtm.engine.decoder import Decoder
from dtm.engine.generation import decode
from dtm.models.denoiser import Denoiser
from dtm.records import Completions

Judge = Callable[[Completions, Sequence[int]], Sequence[float | None]]
"""Returns the reward of finished rows, given the number of each row's prompt; None: the row has none."""


@dataclass(slots=True)
class Effort:
    """The work of steering so far."""

    forwards: int = 0
    """Forward passes of one row; a pass over a block against a cache counts as one."""
    rewards: int = 0
    """Completions given to the reward."""
    tokens: int = 0
    """Positions that passed through a model."""
    flops: int = 0
    """Floating-point operations of these passes."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """Draws with a model, asks a reward, and counts both."""

    model: Denoiser
    decoder: Decoder
    judge: Judge
    batch: int
    between: Callable[[], None] = lambda: None
    target: Denoiser | None = None
    """The model whose law is tilted, where ``model`` only proposes; None: the same."""
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
        """The reward of each finished row, nan where it has none."""
        if not len(finished):
            return torch.empty(0, dtype=torch.float64, device=finished.tokens.device)
        self.effort.rewards += len(finished)
        found = [torch.nan if reward is None else reward for reward in self.judge(finished, prompts)]
        return torch.tensor(found, dtype=torch.float64, device=finished.tokens.device)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the passes of the models inside the context, and not for whoever else listens to them."""
        models = [self.model] if self.target is None else [self.model, self.target]
        listeners = [model.on_pass for model in models]
        for model in models:
            model.on_pass = self._count
        try:
            yield
        finally:
            for model, listener in zip(models, listeners, strict=True):
                model.on_pass = listener

    def _count(self, model: Denoiser, computed: int, attended: int, scored: int, trained: bool) -> None:
        self.effort.tokens += computed
        self.effort.flops += model.flops(computed, attended, scored)
