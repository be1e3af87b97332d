"""The common interface of the two small puzzles: items, a corpus to pretrain on, a reward and measures.

The corpus is imperfect on purpose: its answers are correct but most are incomplete. Like LLaDA's base, a
model trained on it is right sometimes and wrong most of the time, so that reward tuning can improve it. The
model has the skill, which every answer needs, complete or not.
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
    """Interface of a benchmark written in characters."""

    name: str
    alphabet: Alphabet
    completion_length: int
    reward_range: tuple[float, float]

    @property
    def solved(self) -> float:
        """Share of complete answers in the corpus."""
        ...

    def items(self, split: str) -> Sequence[Item]:
        """Return the questions of the split "train", "validation" or "test"."""
        ...

    def question(self, item: Any) -> str:
        """Format an item in characters."""
        ...

    def corpus(
        self, split: str, count: int, generator: torch.Generator, solved: float
    ) -> tuple[Int[Tensor, "N P"], Int[Tensor, "N W"]]:
        """Draw questions and answers as grids with blanks, on the generator's device.

        A share ``solved`` is complete. Examples of "train" contain no question of another split.
        """
        ...

    def reward(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Any) -> list[float]:
        """Return the paper's reward."""
        ...

    def measure(self, completions: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> dict[str, float]:
        """Accuracies."""
        ...
