"""Expressions of three numbers, and one fixed solution for every Countdown item.

An item may have many solutions: 4+3+2 and 3+2+4, or 6*1 and 6/1. A model of a corpus that picks one at random
mixes them when it reveals several tokens together. So each item has one: the first sum that reaches its
target, else the first of `SHAPES`; operands that may change places keep the order of the item's numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

NUMBERS = (1, 100)
TARGETS = (1, 100)
"""Both ends included; the ranges of published training and test items together."""
SIGNS = ((1, 1, 1), (1, 1, -1), (1, -1, 1), (-1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1))
"""Signs of a sum that begins with a plus."""


class Shape(NamedTuple):
    """A kind of expression of a, b and c with * or /."""

    text: str
    fraction: Callable[[Tensor, Tensor, Tensor], tuple[Any, Any]]
    """Function that returns the values for many operands, as numerators and denominators."""
    free: str = ""
    """Operands that may be exchanged."""


SHAPES = (
    Shape("{a}*{b}+{c}", lambda a, b, c: (a * b + c, 1), "ab"),
    Shape("{a}*{b}-{c}", lambda a, b, c: (a * b - c, 1), "ab"),
    Shape("{a}-{b}*{c}", lambda a, b, c: (a - b * c, 1), "bc"),
    Shape("({a}+{b})*{c}", lambda a, b, c: ((a + b) * c, 1), "ab"),
    Shape("({a}-{b})*{c}", lambda a, b, c: ((a - b) * c, 1)),
    Shape("{a}*{b}*{c}", lambda a, b, c: (a * b * c, 1), "abc"),
    Shape("{a}/{b}+{c}", lambda a, b, c: (a + c * b, b)),
    Shape("{a}/{b}-{c}", lambda a, b, c: (a - c * b, b)),
    Shape("{a}-{b}/{c}", lambda a, b, c: (a * c - b, c)),
    Shape("({a}+{b})/{c}", lambda a, b, c: (a + b, c), "ab"),
    Shape("({a}-{b})/{c}", lambda a, b, c: (a - b, c)),
    Shape("{a}*{b}/{c}", lambda a, b, c: (a * b, c), "ab"),
    Shape("{a}/({b}+{c})", lambda a, b, c: (a, b + c), "bc"),
    Shape("{a}/({b}-{c})", lambda a, b, c: (a, b - c)),
    Shape("{a}/{b}/{c}", lambda a, b, c: (a, b * c), "bc"),
)
"""All expressions of three numbers with * or /, up to exchange of operands."""


class SolvedItem(NamedTuple):
    """Numbers in the order of their item, the target, and the item's solution."""

    numbers: tuple[int, ...]
    target: int
    text: str


def sum_text(numbers: tuple[int, ...], signs: tuple[int, ...]) -> str:
    """Format a sum whose terms keep the order of the numbers, positive terms first.

    >>> sum_text((3, 50, 7), (-1, 1, 1))
    '50+7-3'
    """
    terms = sorted((sign * number for sign, number in zip(signs, numbers, strict=True)), key=lambda n: n < 0)
    return "".join(f"{term:+d}" for term in terms).removeprefix("+")


def solved_sum(random: Random) -> SolvedItem:
    """Draw an item that + and - solve."""
    while True:
        numbers = tuple(random.randint(*NUMBERS) for _ in range(3))
        target = _value(numbers, random.choice(SIGNS))
        if TARGETS[0] <= target <= TARGETS[1]:
            first = next(signs for signs in SIGNS if _value(numbers, signs) == target)
            return SolvedItem(numbers, target, sum_text(numbers, first))


def solved_product(random: Random) -> SolvedItem:
    """Draw an item that needs * or /, uniformly."""
    table = products()
    number, *operands, target = table[random.randrange(len(table))].tolist()
    numbers = tuple(random.sample(operands, 3))
    return SolvedItem(numbers, target, product_text(SHAPES[number], operands, numbers))


def product_text(shape: Shape, operands: Sequence[int], numbers: tuple[int, ...]) -> str:
    """Format an expression with these operands; exchangeable ones are in the order of the numbers.

    >>> product_text(SHAPES[0], (3, 20, 7), (20, 7, 3))
    '20*3+7'
    """
    values = dict(zip("abc", operands, strict=True))
    ordered = sorted((values[name] for name in shape.free), key=numbers.index)
    values |= zip(shape.free, ordered, strict=True)
    return shape.text.format(**values)


@cache
def products() -> Int[Tensor, "N 5"]:
    """Return all items that need * or /, up to the order of numbers: the shape's number, operands, target."""
    line = torch.arange(NUMBERS[0], NUMBERS[1] + 1)
    numbers = torch.cartesian_prod(line, line, line)
    a, b, c = numbers.unbind(1)
    found = []
    for number, shape in enumerate(SHAPES):
        above, below = shape.fraction(a, b, c)
        below = torch.as_tensor(below).expand_as(a)
        divisor = torch.where(below == 0, 1, below)
        target = above // divisor
        usable = (below != 0) & (target * divisor == above)
        usable &= (target >= TARGETS[0]) & (target <= TARGETS[1])
        rows = numbers[usable]
        found.append(torch.cat([torch.full_like(rows[:, :1], number), rows, target[usable][:, None]], dim=1))
    table = torch.cat(found)
    sums = (table[:, None, 1:4] * torch.tensor(SIGNS)).sum(-1)
    table = table[(sums != table[:, 4:]).all(1)]
    # One row for each item: the first shape, and of that the first operands.
    key = torch.cat([table[:, 1:4].sort(1).values, table[:, 4:]], dim=1)
    key = (key * torch.tensor([1_000_000_000, 1_000_000, 1_000, 1])).sum(1)
    order = key.argsort(stable=True)
    first = torch.ones_like(order, dtype=torch.bool)
    first[1:] = key[order][1:] != key[order][:-1]
    return table[order[first]]


def _value(numbers: tuple[int, ...], signs: tuple[int, ...]) -> int:
    return sum(sign * number for sign, number in zip(signs, numbers, strict=True))
