"""The common interface of the two small puzzles: items, a corpus to pretrain on, a reward and measures.

The corpus is imperfect on purpose: its answers are right as far as they go, but most are unfinished. A model
that has learnt it starts where LLaDA's base does, right now and then and wrong most of the time, and reward
tuning has something to do. The skill is there: it was needed for every answer, finished or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from dtm.tasks.mini.characters import Alphabet


@runtime_checkable
class Item(Protocol):
    """One question; rewards receive its columns."""

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that a reward receives."""
        ...


@runtime_checkable
class Puzzle(Protocol):
    """A benchmark written in characters."""

    name: str
    alphabet: Alphabet
    completion_length: int
    reward_range: tuple[float, float]

    @property
    def solved(self) -> float:
        """The share of the corpus that is finished."""
        ...

    def items(self, split: str) -> Sequence[Item]:
        """The questions of the split "train", "validation" or "test"."""
        ...

    def question(self, item: Any) -> str:
        """An item in characters."""
        ...

    def corpus(
        self, split: str, count: int, generator: torch.Generator, solved: float
    ) -> tuple[Int[Tensor, "N P"], Int[Tensor, "N W"]]:
        """Questions and answers as grids with blanks, on the generator's device.

        A share ``solved`` is finished. Examples of "train" contain no question of another split.
        """
        ...

    def reward(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Any) -> list[float]:
        """The paper's reward."""
        ...

    def measure(self, completions: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> dict[str, float]:
        """Accuracies."""
        ...
