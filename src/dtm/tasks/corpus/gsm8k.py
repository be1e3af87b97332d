"""GSM8K's training questions with their worked solutions, in the format that the benchmark asks for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from dtm.tasks.corpus.part import Example
from dtm.tasks.gsm8k.items import Gsm8kItem
from dtm.tasks.gsm8k.prompts import prompt

CALCULATOR = re.compile(r"<<[^>]*>>")
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Solved:
    """A question with its solution."""

    item: Gsm8kItem
    reasoning: str

    @classmethod
    def of(cls, item: Gsm8kItem, solution: str) -> Solved:
        """Read the data set's solution: without calculator marks, and without the line of the answer."""
        return cls(item, CALCULATOR.sub("", solution.rpartition("####")[0]).strip())


@dataclass(frozen=True, slots=True)
class Gsm8k:
    """Worked solutions; a careless one copies a number of the question as its answer."""

    solved: Sequence[Solved]

    def draw(self, random: Random, right: float) -> Example:
        """One question."""
        one = random.choice(self.solved)
        answer = one.item.answer.replace(",", "")
        others = [number for number in NUMBER.findall(one.item.question) if number != answer]
        if others and random.random() >= right:
            answer = random.choice(others)
        text = f"<reasoning>\n{one.reasoning}\n</reasoning>\n<answer>\n\\boxed{{{answer}}}\n</answer>"
        return Example.of(prompt(one.item), text)
