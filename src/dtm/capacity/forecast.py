"""How long a run will take on this machine: measured on a few rows, or counted in multiplications.

Small models are timed. A model of billions of weights is not loaded just to be asked: its multiplications
are counted, and the machine's rate is that of a matrix product.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dtm.baselines import GDPOConfig, SPGConfig, TraceRLConfig, VRPOConfig
from dtm.capacity import preflight
from dtm.capacity.flops import rollout_flops, update_flops
from dtm.config import RunConfig
from dtm.engine import generate
from dtm.loop import build
from dtm.loop.annealing import phase_prompts, phases
from dtm.masking import MaskCount
from dtm.methods import mdm_loss
from dtm.models.denoiser import Denoiser
from dtm.models.merging import for_decoding
from dtm.models.shape import TransformerConfig
from dtm.random import stream
from dtm.records import MaskedStates
from dtm.tasks.base import Task

ROWS = 16
REACHED, REACHED_NF4 = 0.75, 0.6
"""Shares of a large product's rate that large models reach on a GPU: 0.72 to 0.83 at 8B on an H200, and 0.61
with weights in four bits."""
TRACE_STEPS = 64
"""Decoding steps that TraceRL's rows are guessed from."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a run does up to the final tilt (or iteration) if no phase ends early."""

    rollouts: int
    """Completions decoded, for buffers, refreshes and evaluations."""
    rows: int
    """Rows of all updates."""


def work(config: RunConfig) -> Work:
    """All rollouts and updates of `dtm train`."""
    tilt, replay, evaluation = config.tilt, config.replay, config.evaluation
    baseline = config.objective.baseline
    if baseline is None:
        step = tilt.step_cap if tilt.step == "auto" else tilt.step
        refreshes = (tilt.max_steps - 1) // replay.refresh_every
        drawn = replay.prompts + refreshes * replay.refresh_prompts + replay.closing_prompts
        rows = tilt.max_steps * config.optimizer.batch
    else:
        step, drawn = 1.0, phase_prompts(config)
        rows = baseline.updates * drawn * config.completions_seen * rows_per_rollout(config)
    count = phases(tilt.final, step)
    rollouts = count * replay.completions * drawn
    evaluations = math.ceil(count / evaluation.every) + 1
    return Work(
        rollouts + evaluations * evaluation.prompts * evaluation.completions,
        count * rows,
    )


def rows_per_rollout(config: RunConfig) -> int:
    """Masked states of one rollout in an update; TraceRL's are as many as decoding has segments, guessed."""
    match config.objective.baseline:
        case SPGConfig(masks="all"):
            return 1
        case SPGConfig(draws=rows) | VRPOConfig(draws=rows) | GDPOConfig(nodes=rows):
            return rows
        case TraceRLConfig(merged=merged):
            return max(1, TRACE_STEPS // merged)
    return 1


def training_seconds(config: RunConfig, task: Task, model: Denoiser, device: torch.device) -> float:
    """An update costs a forward and a backward pass of the student and a forward pass of π_a."""
    done = work(config)
    masks = MaskCount(build.block_size(config.objective.block, config.decoding))
    update = _update(config, task, model, device, masks) + _forward(config, task, model, device)
    return done.rollouts * _rollout(config, task, model, device) + done.rows * update


def counted_seconds(config: RunConfig, task: Task, shape: TransformerConfig, device: torch.device) -> float:
    """The same from the number of multiplications, at some share of the rate of a large matrix product.

    Ends of completions, which `decoding.until_end` would use, cannot be foreseen.
    """
    prompt = task.prompts("train", ROWS, stream(0, "forecast")).tokens.shape[1]
    completion, decoding, done = task.completion_length, config.decoding, work(config)
    block = decoding.block or completion
    refresh = decoding.refresh if decoding.cache == "block" else None
    together = min(config.replay.completions, decoding.batch)
    rollout = rollout_flops(shape, prompt, completion, block, decoding.tokens_per_step, refresh, together)
    recompute = preflight.recomputed_blocks(config, task, shape) / shape.layers
    lora, merge = build.build_lora(config), config.adapter.merge
    row = update_flops(shape, prompt + completion, block / 2, lora, recompute, merge)
    on_gpu = REACHED_NF4 if config.model.nf4 else REACHED
    rate = _rate(config, device) * (on_gpu if device.type == "cuda" else 0.5)
    return (done.rollouts * rollout + done.rows * row) / rate


def pretraining_seconds(config: RunConfig, task: Task, model: Denoiser, device: torch.device) -> float:
    """All updates of `dtm pretrain`."""
    (usual, late), settings = build.pretraining_masks(config, task), config.pretrain
    row = (1 - settings.settle) * _update(config, task, model, device, usual)
    if settings.settle:
        row += settings.settle * _update(config, task, model, device, late)
    return settings.steps * settings.batch * row


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
    decoder = build.build_decoder(config.decoding)
    decoding = for_decoding(model, decoder.fp8)
    with build.autocast(config, device):
        took = _seconds(lambda: generate(decoding, prompts, task.completion_length, decoder, batch=rows))
    return took / rows


def _forward(config: RunConfig, task: Task, model: Denoiser, device: torch.device) -> float:
    """Seconds of a row's forward pass."""
    examples = task.examples("train", ROWS, stream(0, "forecast", device=device))
    with torch.no_grad(), build.autocast(config, device):
        model.hidden(examples.tokens[:1])  # warms up
        return _seconds(lambda: model.hidden(examples.tokens)) / ROWS


def _update(config: RunConfig, task: Task, model: Denoiser, device: torch.device, masks: MaskCount) -> float:
    """Seconds of a row's forward and backward pass."""
    noise = stream(0, "forecast", device=device)
    examples = task.examples("train", ROWS, noise)
    states = masks.states(examples, model.mask_id, noise)

    def update(states: MaskedStates) -> None:
        with build.autocast(config, device):
            loss = mdm_loss(model, states)
        torch.autograd.backward(loss)

    update(states.select(slice(0, 1)))  # warms up
    seconds = _seconds(lambda: update(states)) / ROWS
    model.zero_grad()
    return seconds


def _rate(config: RunConfig, device: torch.device) -> float:
    """Operations a second of a large matrix product in the run's precision."""
    dtype = torch.bfloat16 if build.precision(config, device) == "bfloat16" else torch.float32
    size = 8192 if device.type == "cuda" else 1024
    # Random numbers, for equal ones cost less power, and a GPU is then faster than it will be.
    noise = stream(0, "forecast", device=device)
    matrix = torch.randn(size, size, generator=noise, device=device, dtype=dtype)
    torch.mm(matrix, matrix)  # warms up
    return 2 * size**3 / _seconds(lambda: torch.mm(matrix, matrix))


def _seconds(work: Callable[[], object]) -> float:
    """The fastest of three calls, or of those that fit a second: other work here must not be counted."""
    times: list[float] = []
    while len(times) < 3 and (not times or sum(times) < 1):
        _wait()
        begin = time.perf_counter()
        work()
        _wait()
        times.append(time.perf_counter() - begin)
    return min(times)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
