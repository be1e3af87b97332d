"""Whether a target can be reached, and with which operators.

Values are unreduced (numerator, denominator): nothing is compared but the last of them with the target, and
generating items asks this thousands of times.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Literal

from dtm.tasks.countdown.items import CountdownItem

Value = tuple[int, int]


def solvable(item: CountdownItem, operators: str = "+-*/") -> bool:
    """Whether some expression of these operators uses each number once and comes to the target."""
    values = [(number, 1) for number in item.numbers]
    return any(above == item.target * below for above, below in _results(values, operators))


def needs(item: CountdownItem) -> Literal["add", "multiply"] | None:
    """Whether + and - are enough, or only * or / reach the target; None if nothing does."""
    if solvable(item, "+-"):
        return "add"
    return "multiply" if solvable(item) else None


def _results(values: list[Value], operators: str) -> Iterator[Value]:
    """Join any two values by any operator, and go on with one value fewer."""
    if len(values) == 1:
        yield values[0]
        return
    for first, second in combinations(range(len(values)), 2):
        rest = [value for place, value in enumerate(values) if place not in (first, second)]
        for joined in _joined(values[first], values[second], operators):
            yield from _results([*rest, joined], operators)


def _joined(first: Value, second: Value, operators: str) -> Iterator[Value]:
    (a, b), (c, d) = first, second
    if "+" in operators:
        yield a * d + c * b, b * d
    if "-" in operators:
        yield a * d - c * b, b * d
        yield c * b - a * d, b * d
    if "*" in operators:
        yield a * c, b * d
    if "/" in operators and c:
        yield a * d, b * c
    if "/" in operators and a:
        yield b * c, a * d
