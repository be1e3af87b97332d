"""The examples that a base is trained on, step by step, and those on which its bound is reported."""

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
"""Batches of examples drawn together: on a GPU a draw costs the same for many rows as for few."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """What a model is trained on."""

    batch: Callable[[int], Sequences]
    """The examples of a step; the same whenever it is asked."""
    held_out: Mapping[str, tuple[float, Sequence[Sequences]]]
    """Parts on which the bound is reported: name → share of the corpus, and examples."""
    start: Callable[[int], None] = lambda step: None
    """Begin to make the examples of a step, without waiting for them."""


def task_corpus(task: Task, settings: PretrainConfig, seed: int, device: torch.device) -> Corpus:
    """The examples of a task, each step's out of a larger draw."""

    @functools.lru_cache(maxsize=1)
    def drawn(draw: int) -> Sequences:
        source = stream(seed, "examples", draw, device=device)
        return task.examples("train", AHEAD * settings.batch, source, draw * AHEAD / settings.steps)

    def batch(step: int) -> Sequences:
        draw, place = divmod(step, AHEAD)
        return drawn(draw).part(slice(place * settings.batch, (place + 1) * settings.batch))

    held_out = task.examples("validation", settings.held_out, stream(0, "held-out", device=device))
    return Corpus(batch, {"examples": (1.0, [held_out])})


def several(examples: Sequences) -> Sequences:
    """A single example twice: torch.compile would compile every pass once more for a batch of one."""
    if len(examples) > 1:
        return examples
    tensors = (examples.tokens, examples.attention, examples.is_completion)
    return Sequences(*(torch.cat([tensor, tensor]) for tensor in tensors))
