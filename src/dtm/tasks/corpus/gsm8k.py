"""GSM8K's training questions with their worked solutions, in the format that the benchmark asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from dtm.tasks.corpus.part import BEGUN_SHARE, Example, answer_block, reasoned
from dtm.tasks.corpus.solutions import SolvedQuestion, renumbered
from dtm.tasks.gsm8k.prompts import prompt

RENUMBERED = 0.8
"""Share of the rows that get other numbers, if their question allows it."""
GIVEN_UP = answer_block("I do not know.")
"""The answer of a model that does not try. Guesses with numbers of the question would be right in 1.8 % of
the cases, about as often as sampled worked answers of a small model; a reward could not prefer the latter.
Without a number the reward is lower than that of a worked answer, even of a wrong one. Right answers are so
rare, about 1 %, that phases which select them alone learn their texts and not to try."""


@dataclass(frozen=True, slots=True)
class Gsm8k:
    """Questions with worked solutions, or with the answer `GIVEN_UP`."""

    solved: Sequence[SolvedQuestion]
    worked: float
    """Share of answers with reasoning, where its start is not given."""

    def draw(self, random: Random, right: float) -> Example:
        """Draw one question."""
        one = random.choice(self.solved)
        if random.random() < RENUMBERED:
            one = renumbered(one, random) or one
        answer = one.item.answer.replace(",", "")
        asked, worked = prompt(one.item), reasoned(one.reasoning, f"\\boxed{{{answer}}}")
        if random.random() < BEGUN_SHARE:
            return Example.worked(asked, worked)
        return Example.of(asked, worked if random.random() < self.worked else GIVEN_UP)
