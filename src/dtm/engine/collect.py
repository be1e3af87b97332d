"""BuildBuffer [Algorithm 2]: prompts in, rewarded rollouts of π_a out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dtm.engine import Decoder, decode_all
from dtm.errors import RewardError, require
from dtm.models.denoiser import Denoiser
from dtm.random import stream
from dtm.records import Prompts, Rollouts, join_prompts
from dtm.tasks.base import Task
from dtm.tasks.rewards import Scorer


def prompts_in_order(task: Task, first: int, count: int, chunk: int, seed: int) -> Prompts:
    """``count`` training prompts from the ``first`` on, in the order that the seed stands for.

    The order is drawn in chunks and does not depend on how many are asked at a time: two objectives that
    take differently many between updates are still asked the same prompts one after the other.
    """
    parts = []
    for number in range(first // chunk, -(-(first + count) // chunk)):
        drawn = task.prompts("train", chunk, stream(seed, "training prompts", number))
        start = number * chunk
        parts.append(drawn.select(range(max(first - start, 0), min(first + count - start, chunk))))
    return join_prompts(parts)


@dataclass(frozen=True, slots=True)
class Collected:
    """Rewarded rollouts, and the same completions in the form that a person or a reward reads."""

    rollouts: Rollouts
    prompts: list[Any]
    completions: list[Any]
    columns: dict[str, list[Any]]
    """Further columns of the prompts, as rewards receive them."""
    skipped: int
    """Samples left out because their reward was None."""


@dataclass(frozen=True, slots=True)
class Collector:
    """Everything that rollouts need apart from the model, the prompts and the noise."""

    task: Task
    scorer: Scorer
    decoder: Decoder
    batch: int
    """Sequences decoded together."""
    between: Callable[[], None] = lambda: None
    """Called between batches; may raise to stop early (SIGTERM)."""

    def collect(
        self,
        denoiser: Denoiser,
        prompts: Prompts,
        completions: int,
        tilt: float,
        generator: torch.Generator,
        first_group: int = 0,
    ) -> Collected:
        """``completions`` rewarded rollouts for each prompt; prompt j gets group ``first_group + j``."""
        repeated = prompts.repeat(completions)
        finished = decode_all(
            denoiser,
            repeated,
            self.task.completion_length,
            self.decoder,
            generator,
            self.batch,
            self.between,
        )
        views = self.task.read(finished.tokens[:, prompts.tokens.shape[1] :])
        scores = self.scorer(repeated.views, views, repeated.columns)
        keep = [row for row, score in enumerate(scores) if score is not None]
        require(
            bool(keep),
            f"reward {self.scorer.name} returned None for all {len(scores)} completions",
            RewardError,
        )
        device = finished.tokens.device
        rows = torch.tensor(keep, device=device)
        group = first_group + torch.arange(len(prompts), device=device).repeat_interleave(completions)
        rollouts = Rollouts(
            finished.tokens[rows],
            finished.attention[rows],
            finished.is_completion[rows],
            finished.revealed_at[rows],
            torch.tensor([scores[row] for row in keep], dtype=torch.float32, device=device),
            group[rows],
            tilt,
        )
        return Collected(
            rollouts,
            [repeated.views[row] for row in keep],
            [views[row] for row in keep],
            {name: [values[row] for row in keep] for name, values in repeated.columns.items()},
            len(scores) - len(keep),
        )
