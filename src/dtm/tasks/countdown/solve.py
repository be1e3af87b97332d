"""Whether a target can be reached, and with which operators.

A value is an unreduced (numerator, denominator), of one item or of a tensor of items alike. Dividing by zero
gives (0, 0), and so does whatever follows from it, which is why nothing here branches on a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dtm.tasks.countdown.items import CountdownItem

Value = tuple[Any, Any]
"""Two integers, or two tensors of them."""


def solvable(item: CountdownItem, operators: str = "+-*/") -> bool:
    """Whether some expression of these operators uses each number once and comes to the target."""
    values = [(number, 1) for number in item.numbers]
    return any(below != 0 and above == item.target * below for above, below in _results(values, operators))


def solvable_rows(numbers: Int[Tensor, "N K"], target: Int[Tensor, " N"]) -> Bool[Tensor, " N"]:
    """`solvable` with all four operators, for many items at once."""
    found = torch.zeros_like(target, dtype=torch.bool)
    values = [(column, torch.ones_like(column)) for column in numbers.unbind(1)]
    for above, below in _results(values, "+-*/"):
        found |= (below != 0) & (above == target * below)
    return found


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
    if "/" in operators:
        yield a * d * c, b * c * c
        yield c * b * a, d * a * a
