"""Draw batches of token ids from a mixture of corpus parts.

Each step has one batch, and its rows have one length: few large passes keep a GPU busier than many small
ones. A row is a prompt, the answer, then end tokens, which are trained on too. The given start of an answer
belongs to the prompt. With full attention a completion begins where its prompt ends, so no position is
padding. With blocks, prompts are padded on the left to whole blocks, because blocks begin where the
completion begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import torch

from dtm.errors import DataError, require
from dtm.random import derived_seed
from dtm.records import Sequences
from dtm.tasks.corpus.part import Example, Part
from dtm.tasks.language.tokenizer import Chat

LONGER = 0.15
"""Share of the rows that are padded to the next longer length."""


class Ids(NamedTuple):
    """Token ids of a prompt and of its answer, and a mask of the answer's tokens to learn."""

    prompt: list[int]
    answer: list[int]
    learnt: list[bool]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Draw the batches of an adaptation."""

    parts: Mapping[str, tuple[float, Part]]
    """Name → share of the rows, and the part."""
    chat: Chat
    end_id: int
    seed: int
    lengths: tuple[int, ...]
    """Row lengths in tokens, ascending. Most rows have the shortest that fits, some the next one, so that the
    number of end tokens after an answer varies."""
    block: int = 1
    """Completions begin at multiples of this."""

    def steps(self, purpose: str, number: int, steps: int, count: int, right: float) -> list[Sequences]:
        """Return the batches of some steps, each of one length, with ``count`` rows on average.

        Each length has steps in proportion to its tokens, at least one, so steps cost about the same.
        """
        groups = self.batches(purpose, number, steps * count, right)
        shares = apportioned([(group.tokens.numel(), len(group)) for group in groups], steps)
        parts = [
            group.select(slice(place, None, share))
            for group, share in zip(groups, shares, strict=True)
            for place in range(share)
        ]
        Random(derived_seed(self.seed, purpose, number, "order")).shuffle(parts)
        return parts

    def batches(self, purpose: str, number: int, count: int, right: float) -> list[Sequences]:
        """Draw about ``count`` rows, one batch per length; drop rows longer than the longest."""
        random = Random(derived_seed(self.seed, purpose, number))
        names = random.choices(list(self.parts), [share for share, _ in self.parts.values()], k=count)
        drawn = [self.parts[name][1].draw(random, right) for name in names]
        return self.sequences(drawn, random)

    def sequences(self, rows: Sequence[Example], random: Random) -> list[Sequences]:
        """Convert rows to token ids, one batch per length; drop rows longer than the longest."""
        groups = {length: list[Ids]() for length in self.lengths}
        for row in self._encoded(rows):
            fitting = [length for length in self.lengths if self._needed(row) < length]
            if fitting:
                groups[self._choose(random, fitting)].append(row)
        found = [self._sequences(group, length) for length, group in groups.items() if group]
        require(
            bool(found),
            f"no row of the corpus fits into corpus.lengths {self.lengths}: raise the last one",
            DataError,
        )
        return found

    def fits(self, rows: Sequence[Example]) -> list[bool]:
        """Return which rows fit into the longest length."""
        return [self._needed(row) < self.lengths[-1] for row in self._encoded(rows)]

    def _needed(self, row: Ids) -> int:
        """Number of columns of a prompt with its padding, and of its answer."""
        return self._width(row.prompt) + len(row.answer)

    def _choose(self, random: Random, fitting: Sequence[int]) -> int:
        """Choose the shortest length that fits, or the next one; the longest only if no other fits."""
        choices = [length for length in fitting[:2] if length != self.lengths[-1]] or fitting[:1]
        return choices[-1] if random.random() < LONGER else choices[0]

    def _width(self, prompt: Sequence[int]) -> int:
        """Number of columns of a prompt with its padding."""
        return -(-len(prompt) // self.block) * self.block

    def _encoded(self, drawn: Sequence[Example]) -> list[Ids]:
        """Return token ids of rows; with blocks the whole answer is learnt, as masks cover whole blocks."""
        prompts = self.chat.encode([self.chat.render(row.prompt) + row.begun for row in drawn])
        pieces = iter(self.chat.encode([piece.text for row in drawn for piece in row.pieces]))
        found = []
        for prompt, row in zip(prompts, drawn, strict=True):
            answer, learnt = list[int](), list[bool]()
            for piece in row.pieces:
                ids = next(pieces)
                answer += ids
                learnt += [piece.is_learnt or self.block > 1] * len(ids)
            found.append(Ids(prompt, answer, learnt))
        return found

    def _sequences(self, rows: Sequence[Ids], length: int) -> Sequences:
        tokens = torch.full((len(rows), length), self.end_id)
        real, learnt = (torch.ones(len(rows), length, dtype=torch.bool) for _ in range(2))
        for number, row in enumerate(rows):
            begin = self._width(row.prompt)
            first, end = begin - len(row.prompt), begin + len(row.answer)
            tokens[number, first:end] = torch.tensor(row.prompt + row.answer)
            real[number, :first] = False
            learnt[number, :begin] = False
            learnt[number, begin:end] = torch.tensor(row.learnt)
        return Sequences(tokens, real, learnt)


def apportioned(groups: Sequence[tuple[int, int]], places: int) -> list[int]:
    """Divide places among groups of (tokens, rows) in proportion to tokens: at least one, at most one a row.

    >>> apportioned([(900, 90), (90, 9), (10, 1)], 16)
    [13, 2, 1]
    """
    shares = [1] * len(groups)
    for _ in range(places - len(groups)):
        index = max(
            range(len(groups)),
            key=lambda place: groups[place][0] / shares[place] * (shares[place] < groups[place][1]),
        )
        shares[index] = min(shares[index] + 1, groups[index][1])
    return shares
