"""A mixture of parts as batches of token ids.

Rows of a batch have one length: a prompt, the answer, then end tokens, which are trained on too. With full
attention a completion begins where its prompt ends, so no position is padding. With blocks, prompts are
padded on the left to whole blocks, because blocks begin where the completion begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import torch

from dtm.errors import DataError, require
from dtm.random import derived_seed
from dtm.records import Sequences
from dtm.tasks.corpus.part import Part
from dtm.tasks.language.tokenizer import Chat

Ids = tuple[list[int], list[int]]
"""Token ids of a prompt and of its answer."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Draws the batches of an adaptation."""

    parts: Mapping[str, tuple[float, Part]]
    """Name → share of the rows, and the part."""
    chat: Chat
    end_id: int
    seed: int
    lengths: tuple[int, ...]
    """Row lengths, ascending. The batch of a step has the rows that fit into one of the shorter lengths, drawn
    at random, and a second batch of the longest length has the others."""
    block: int = 1
    """Completions begin at multiples of this."""

    def batches(self, purpose: str, step: int, count: int, right: float) -> list[Sequences]:
        """About ``count`` rows of one step; rows longer than the longest length are left out."""
        random = Random(derived_seed(self.seed, purpose, step))
        names = random.choices(list(self.parts), [share for share, _ in self.parts.values()], k=count)
        drawn = [self.parts[name][1].draw(random, right) for name in names]
        prompts = self.chat.encode([self.chat.render(row.prompt) for row in drawn])
        answers = self.chat.encode([row.answer for row in drawn])
        rows = list(zip(prompts, answers, strict=True))
        short = random.choice(self.lengths[:-1] or self.lengths)
        groups = {length: list[Ids]() for length in dict.fromkeys((short, self.lengths[-1]))}
        for row in rows:
            length = next((each for each in groups if self._width(row[0]) + len(row[1]) < each), None)
            if length is not None:
                groups[length].append(row)
        found = [self._sequences(group, length) for length, group in groups.items() if group]
        require(
            bool(found),
            f"no row of the corpus fits into corpus.lengths {self.lengths}: raise the last one",
            DataError,
        )
        return found

    def _width(self, prompt: Sequence[int]) -> int:
        """Columns of a prompt with its padding."""
        return -(-len(prompt) // self.block) * self.block

    def _sequences(self, rows: Sequence[Ids], length: int) -> Sequences:
        tokens = torch.full((len(rows), length), self.end_id)
        first, begin = torch.zeros(2, len(rows), 1, dtype=torch.long).unbind()
        for number, (prompt, answer) in enumerate(rows):
            width = self._width(prompt)
            first[number], begin[number] = width - len(prompt), width
            tokens[number, width - len(prompt) : width] = torch.tensor(prompt)
            tokens[number, width : width + len(answer)] = torch.tensor(answer, dtype=torch.long)
        place = torch.arange(length)
        return Sequences(tokens, place >= first, place >= begin)
