"""Steer a model on a task: with its prompts, its decoding of completions to text, and its reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dtm.engine.decoder import Decoder
from dtm.models.denoiser import Denoiser
from dtm.records import Completions, Prompts
from dtm.steering.sampler import Judge
from dtm.steering.steer import Steered, Steering, steer
from dtm.tasks.base import Task
from dtm.tasks.rewards import Scorer


@dataclass(frozen=True, slots=True)
class Answers:
    """Steered completions of a task's prompts, as rewards read them."""

    steered: Steered
    prompts: Prompts
    completions: list[Any]
    """Completions of all rows; those of a prompt are adjacent."""

    @property
    def answers(self) -> list[Any]:
        """Completion per prompt that the method returns."""
        return [self.completions[row] for row in self.steered.answer.tolist()]

    @property
    def rewards(self) -> list[float]:
        """Rewards of the answers."""
        rewards: list[float] = self.steered.reward[self.steered.answer].tolist()
        return rewards


def judge_of(task: Task, scorer: Scorer, prompts: Prompts) -> Judge:
    """Return the judge of these prompts' completions: the reward with its deadline and failure policy."""

    def judge(rows: Completions, numbers: Sequence[int]) -> list[float | None]:
        views = task.read(rows.written[:, : task.completion_length])
        columns = {name: [values[n] for n in numbers] for name, values in prompts.columns.items()}
        return scorer.score([prompts.views[n] for n in numbers], views, columns).rewards

    return judge


def steer_task(
    model: Denoiser,
    task: Task,
    scorer: Scorer,
    prompts: Prompts,
    method: Steering,
    decoder: Decoder,
    *,
    seed: int,
    batch: int,
    target: Denoiser | None = None,
) -> Answers:
    """Steer a model on prompts of a task; other arguments as in `steer`."""
    judge = judge_of(task, scorer, prompts)
    steered = steer(
        model, prompts, task.completion_length, method, judge, decoder, seed=seed, batch=batch, target=target
    )
    views = task.read(steered.rows.written[:, : task.completion_length])
    return Answers(steered, prompts, views)
