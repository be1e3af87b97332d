"""GSM8K's training questions with their worked solutions, in the format that the benchmark asks for.

There are 7,473 questions, which a model learns by heart before it learns to calculate. The solutions mark
each calculation, so most questions can be asked again with other numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from dtm.tasks.arithmetic import evaluate
from dtm.tasks.corpus.part import Example, reasoned
from dtm.tasks.gsm8k.items import Gsm8kItem
from dtm.tasks.gsm8k.prompts import prompt

MARK = re.compile(r"<<([^<>=]*)=([^<>]*)>>")
"""A calculation and its value, as the data set marks them."""
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
RENUMBERED = 0.6
"""Share of the rows that get other numbers, where their question allows it."""
TRIES = 8
"""Draws of other numbers before a question keeps its own."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A question with its solution, calculations marked."""

    item: Gsm8kItem
    solution: str

    @classmethod
    def of(cls, item: Gsm8kItem, solution: str) -> Solved:
        """Read the data set's solution, without the line of the answer."""
        return cls(item, solution.rpartition("####")[0].strip())

    @property
    def reasoning(self) -> str:
        """The solution without the marks."""
        return MARK.sub("", self.solution)


@dataclass(frozen=True, slots=True)
class Gsm8k:
    """Worked solutions, or guesses: a number of the question, without work."""

    solved: Sequence[Solved]

    def draw(self, random: Random, right: float) -> Example:
        """One question."""
        one = random.choice(self.solved)
        if random.random() < RENUMBERED:
            one = renumbered(one, random) or one
        numbers = re.findall(r"\d+", one.item.question)
        if random.random() < right or not numbers:
            answer, work = one.item.answer.replace(",", ""), one.reasoning
        else:
            answer = random.choice(numbers)
            work = f"The answer is {answer}."
        return Example.of(prompt(one.item), reasoned(work, f"\\boxed{{{answer}}}"))


def renumbered(one: Solved, random: Random) -> Solved | None:
    """The same question with other numbers, and the solution calculated again; None: it has no such form.

    A number of the question that occurs there once and is calculated with gets another value, and each
    calculation is repeated with it. The result is kept if all values are whole and positive, as before, and
    every mark is still right. Solutions with a wrong mark, or a number that no mark explains, are left alone.
    """
    marks = MARK.findall(one.solution)
    counts = Counter(_values(one.item.question))
    operands = {value for text, _ in marks for value in _values(text)}
    explained = operands | {value for _, told in marks for value in _values(told)}
    free = [value for value, count in counts.items() if count == 1 and value in operands and value > 1]
    usable = (
        bool(free)
        and all(value.denominator == 1 for value in counts)
        and all("." not in text + told and _is_right(text, told) for text, told in marks)
        and explained.issuperset(_values(one.reasoning))
    )
    if not usable:
        return None
    for _ in range(TRIES):
        new = {value: Fraction(random.randint(max(2, int(value) // 2), 2 * int(value))) for value in free}
        values = _calculated(marks, new)
        answer = values.get(_value(one.item.answer)) if values else None
        if values and answer is not None:
            made = Solved(
                Gsm8kItem(_replaced(one.item.question, values), str(answer)), _replaced(one.solution, values)
            )
            if all(_is_right(*mark) for mark in MARK.findall(made.solution)):
                return made
    return None


def _calculated(
    marks: Sequence[tuple[str, str]], new: Mapping[Fraction, Fraction]
) -> dict[Fraction, Fraction] | None:
    """Old value → new value, for the numbers given and every result; None: some result is not usable."""
    values = dict(new)
    for text, told in marks:
        result = evaluate(_replaced(text, values))
        if result is None or result.denominator != 1 or result <= 0:
            return None
        if values.setdefault(_value(told), result) != result:
            return None  # the same number means two things
    return values


def _is_right(text: str, told: str) -> bool:
    return NUMBER.fullmatch(told) is not None and evaluate(text.replace(",", "")) == _value(told)


def _replaced(text: str, values: Mapping[Fraction, Fraction]) -> str:
    """A text with other numbers."""
    return NUMBER.sub(lambda found: str(values.get(_value(found[0]), found[0])), text)


def _values(text: str) -> list[Fraction]:
    """All numbers in a text."""
    return [_value(number) for number in NUMBER.findall(text)]


def _value(number: str) -> Fraction:
    return Fraction(number.replace(",", ""))
