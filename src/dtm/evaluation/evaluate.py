"""Evaluate a model on a task's held-out prompts, the same prompts every time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dtm.config import EvaluationConfig
from dtm.engine import Decoder
from dtm.engine.collect import Collector
from dtm.evaluation.length import effective_lengths
from dtm.evaluation.reveals import record
from dtm.models.denoiser import Denoiser
from dtm.random import derived_seed, stream
from dtm.records import Prompts
from dtm.tasks.base import Task

EVALUATION_SEED = 20_260
"""Seed of held-out prompts and decoding noise, independent of the run's seed, so that runs are comparable."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Measures of a model, and the samples that they were computed on."""

    measures: dict[str, float]
    """The task's, and "length": the mean number of tokens before the end token."""
    best: float | None
    """Highest possible mean reward on these prompts, if the task knows it."""
    prompts: list[Any]
    completions: list[Any]
    rewards: list[float]
    replays: list[dict[str, Any]] = field(default_factory=list)
    """The unmasking of a few completions (see `dtm.evaluation.reveals`); empty without a model."""


def held_out(task: Task, config: EvaluationConfig) -> Prompts:
    """Return the prompts of an evaluation."""
    return task.prompts(config.split, config.prompts, stream(EVALUATION_SEED, "test-prompts"))


def before_repeats(prompts: Prompts) -> int:
    """Return the number of prompts up to the last one that is not a repeat.

    Rows with equal prompts and other columns, which a reward may read, are not repeats.
    """
    rows = zip(prompts.views, *prompts.columns.values(), strict=True)
    seen: set[str] = set()
    last = 0
    for number, row in enumerate(map(str, rows), start=1):
        if row not in seen:
            seen.add(row)
            last = number
    return last


def evaluation_decoder(decoder: Decoder, config: EvaluationConfig) -> Decoder:
    """Return the decoder of evaluations: a run's own, at the evaluation's temperature if that is set."""
    return decoder if config.temperature is None else replace(decoder, temperature=config.temperature)


def evaluate(
    collector: Collector,
    config: EvaluationConfig,
    device: torch.device,
    model: Denoiser | None = None,
    base: Denoiser | None = None,
) -> Evaluation:
    """Complete the held-out prompts with the collector's engine and measure the completions.

    With the ``model`` that the engine has loaded, the reveals of a few completions are recorded too, and with
    its ``base`` the KL between the two along them.
    """
    prompts = held_out(collector.task, config)
    seed = derived_seed(EVALUATION_SEED, "evaluation")
    collected = collector.collect(prompts.to(device), config.completions, 0.0, seed)
    rollouts = collected.rollouts
    # The highest possible reward is known only for the task's own reward.
    own = collector.scorer.function == collector.task.reward
    measures = collector.task.measure(
        collected.prompts, collected.completions, rollouts.reward, rollouts.group, **collected.columns
    )
    length = float(effective_lengths(rollouts.written, collector.task.eos_id).float().mean())
    return Evaluation(
        {**measures, "length": length},
        collector.task.best(prompts.views) if own else None,
        collected.prompts,
        collected.completions,
        rollouts.reward.tolist(),
        [] if model is None else record(model, collector.task, rollouts, base),
    )
