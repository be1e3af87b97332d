"""Estimate how long a run takes on this machine, by timing a few rows or by counting operations.

Small models are timed. A model of billions of weights is not loaded for an estimate: its operations are
counted and divided by the rate of a large matrix product on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dtm.capacity.flops import rollout_flops, update_flops
from dtm.capacity.memory import TrainingShape
from dtm.config import RunConfig
from dtm.engine import Decoder, generate
from dtm.masking import EveryBlock, MaskCount, Masking
from dtm.methods.mdm import mdm_loss
from dtm.models.denoiser import Denoiser
from dtm.models.merging import for_decoding
from dtm.models.placement import Placement
from dtm.models.shape import TransformerConfig
from dtm.padding import aligned
from dtm.random import stream
from dtm.records import MaskedStates
from dtm.tasks.base import Task

ROWS = 16
REACHED, REACHED_NF4 = 0.75, 0.6
"""Share of the rate of a large matrix product that large models reach on a GPU. Measured at 8B on an H200:
0.72 to 0.83, and 0.61 with four-bit weights."""
REACHED_CPU = 0.5
COMPILATION = 220.0
"""Seconds that torch.compile takes with an empty cache: a run at 8B on an H200 took 4.4 minutes, of which its
passes were 42 seconds. All blocks share one compiled block, so the model's size matters little."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Measure the seconds of a model's forward passes, updates and rollouts on a few rows of a task."""

    task: Task
    model: Denoiser
    placement: Placement

    def forward(self) -> float:
        """Measure the seconds per row of a forward pass."""
        examples = self.task.examples("train", ROWS, self._noise())
        with torch.no_grad(), self.placement.autocast():
            self.model.hidden(examples.tokens[:1])  # warms up
            return measured_seconds(lambda: self.model.hidden(examples.tokens)) / ROWS

    def update(self, masking: Masking) -> float:
        """Measure the seconds per row of a forward and a backward pass."""
        noise = self._noise()
        masks = masking if isinstance(masking, MaskCount | EveryBlock) else MaskCount()
        examples = aligned(self.task.examples("train", ROWS, noise), self.model.attention_block)
        states = masks.states(examples, self.model.mask_id, noise)

        def update(states: MaskedStates) -> None:
            with self.placement.autocast():
                loss = mdm_loss(self.model, states)
            torch.autograd.backward(loss)

        update(states.select(slice(0, 1)))  # warms up
        seconds = measured_seconds(lambda: update(states)) / ROWS
        self.model.zero_grad()
        return seconds

    def rollout(self, decoder: Decoder, batch: int) -> float:
        """Measure the seconds per completion of decoding; a slow model decodes fewer rows."""
        rows = max(2, min(ROWS, batch, int(0.1 / self.forward())))
        prompts = self.task.prompts("train", rows, stream(0, "forecast")).to(self.placement.device)
        model, length = for_decoding(self.model, decoder.fp8), self.task.completion_length
        with self.placement.autocast():
            return measured_seconds(lambda: generate(model, prompts, length, decoder, batch=rows)) / rows

    def _noise(self) -> torch.Generator:
        return stream(0, "forecast", device=self.placement.device)


def counted_seconds(
    shape: TransformerConfig,
    run: TrainingShape,
    config: RunConfig,
    placement: Placement,
    work: tuple[int, int],
    prompt: int,
) -> float:
    """Estimate the seconds of ``work`` (rollouts and rows of updates) from its number of operations.

    The rate is a share of that of a large matrix product. Completions count at full length, also where
    `decoding.until_end` would stop them early.
    """
    decoding, completion = config.decoding, run.length - prompt
    block = decoding.block or completion
    refresh = decoding.refresh if decoding.cache == "block" else None
    prefix = decoding.cache == "prefix" and shape.attention_block is not None
    together = min(config.replay.completions, decoding.batch)
    rollout = rollout_flops(
        shape, prompt, completion, block, decoding.tokens_per_step, refresh, together, prefix
    )
    row = update_flops(
        shape,
        run.length,
        run.scored if run.doubled else block / 2,
        run.lora,
        run.recompute / shape.layers,
        config.adapter.merge,
        run.doubled,
    )
    on_gpu = REACHED_NF4 if config.model.nf4 else REACHED
    rate = _rate(placement) * (on_gpu if placement.device.type == "cuda" else REACHED_CPU)
    rollouts, rows = work
    return (rollouts * rollout + rows * row) / rate


def format_duration(seconds: float) -> str:
    """Format a duration in a readable unit.

    >>> [format_duration(seconds) for seconds in (50.0, 600.0, 9000.0, 200_000.0)]
    ['50 seconds', '10 minutes', '2.5 hours', '2.3 days']
    """
    for size, unit in ((86_400, "days"), (3600, "hours")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"


def _rate(placement: Placement) -> float:
    """Measure the operations per second of a large matrix product in the run's precision."""
    device = placement.device
    size = 8192 if device.type == "cuda" else 1024
    # Random numbers: products of equal ones draw less power, so a GPU would run faster than in training.
    noise = stream(0, "forecast", device=device)
    matrix = torch.randn(size, size, generator=noise, device=device, dtype=placement.dtype)
    torch.mm(matrix, matrix)  # warms up
    return 2 * size**3 / measured_seconds(lambda: torch.mm(matrix, matrix))


def measured_seconds(work: Callable[[], object]) -> float:
    """Time three calls, or as many as fit a second; return the fastest, which other work disturbed least."""
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
