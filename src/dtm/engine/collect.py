"""BuildBuffer [Algorithm 2]: prompts in, rewarded rollouts of π_a out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dtm.engine.base import RolloutEngine
from dtm.random import stream
from dtm.records import COMPLETION_TENSORS, Prompts, Rollouts, join_prompts
from dtm.tasks.base import Task
from dtm.tasks.rewards import Scorer


def prompts_in_order(task: Task, first: int, count: int, chunk: int, seed: int) -> Prompts:
    """Return ``count`` training prompts from number ``first`` on, in the seed's order.

    The order is drawn in chunks and does not depend on how many are asked at a time: two methods that take
    different numbers of prompts between updates still see the same prompts in the same order.
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
    """A task, its reward, and the engine that draws; the model is the one that the engine has loaded."""

    task: Task
    scorer: Scorer
    engine: RolloutEngine

    def collect(
        self, prompts: Prompts, completions: int, tilt: float, seed: int, first_group: int = 0
    ) -> Collected:
        """Return ``completions`` rewarded rollouts of each prompt; prompt j is group ``first_group + j``."""
        finished = self.engine.generate(prompts, completions, seed)
        repeated = prompts.repeat(completions)
        views = self.task.read(finished.written[:, : self.task.completion_length])
        scores = self.scorer(repeated.views, views, repeated.columns)
        keep = [row for row, score in enumerate(scores) if score is not None]
        device = finished.tokens.device
        rows = torch.tensor(keep, device=device)
        group = first_group + torch.arange(len(prompts), device=device).repeat_interleave(completions)
        rollouts = Rollouts(
            **{name: getattr(finished, name)[rows] for name in COMPLETION_TENSORS},
            reward=torch.tensor([scores[row] for row in keep], dtype=torch.float32, device=device),
            group=group[rows],
            tilt=tilt,
        )
        return Collected(
            rollouts,
            [repeated.views[row] for row in keep],
            [views[row] for row in keep],
            {name: [values[row] for row in keep] for name, values in repeated.columns.items()},
            len(scores) - len(keep),
        )
