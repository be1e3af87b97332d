"""The interface of a task: prompts, a way to read completions, a reward, and measures of success.

A task does not depend on a model, but includes the vocabulary: small tasks define their own token ids,
language tasks take a tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from dtm.errors import nearest, require
from dtm.records import Prompts, Sequences

Reward = Callable[..., Sequence[float | None]]
"""``def reward(prompts, completions, **columns) -> list[float | None]``; None skips the sample.

This is TRL's signature; docs/own-reward.md has the differences. The task sets the type of prompts and
completions: strings for language tasks, cells for the maze.
"""

SPLITS = ("train", "validation", "test")

Sample = tuple[Any, Any]
"""A prompt and its completion, as rewards see them or as JSON gives them back."""


@runtime_checkable
class Task(Protocol):
    """Interface of a task: prompts, reward and measures."""

    name: str
    vocab_size: int
    """Token ids are 0 … vocab_size − 1; the mask id is one of them."""
    mask_id: int
    eos_id: int
    """End token, which fills a completion after its end."""
    completion_length: int
    reward_range: tuple[float, float]
    """Lowest and highest possible reward; the difference bounds π_{a+h}/π_a (ratio guard)."""

    def prompts(self, split: str, count: int, generator: torch.Generator) -> Prompts:
        """Draw ``count`` prompts of the split "train", "validation" or "test"."""
        ...

    def examples(
        self, split: str, count: int, generator: torch.Generator, progress: float = 1.0
    ) -> Sequences:
        """Draw ``count`` clean sequences for pretraining, on the generator's device.

        ``progress`` is the finished share of the pretraining, for a corpus that changes with it.
        """
        ...

    def read(self, completions: Int[Tensor, "N C"]) -> list[Any]:
        """Convert completion tokens to the type that rewards receive."""
        ...

    def reward(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> Sequence[float | None]:
        """Return the task's own rewards."""
        ...

    def measure(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        reward: Float[Tensor, " N"],
        group: Int[Tensor, " N"],
        **columns: Sequence[Any],
    ) -> Mapping[str, float]:
        """Return the measures of an evaluation, always with "reward"; rows of a group share a prompt."""
        ...

    def best(self, prompts: Sequence[Any]) -> float | None:
        """Return the highest possible mean reward on these prompts; None if unknown."""
        ...

    def picture(self, before: Sequence[Sample], after: Sequence[Sample]) -> Figure | None:
        """Plot completions of base and tuned model side by side; None if the task has no plot."""
        ...

    def show(self, prompt: Any, completion: Any) -> str:
        """Format a prompt and its completion as plain text for a reader, without the reward."""
        ...


def known_split(split: str) -> str:
    """Return the name of a split; raise an error for an unknown one."""
    require(split in SPLITS, f"unknown split {split!r}. {nearest(split, SPLITS)}")
    return split
