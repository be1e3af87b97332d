"""The examples of pretraining: the batch of each step, and held-out examples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dtm.config import PretrainConfig
from dtm.random import stream
from dtm.records import Sequences
from dtm.tasks.base import Task

AHEAD = 16
"""Number of batches drawn together: on a GPU a draw of many rows costs the same as one of few."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """The training examples of a model."""

    batch: Callable[[int], Sequences]
    """Returns the examples of a step; always the same ones."""
    held_out: Mapping[str, tuple[float, Sequence[Sequences]]]
    """Held-out parts on which the bound is measured: name → share of the corpus, and examples."""
    start: Callable[[int], None] = lambda step: None
    """Starts to prepare the examples of a step, without waiting for them."""


def task_corpus(task: Task, settings: PretrainConfig, seed: int, device: torch.device) -> Corpus:
    """Return the corpus of a task; the examples of a step are part of a larger draw."""

    @functools.lru_cache(maxsize=1)
    def drawn(draw: int) -> Sequences:
        source = stream(seed, "examples", draw, device=device)
        return task.examples("train", AHEAD * settings.batch, source, draw * AHEAD / settings.steps)

    def batch(step: int) -> Sequences:
        draw, place = divmod(step, AHEAD)
        return drawn(draw).select(slice(place * settings.batch, (place + 1) * settings.batch))

    held_out = task.examples("validation", settings.held_out, stream(0, "held-out", device=device))
    return Corpus(batch, {"examples": (1.0, [held_out])})


def several(examples: Sequences) -> Sequences:
    """Repeat a single example, since torch.compile would compile every pass again for a batch of one."""
    if len(examples) > 1:
        return examples
    tensors = (examples.tokens, examples.attention, examples.is_completion)
    return Sequences(*(torch.cat([tensor, tensor]) for tensor in tensors))
