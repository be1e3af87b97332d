"""Measuring a model on a task's held-out prompts, the same prompts every time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from dtm.config import EvaluationConfig
from dtm.engine.collect import Collector
from dtm.evaluation.length import effective_lengths
from dtm.models.denoiser import Denoiser
from dtm.random import stream
from dtm.records import Prompts
from dtm.tasks.base import Task

EVALUATION_SEED = 20_260
"""Held-out prompts and decoding noise come from this seed, whatever the run's own: runs stay comparable."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Measures, and the samples behind them."""

    measures: dict[str, float]
    """The task's, and "length": the mean number of tokens before the end token."""
    best: float | None
    """The highest mean reward possible on these prompts, where the task knows it."""
    prompts: list[Any]
    completions: list[Any]
    rewards: list[float]


def held_out(task: Task, config: EvaluationConfig) -> Prompts:
    """The prompts that an evaluation asks."""
    return task.prompts(config.split, config.prompts, stream(EVALUATION_SEED, "test-prompts"))


def evaluate(
    denoiser: Denoiser,
    collector: Collector,
    config: EvaluationConfig,
    device: torch.device,
) -> Evaluation:
    """Decode the held-out prompts and measure the completions."""
    prompts = held_out(collector.task, config)
    generator = stream(EVALUATION_SEED, "evaluation", device=device)
    if config.temperature is not None:
        collector = replace(collector, decoder=replace(collector.decoder, temperature=config.temperature))
    collected = collector.collect(denoiser, prompts.to(device), config.completions, 0.0, generator)
    rollouts = collected.rollouts
    # The best possible is known for the task's own reward alone.
    own = collector.scorer.function == collector.task.reward
    measures = collector.task.measure(
        collected.prompts, collected.completions, rollouts.reward, rollouts.group, **collected.columns
    )
    written = rollouts.tokens[:, prompts.tokens.shape[1] :]
    length = float(effective_lengths(written, collector.task.eos_id).float().mean())
    return Evaluation(
        {**measures, "length": length},
        collector.task.best(prompts.views) if own else None,
        collected.prompts,
        collected.completions,
        rollouts.reward.tolist(),
    )
