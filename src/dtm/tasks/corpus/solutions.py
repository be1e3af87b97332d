"""GSM8K's worked solutions, and the same questions with other numbers.

There are 7,473 training questions, which a model memorises before it learns to calculate. The solutions mark
each calculation, so some questions can be repeated with other numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from dtm.tasks.arithmetic import evaluate
from dtm.tasks.gsm8k.items import Gsm8kItem

MARK = re.compile(r"<<([^<>=]*)=([^<>]*)>>")
"""A calculation and its value, as the data set marks them."""
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
TRIES = 8
"""Number of tries to draw other numbers before a question keeps its own."""
UNITS = frozenset(map(Fraction, (7, 12, 24, 30, 31, 52, 60, 100, 365, 1000)))
"""Numbers that are often hours, days or percent, which keep their value."""
SMALL = 12
"""Largest whole number that a calculation may use without being in the question, such as 2 for a half."""
WORDS = {
    2: "two|half|halves|twice|double|pair", 3: "three|third|triple", 4: "four|quarter", 5: "five|fifth",
    6: "six|sixth", 7: "seven", 8: "eight", 9: "nine", 10: "ten|tenth", 11: "eleven", 12: "twelve|dozen",
    20: "twenty", 30: "thirty", 40: "forty", 50: "fifty",
}  # fmt: skip
"""Numbers spelled out in words."""
RELATIVE = re.compile(r"%|/|st\b|nd\b|rd\b|th\b| ?percent")
"""Pattern after a number that is a share, a percentage or a rank."""


@dataclass(frozen=True, slots=True)
class SolvedQuestion:
    """A question with its solution, calculations marked."""

    item: Gsm8kItem
    solution: str

    @classmethod
    def of(cls, item: Gsm8kItem, solution: str) -> SolvedQuestion:
        """Parse the data set's solution, without the line of the answer."""
        return cls(item, solution.rpartition("####")[0].strip())

    @property
    def reasoning(self) -> str:
        """The solution without the marks."""
        return MARK.sub("", self.solution)


def renumbered(one: SolvedQuestion, random: Random) -> SolvedQuestion | None:
    """Return the question with other numbers and a recalculated solution; None if this is not possible.

    Numbers of the question that calculations use get other values, and each calculation is repeated. The
    result is kept if all values are whole and positive, as before, and every mark is still right.
    """
    marks, free = MARK.findall(one.solution), free_numbers(one)
    for _ in range(TRIES if free else 0):
        new = {value: Fraction(random.randint(max(2, int(value) // 2), 2 * int(value))) for value in free}
        values = _calculated(marks, new)
        if values and any(old != made for old, made in values.items()):
            item = Gsm8kItem(_replaced(one.item.question, values), str(values[_value(one.item.answer)]))
            made = SolvedQuestion(item, _replaced(one.solution, values))
            if all(_is_right(*mark) for mark in MARK.findall(made.solution)):
                return made
    return None


def free_numbers(one: SolvedQuestion) -> list[Fraction]:
    """Return the replaceable numbers of a question; empty if the marks do not explain the whole solution.

    A number with two possible meanings cannot be replaced; such a result makes the question unusable.
    """
    question, text = one.item.question, one.reasoning
    marks, given = MARK.findall(one.solution), Counter(_values(question))
    if not all("." not in work + told and _is_right(work, told) for work, told in marks):
        return []
    results = [_value(told) for _, told in marks]
    operands = Counter(value for work, _ in marks for value in _values(work))
    known = set(given)
    for (work, _), result in zip(marks, results, strict=True):
        if not all(value in known or value in UNITS or value <= SMALL for value in _values(work)):
            return []
        known.add(result)
    is_explained = (
        text.count("=") <= len(marks)
        and set(_values(text)) <= {*operands, *results}
        and len({*results, *given}) == len(results) + len(given)
        and all(value.denominator == 1 for value in given)
        and all(result in operands for result in results[:-1])
        and results[-1:] == [_value(one.item.answer)]
        and not any(_is_spelled(result, question + text) for result in results)
    )
    return [
        value
        for value, count in given.items()
        if is_explained
        and count == 1
        and value > 1
        and value not in UNITS
        and 1 <= operands[value] <= (1 if value <= SMALL else operands.total())
        and not _is_spelled(value, question + text)
        and not _is_relative(value, question)
    ]


def _is_spelled(value: Fraction, text: str) -> bool:
    """Return whether a text has this number in words."""
    words = WORDS.get(int(value))
    return words is not None and re.search(rf"\b(?:{words})s?\b", text, re.IGNORECASE) is not None


def _is_relative(value: Fraction, text: str) -> bool:
    """Return whether a question has this number as a share, a percentage or a rank."""
    return any(
        _value(found[0]) == value
        and (RELATIVE.match(text, found.end()) or text[: found.start()].endswith("/"))
        for found in NUMBER.finditer(text)
    )


def _calculated(
    marks: Sequence[tuple[str, str]], new: Mapping[Fraction, Fraction]
) -> dict[Fraction, Fraction] | None:
    """Map old to new values, for the given numbers and every result; None if a result is not usable."""
    values = dict(new)
    for work, told in marks:
        result = evaluate(_replaced(work, values))
        if result is None or result.denominator != 1 or result <= 0:
            return None
        values[_value(told)] = result
    return values


def _is_right(work: str, told: str) -> bool:
    return NUMBER.fullmatch(told) is not None and evaluate(work.replace(",", "")) == _value(told)


def _replaced(text: str, values: Mapping[Fraction, Fraction]) -> str:
    """Return the text with other numbers."""
    return NUMBER.sub(lambda found: str(values.get(_value(found[0]), found[0])), text)


def _values(text: str) -> list[Fraction]:
    """Return all numbers in a text."""
    return [_value(number) for number in NUMBER.findall(text)]


def _value(number: str) -> Fraction:
    return Fraction(number.replace(",", ""))
