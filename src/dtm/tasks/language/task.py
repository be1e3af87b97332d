"""A language task: rows of text, a tokenizer, a reward, and the accuracy under published rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from dtm.errors import ConfigError, DataError, nearest, require
from dtm.random import in_rounds
from dtm.records import Prompts, Sequences
from dtm.tasks.base import Reward, Sample
from dtm.tasks.diversity import distinct_share
from dtm.tasks.language.rows import Row
from dtm.tasks.language.tokenizer import Chat

Splits = Mapping[str, Sequence[Row]]
Accuracy = Callable[[Sequence[str], Mapping[str, Sequence[Any]], Int[Tensor, " N"]], Mapping[str, float]]
"""Function that returns measures of completions, from the columns of their rows and the groups of prompts."""


class LanguageTask:
    """A task with the prompts of a data set, tokenised once; rows with too long prompts are dropped."""

    def __init__(
        self,
        name: str,
        splits: Splits,
        chat: Chat,
        reward: Reward | None,
        reward_range: tuple[float, float],
        *,
        vocab_size: int,
        mask_id: int,
        eos_id: int,
        completion_length: int,
        prompt_length: int,
        accuracy: Accuracy | None = None,
    ) -> None:
        require(
            len(chat) <= vocab_size,
            f"the tokenizer has {len(chat)} tokens, the model {vocab_size}: they do not belong together",
        )
        self.name, self.chat, self.accuracy = name, chat, accuracy
        self.vocab_size, self.mask_id, self.eos_id = vocab_size, mask_id, eos_id
        self.completion_length, self.reward_range = completion_length, reward_range
        self._reward, self._prompt_length, self._splits = reward, prompt_length, splits
        self._kept: dict[str, list[tuple[Row, list[int]]]] = {}
        self.too_long: dict[str, int] = {}
        """Number of dropped rows per split."""

    def prompts(self, split: str, count: int, generator: torch.Generator) -> Prompts:
        """Draw ``count`` rows of the split, padded on the left; no row repeats before all were drawn."""
        rows = self._tokenised(split)
        chosen = [rows[place] for place in in_rounds(len(rows), count, generator).tolist()]
        tokens, attention = pad_left([ids for _, ids in chosen], self.eos_id)
        columns = {name: [row.columns[name] for row, _ in chosen] for name in chosen[0][0].columns}
        return Prompts(tokens, attention, [row.prompt for row, _ in chosen], columns)

    def describe_counts(self) -> str:
        """Describe how many prompts each split has, and how many were too long."""
        counts = ", ".join(f"{len(self._tokenised(split)):,} {split}" for split in self._splits)
        left_out = sum(self.too_long.values())
        if not left_out:
            return counts
        return f"{counts}; {left_out:,} of more than {self._prompt_length} tokens are left out"

    def examples(
        self, split: str, count: int, generator: torch.Generator, progress: float = 1.0
    ) -> Sequences:
        """Raise an error: these tasks have no corpus and start from a pretrained model."""
        raise ConfigError(f"{self.name} has no corpus to pretrain on; give a model with --model.base")

    def read(self, completions: Int[Tensor, "N C"]) -> list[str]:
        """Return the text before the end token, without special tokens."""
        return [self.chat.read(_until(row, self.eos_id)) for row in completions.tolist()]

    def reward(
        self, prompts: Sequence[Any], completions: Sequence[str], **columns: Any
    ) -> list[float | None]:
        """Return the benchmark's rewards."""
        if self._reward is None:
            raise ConfigError(f"{self.name} has no reward: give one with --reward FILE.py:FUNCTION")
        return list(self._reward(prompts, completions, **columns))

    def measure(
        self,
        prompts: Sequence[Any],
        completions: Sequence[str],
        reward: Float[Tensor, " N"],
        group: Int[Tensor, " N"],
        **columns: Sequence[Any],
    ) -> dict[str, float]:
        """Return mean reward, accuracy if the task has one, and the share of distinct answers per prompt."""
        accuracy = {} if self.accuracy is None else self.accuracy(completions, columns, group)
        distinct = distinct_share(completions, group)
        return {"reward": float(reward.mean()), **accuracy, "distinct": distinct}

    def best(self, prompts: Sequence[Any]) -> float | None:
        """Return the highest reward for benchmarks, whose items can all be solved."""
        return None if self._reward is None else self.reward_range[1]

    def picture(self, before: Sequence[Sample], after: Sequence[Sample]) -> Figure | None:
        """Return None: there is no plot."""
        return None

    def show(self, prompt: Any, completion: str) -> str:
        """Format the prompt and the completion."""
        asked = prompt if isinstance(prompt, str) else "\n".join(turn["content"] for turn in prompt)
        return f"{asked}\n───\n{completion}"

    def _tokenised(self, split: str) -> list[tuple[Row, list[int]]]:
        require(split in self._splits, f"unknown split {split!r}. {nearest(split, self._splits)}")
        if split not in self._kept:
            rows = self._splits[split]
            texts = [self.chat.render(row.prompt) + row.prefill for row in rows]
            everything = list(zip(rows, self.chat.encode(texts), strict=True))
            kept = [(row, ids) for row, ids in everything if len(ids) <= self._prompt_length]
            self.too_long[split] = len(everything) - len(kept)
            require(
                bool(kept),
                f"all {len(everything)} {split} prompts of {self.name} are longer than "
                f"{self._prompt_length} tokens; raise --task.prompt-length",
                DataError,
            )
            self._kept[split] = kept
        return self._kept[split]


def pad_left(rows: Sequence[Sequence[int]], fill: int) -> tuple[Int[Tensor, "N P"], Bool[Tensor, "N P"]]:
    """Return token ids padded on the left with ``fill``, and the mask of real tokens."""
    width = max(map(len, rows))
    tokens = torch.tensor([[fill] * (width - len(ids)) + list(ids) for ids in rows])
    return tokens, torch.arange(width) >= width - torch.tensor([[len(ids)] for ids in rows])


def _until(row: Sequence[int], end: int) -> Sequence[int]:
    return row[: row.index(end)] if end in row else row
