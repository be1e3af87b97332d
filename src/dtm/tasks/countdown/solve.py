"""Decide whether a target can be reached, and with which operators.

A value is an unreduced (numerator, denominator), for one item or a tensor of items. Dividing by zero gives
(0, 0), and so do all further operations, so that the code needs no branches.
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
    """Return whether some expression of these operators uses each number once and has the target's value."""
    values = [(number, 1) for number in item.numbers]
    return any(below != 0 and above == item.target * below for above, below in _results(values, operators))


def solvable_rows(numbers: Int[Tensor, "N K"], target: Int[Tensor, " N"]) -> Bool[Tensor, " N"]:
    """Apply `solvable` with all four operators to many items at once."""
    found = torch.zeros_like(target, dtype=torch.bool)
    values = [(column, torch.ones_like(column)) for column in numbers.unbind(1)]
    for above, below in _results(values, "+-*/"):
        found |= (below != 0) & (above == target * below)
    return found


def needs(item: CountdownItem) -> Literal["add", "multiply"] | None:
    """Return whether + and - are enough, or * or / are needed; None if the target cannot be reached."""
    if solvable(item, "+-"):
        return "add"
    return "multiply" if solvable(item) else None


def _results(values: list[Value], operators: str) -> Iterator[Value]:
    """Yield all results: combine any two values by any operator, and recurse with one value fewer."""
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
