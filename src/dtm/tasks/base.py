"""The interface of a task: prompts, a way to read completions, a reward, and measures of success.

A task knows no model. Its vocabulary is part of it: small tasks bring their own token ids, language
tasks take a tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from dtm.records import Prompts, Sequences

Reward = Callable[..., Sequence[float | None]]
"""``def reward(prompts, completions, **columns) -> list[float | None]``; None skips the sample.

This is TRL's signature, so functions written for it port over. The task chooses the form of prompts and
completions: strings for language tasks, cells for the maze.
"""


Sample = tuple[Any, Any]
"""A prompt and its completion, as rewards see them or as JSON gives them back."""


@runtime_checkable
class Task(Protocol):
    """Prompts in, rewards and measures out."""

    name: str
    vocab_size: int
    """Token ids are 0 … vocab_size − 1; the mask id is one of them."""
    mask_id: int
    eos_id: int
    """Fills a completion after its end."""
    completion_length: int
    reward_range: tuple[float, float]
    """The lowest and the highest reward that can occur; its width bounds π_{a+h}/π_a (ratio guard)."""

    def prompts(self, split: str, count: int, generator: torch.Generator) -> Prompts:
        """``count`` prompts of the split "train", "validation" or "test"."""
        ...

    def examples(
        self, split: str, count: int, generator: torch.Generator, progress: float = 1.0
    ) -> Sequences:
        """``count`` clean sequences to pretrain on, on the generator's device.

        ``progress`` is the share of the pretraining that is done, for a corpus that changes with it.
        """
        ...

    def read(self, completions: Int[Tensor, "N C"]) -> list[Any]:
        """Completion tokens in the form that rewards receive."""
        ...

    def reward(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> Sequence[float | None]:
        """The task's own reward."""
        ...

    def measure(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        reward: Float[Tensor, " N"],
        group: Int[Tensor, " N"],
        **columns: Sequence[Any],
    ) -> Mapping[str, float]:
        """Measures of an evaluation, always with "reward"; the rows of a group share a prompt."""
        ...

    def best(self, prompts: Sequence[Any]) -> float | None:
        """The highest mean reward that any model could reach on these prompts, where it is known."""
        ...

    def picture(self, before: Sequence[Sample], after: Sequence[Sample]) -> Figure | None:
        """Completions of the base and of the tuned model side by side, where the task can draw them."""
        ...

    def show(self, prompt: Any, completion: Any) -> str:
        """One prompt and its completion for a person to look at, in plain text and without a reward."""
        ...
