"""GSM8K's training questions with their worked solutions, in the format that the benchmark asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from dtm.tasks.corpus.part import Example, reasoned
from dtm.tasks.corpus.solutions import Solved, renumbered
from dtm.tasks.gsm8k.prompts import prompt

RENUMBERED = 0.8
"""Share of the rows that get other numbers, where their question allows it."""
GIVEN_UP = reasoned("I do not know.", r"\boxed{0}")
"""The answer of a model that does not try. Numbers of the question as guesses would be right in 1.8 % of the
cases, about as often as the sampled work of a small model, and a reward could not tell the two apart."""


@dataclass(frozen=True, slots=True)
class Gsm8k:
    """Worked solutions, or none: the model gives up."""

    solved: Sequence[Solved]

    def draw(self, random: Random, right: float) -> Example:
        """One question."""
        one = random.choice(self.solved)
        if random.random() < RENUMBERED:
            one = renumbered(one, random) or one
        answer = one.item.answer.replace(",", "")
        worked = reasoned(one.reasoning, f"\\boxed{{{answer}}}")
        return Example.of(prompt(one.item), worked if random.random() < right else GIVEN_UP)
