"""BuildBuffer [Algorithm 2]: prompts in, rewarded rollouts of π_a out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dtm.distributed import ALONE, Group
from dtm.engine.base import RolloutEngine
from dtm.padding import join_prompts
from dtm.random import stream
from dtm.records import Completions, Prompts, Rollouts
from dtm.tasks.base import Task
from dtm.tasks.rewards import Scorer, Scores
from dtm.workers import Check, go_on


def prompts_in_order(task: Task, first: int, count: int, chunk: int, seed: int) -> Prompts:
    """Return ``count`` training prompts from number ``first`` on, in the seed's order.

    The order is drawn in chunks and does not depend on ``count``: two methods that take
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
    """Rewarded rollouts, and the same completions as text, or in the form that the reward reads."""

    rollouts: Rollouts
    prompts: list[Any]
    completions: list[Any]
    columns: dict[str, list[Any]]
    """Further columns of the prompts, as rewards receive them."""
    skipped: int
    """Samples left out because their reward was None."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Finished rows, the completions in the form that the reward reads, and their scores."""

    finished: Completions
    views: list[Any]
    scores: Scores


@dataclass(frozen=True, slots=True)
class Collector:
    """Draw rollouts of a task with an engine and score them with the reward.

    In a ``group`` every process draws and scores its part of the rows, and all processes return all rows.
    """

    task: Task
    scorer: Scorer
    engine: RolloutEngine
    group: Group = ALONE
    between: Check = go_on
    """Called about every second while a reward runs; may raise to stop."""

    def collect(
        self,
        prompts: Prompts,
        completions: int,
        tilt: float,
        seed: int,
        first_group: int = 0,
        ahead: Callable[[], Drawn] | None = None,
    ) -> Collected:
        """Return ``completions`` rewarded rollouts of each prompt; prompt j is group ``first_group + j``.

        ``ahead`` returns the rows of this process if `share` is drawing them already.
        """
        drawn, repeated = self.draw(prompts, completions, seed, ahead), prompts.repeat(completions)
        finished, views, scores = drawn.finished, drawn.views, drawn.scores.rewards
        keep = [row for row, score in enumerate(scores) if score is not None]
        device = finished.tokens.device
        rows = torch.tensor(keep, device=device)
        group = first_group + torch.arange(len(prompts), device=device).repeat_interleave(completions)
        rollouts = Rollouts(
            **finished.select(rows).tensors(),
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

    def draw(
        self, prompts: Prompts, completions: int, seed: int, ahead: Callable[[], Drawn] | None = None
    ) -> Drawn:
        """Return ``completions`` scored rows of each prompt; at least one of all has a reward."""
        parts = self.group.together(ahead or (lambda: self.share(prompts, completions, seed)))
        drawn = parts[0] if len(parts) == 1 else _joined(parts, prompts.tokens.device)
        self.scorer.require_some(drawn.scores)
        return drawn

    def share(self, prompts: Prompts, completions: int, seed: int) -> Drawn:
        """Draw and score the rows of this process; those of several processes go to the CPU."""
        asked = prompts.repeat(completions)
        own = self.group.share(len(asked))
        rows, part = None if len(own) == len(asked) else own, slice(own.start, own.stop)
        finished = self.engine.generate(prompts, completions, seed, rows)
        views = self.task.read(finished.written[:, : self.task.completion_length]) if own else []
        columns = {name: values[part] for name, values in asked.columns.items()}
        scores = self.scorer.score(asked.views[part], views, columns, self.between)
        return Drawn(finished if self.group.size == 1 else finished.to(torch.device("cpu")), views, scores)


def _joined(parts: Sequence[Drawn], device: torch.device) -> Drawn:
    """The rows of several processes, one after the other, on a device."""
    finished, scores = [part.finished for part in parts], [part.scores for part in parts]
    rows = {name: torch.cat([each.tensors()[name] for each in finished]) for name in finished[0].tensors()}
    return Drawn(
        Completions(**rows).to(device),
        [view for part in parts for view in part.views],
        Scores(
            [reward for each in scores for reward in each.rewards],
            sum((each.reasons for each in scores), Counter()),
        ),
    )
