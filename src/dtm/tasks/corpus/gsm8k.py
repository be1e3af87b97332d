"""GSM8K's training questions with their worked solutions, in the format that the benchmark asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from dtm.tasks.corpus.part import Example, reasoned
from dtm.tasks.corpus.solutions import NUMBER, Solved, renumbered
from dtm.tasks.gsm8k.prompts import prompt

RENUMBERED = 0.8
"""Share of the rows that get other numbers, where their question allows it."""


@dataclass(frozen=True, slots=True)
class Gsm8k:
    """Worked solutions, or guesses: a number of the question, without work."""

    solved: Sequence[Solved]

    def draw(self, random: Random, right: float) -> Example:
        """One question."""
        one = random.choice(self.solved)
        if random.random() < RENUMBERED:
            one = renumbered(one, random) or one
        numbers = [number.replace(",", "") for number in NUMBER.findall(one.item.question)]
        if random.random() < right or not numbers:
            answer, work = one.item.answer.replace(",", ""), one.reasoning
        else:
            answer = random.choice(numbers)
            work = f"The answer is {answer}."
        return Example.of(prompt(one.item), reasoned(work, f"\\boxed{{{answer}}}"))
