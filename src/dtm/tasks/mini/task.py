"""A task of a puzzle, with prompts and completions in characters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from dtm.random import in_rounds
from dtm.records import Prompts, Sequences
from dtm.tasks.base import Sample, known_split
from dtm.tasks.diversity import distinct_share
from dtm.tasks.mini.characters import flush_left, flush_right
from dtm.tasks.mini.puzzle import Item, Puzzle


class MiniTask:
    """A task whose prompts are questions, padded on the left, and completions an answer and the end token."""

    def __init__(self, puzzle: Puzzle, skilled: float = 0.0) -> None:
        self.skilled = skilled
        self.puzzle, self.alphabet, self.name = puzzle, puzzle.alphabet, puzzle.name
        self.vocab_size, self.mask_id, self.eos_id = (
            self.alphabet.size,
            self.alphabet.mask_id,
            self.alphabet.eos_id,
        )
        self.completion_length, self.reward_range = puzzle.completion_length, puzzle.reward_range
        self._items = cache(puzzle.items)

    def prompts(self, split: str, count: int, generator: torch.Generator) -> Prompts:
        """Draw ``count`` questions of the split; no question repeats before all were drawn."""
        items = self._items(known_split(split))
        chosen: list[Item] = [items[row] for row in in_rounds(len(items), count, generator).tolist()]
        questions = [self.puzzle.question(item) for item in chosen]
        tokens, attention = flush_right(self.alphabet.grid(questions), self.eos_id)
        names = chosen[0].columns
        columns = {name: [item.columns[name] for item in chosen] for name in names}
        return Prompts(tokens, attention, questions, columns)

    def examples(
        self, split: str, count: int, generator: torch.Generator, progress: float = 1.0
    ) -> Sequences:
        """Draw questions and answers on the generator's device: at first all complete, later few.

        A pattern that only a quarter of the examples has would be learnt too slowly at the start.
        """
        solved = 1.0 if progress < self.skilled else self.puzzle.solved
        question, answer = self.puzzle.corpus(known_split(split), count, generator, solved)
        tokens, attention = flush_right(question, self.eos_id)
        written = flush_left(answer, self.completion_length, self.eos_id)
        short = self.completion_length - written.shape[1]
        written = torch.nn.functional.pad(written, (0, short), value=self.eos_id)
        everywhere = torch.ones_like(written, dtype=torch.bool)
        return Sequences(
            torch.cat([tokens, written], dim=1),
            torch.cat([attention, everywhere], dim=1),
            torch.cat([torch.zeros_like(attention), everywhere], dim=1),
        )

    def read(self, completions: Int[Tensor, "N C"]) -> list[str]:
        """Return the text before the end token."""
        return [self.alphabet.text(row) for row in completions.tolist()]

    def reward(self, prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
        """Return the puzzle's rewards."""
        return self.puzzle.reward(prompts, completions, **columns)

    def measure(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        reward: Float[Tensor, " N"],
        group: Int[Tensor, " N"],
        **columns: Sequence[Any],
    ) -> dict[str, float]:
        """Return mean reward, accuracies, and the share of distinct answers per prompt."""
        return {
            "reward": float(reward.mean()),
            **self.puzzle.measure(completions, columns),
            "distinct": distinct_share(completions, group),
        }

    def best(self, prompts: Sequence[str]) -> float:
        """Return the highest reward, since every item has a solution."""
        return self.reward_range[1]

    def picture(self, before: Sequence[Sample], after: Sequence[Sample]) -> Figure | None:
        """Return None: there is no plot."""
        return None

    def show(self, prompt: str, completion: str) -> str:
        """Format the question and the answer."""
        return f"{prompt} {completion}"
