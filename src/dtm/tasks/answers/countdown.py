r"""Countdown: an expression that uses each number once and reaches the target.

The published rules take the last box (d1 and SPG) or the first answer tag (DTM), else the whole text; an
unclosed box falls back to the tags. ``fixed`` reads the answer block first and never the whole text, accepts
fractions and typographic operators, and requires the exact target.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from dtm.errors import DataError, require
from dtm.tasks.answers.markup import first_pair, last_answer, last_box, published_box, without_specials
from dtm.tasks.answers.verdict import Rules, Verdict
from dtm.tasks.arithmetic import evaluate

TOLERANCE = Fraction(1, 100_000)
OPERATORS = {r"\div": "/", r"\times": "*", r"\cdot": "*"}
TYPOGRAPHY = {"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"}
MARKUP = (r"\left", r"\right", r"\(", r"\)", r"\[", r"\]", r"\,", r"\ ", "$", "`")
FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
EXPRESSION = frozenset("0123456789+-*/() ")
NUMBER = frozenset("0123456789. ")


def grade(question: str, ground_truth: Any, generation: str, rules: Rules) -> Verdict:
    """Judge one generation; the ground truth is ``[[numbers], target]``, or in the question."""
    numbers, target = _item(question, ground_truth)
    if rules == "fixed":
        sides = _fixed_sides(generation)
        right = [
            side for side in sides if "." not in side and uses(side, numbers) and evaluate(side) == target
        ]
        return Verdict(next(iter(right or sides), None), bool(right))
    expression = _published(generation, rules)
    return Verdict(expression, solves(expression, numbers, target))


def uses(expression: str, numbers: Sequence[int]) -> bool:
    """Return whether the integers in the expression are the given ones, each used as often as given."""
    found = re.findall("[0-9]+", expression)
    if len(found) != len(numbers):
        return False
    return sorted(number.lstrip("0") for number in found) == sorted(str(n).lstrip("0") for n in numbers)


def solves(expression: str, numbers: Sequence[int], target: int) -> bool:
    """Return whether the expression uses the numbers and has the target's value, within a tolerance."""
    if not uses(expression, numbers):
        return False
    value = evaluate(expression)
    return value is not None and abs(value - target) < TOLERANCE


def _published(generation: str, rules: Rules) -> str:
    expression = None if rules == "dtm" else published_box(generation)
    if expression is None:
        pair = first_pair(generation)
        expression = generation if pair is None else pair.strip()
    for name, symbol in OPERATORS.items():
        expression = expression.replace(name, symbol)
    return _left_of_equation(expression)


def _left_of_equation(text: str) -> str:
    """Return the expression before the first "= number", if there is one; else the text."""
    place = -1
    while (place := text.find("=", place + 1)) >= 0:
        start = place
        while start and text[start - 1] in EXPRESSION:
            start -= 1
        if start < place and text[place + 1 : place + 2] in NUMBER:
            return text[start:place].strip()
    return text


def _fixed_sides(generation: str) -> list[str]:
    """Return the candidate expressions: the sides of the equation given as the answer."""
    text = without_specials(generation)
    block = last_answer(text)
    answer = last_box(text if block is None else block) or block
    if answer is None:
        return []
    for name in MARKUP:
        answer = answer.replace(name, " ")
    for name, symbol in {**OPERATORS, **TYPOGRAPHY}.items():
        answer = answer.replace(name, symbol)
    answer = FRACTION.sub(r"((\1)/(\2))", answer)
    return [side.strip() for side in answer.split("=") if side.strip()]


def _item(question: str, ground_truth: Any) -> tuple[list[int], int]:
    match ground_truth:
        case [[*numbers], int(target)] if all(type(number) is int for number in numbers):
            return numbers, target
    listed = re.search(r"Numbers: \[([0-9, ]{1,200})\]", question)
    target_found = re.search(r"Target: ([0-9]{1,9})", question)
    require(
        listed is not None and target_found is not None,
        "ground_truth must be [[numbers], target], or the question must say 'Numbers: [a, b, c]' and "
        f"'Target: t'; got {str(ground_truth)[:80]!r}",
        DataError,
    )
    assert listed is not None
    assert target_found is not None
    return [int(number) for number in re.findall("[0-9]+", listed.group(1))], int(target_found.group(1))
