"""How long a run will take on this machine, measured on a few rows before it starts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from dtm.decoding import decode
from dtm.interpolants import MaskCount
from dtm.models.denoiser import Denoiser
from dtm.objectives import mdm_loss
from dtm.random import stream
from dtm.tasks.base import Task
from dtm.training import build
from dtm.training.config import RunConfig

ROWS = 16


def training_seconds(config: RunConfig, task: Task, model: Denoiser, device: torch.device) -> float:
    """Rollouts, updates and evaluations up to the final tilt, if no phase ends early.

    An update costs a forward and a backward pass of the student and a forward pass of π_a.
    """
    tilt, replay, evaluation = config.tilt, config.replay, config.evaluation
    step = tilt.step_cap if tilt.step == "auto" else tilt.step
    phases = math.ceil(tilt.final / step - 1e-9)
    refreshes = (tilt.max_steps - 1) // replay.refresh_every + 1  # the last one to measure the phase
    rollouts = replay.completions * (replay.prompts + refreshes * replay.refresh_prompts)
    measured = (phases + 1) * evaluation.prompts * evaluation.completions
    update = _update(config, task, model, device) + _forward(config, task, model, device)
    updates = phases * tilt.max_steps * config.optimizer.batch
    return (phases * rollouts + measured) * _rollout(config, task, model, device) + updates * update


def pretraining_seconds(config: RunConfig, task: Task, model: Denoiser, device: torch.device) -> float:
    """All updates of `dtm pretrain`."""
    return config.pretrain.steps * config.pretrain.batch * _update(config, task, model, device)


def spoken(seconds: float) -> str:
    """A duration as one would say it.

    >>> spoken(50), spoken(600), spoken(9000), spoken(200_000)
    ('50 seconds', '10 minutes', '2.5 hours', '2.3 days')
    """
    for size, unit in ((86_400, "days"), (3600, "hours")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"


def _rollout(config: RunConfig, task: Task, model: Denoiser, device: torch.device) -> float:
    """Seconds to decode one completion, on as many as a large model decodes in seconds."""
    rows = max(2, min(ROWS, config.decoding.batch, int(0.1 / _forward(config, task, model, device))))
    prompts = task.prompts("train", rows, stream(0, "forecast")).to(device)
    decoder, noise = build.build_decoder(config.decoding), stream(0, "forecast", device=device)
    with build.autocast(config, device):
        return _seconds(lambda: decode(model, prompts, task.completion_length, decoder, noise)) / rows


def _forward(config: RunConfig, task: Task, model: Denoiser, device: torch.device) -> float:
    """Seconds of a row's forward pass."""
    examples = task.examples("train", ROWS, stream(0, "forecast", device=device))
    with torch.no_grad(), build.autocast(config, device):
        model.hidden(examples.tokens[:1])  # warms up
        return _seconds(lambda: model.hidden(examples.tokens)) / ROWS


def _update(config: RunConfig, task: Task, model: Denoiser, device: torch.device) -> float:
    """Seconds of a row's forward and backward pass."""
    noise = stream(0, "forecast", device=device)
    examples = task.examples("train", ROWS, noise)
    states = MaskCount(config.decoding.block).states(examples, model.mask_id, noise)

    def update() -> None:
        with build.autocast(config, device):
            loss = mdm_loss(model, states)
        torch.autograd.backward(loss)

    seconds = _seconds(update) / ROWS
    model.zero_grad()
    return seconds


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin
