"""Expressions of three numbers, and one fixed solution for every Countdown item.

An item may have many solutions: 4+3+2 and 3+2+4, or 6*1 and 6/1. A corpus that picks one at random teaches
a model to hesitate between them, and several tokens that are revealed together then mix two solutions. So
each item has one: the first sum that reaches its target, else the first of `SHAPES`; operands that may change
places keep the order of the item's numbers.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from dtm.tasks.arithmetic import evaluate

NUMBERS = (1, 100)
TARGETS = (1, 100)
"""Both ends included; the ranges of published training and test items together."""
SIGNS = ((1, 1, 1), (1, 1, -1), (1, -1, 1), (-1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1))
"""Signs of a sum that begins with a plus."""
SHAPES: dict[str, tuple[int, ...]] = {
    "{}*{}+{}": (0, 1),
    "{}*{}-{}": (0, 1),
    "{}-{}*{}": (1, 2),
    "({}+{})*{}": (0, 1),
    "({}-{})*{}": (),
    "{}*{}*{}": (0, 1, 2),
    "{}/{}+{}": (),
    "{}/{}-{}": (),
    "{}-{}/{}": (),
    "({}+{})/{}": (0, 1),
    "({}-{})/{}": (),
    "{}*{}/{}": (0, 1),
    "{}/({}+{})": (1, 2),
    "{}/({}-{})": (),
    "{}/{}/{}": (1, 2),
}
"""Expressions with * or /, and the places whose operands may change places. Up to that, they are all."""


class Solved(NamedTuple):
    """Numbers in the order of their item, the target, and the item's solution."""

    numbers: tuple[int, ...]
    target: int
    text: str


def sum_text(numbers: tuple[int, ...], signs: tuple[int, ...]) -> str:
    """A sum whose terms keep the order of the numbers, those with a plus first.

    >>> sum_text((3, 50, 7), (-1, 1, 1))
    '50+7-3'
    """
    terms = sorted((sign * number for sign, number in zip(signs, numbers, strict=True)), key=lambda n: n < 0)
    return "".join(f"{term:+d}" for term in terms).removeprefix("+")


def solved_sum(random: Random) -> Solved:
    """An item that + and - solve."""
    while True:
        numbers = tuple(random.randint(*NUMBERS) for _ in range(3))
        target = _value(numbers, random.choice(SIGNS))
        if TARGETS[0] <= target <= TARGETS[1]:
            first = next(signs for signs in SIGNS if _value(numbers, signs) == target)
            return Solved(numbers, target, sum_text(numbers, first))


def solved_product(random: Random) -> Solved:
    """An item that needs * or /, each as likely as any other."""
    table = products()
    shape, *operands, target = table[random.randrange(len(table))].tolist()
    order = random.sample(range(3), 3)
    numbers = tuple(operands[place] for place in order)
    return Solved(numbers, target, product_text(list(SHAPES)[shape], operands, numbers))


def product_text(shape: str, operands: list[int], numbers: tuple[int, ...]) -> str:
    """An expression with these operands; those that may change places are in the order of the numbers.

    >>> product_text("{}*{}+{}", [3, 20, 7], (20, 7, 3))
    '20*3+7'
    """
    free = SHAPES[shape]
    ordered = iter(sorted((operands[place] for place in free), key=numbers.index))
    return shape.format(*(next(ordered) if place in free else value for place, value in enumerate(operands)))


def random_expression(random: Random, numbers: tuple[int, ...], product: float) -> tuple[str, int | None]:
    """Any expression of the numbers, with * or / in a share ``product``, and its value; None: no integer."""
    if random.random() < product:
        text = random.choice(list(SHAPES)).format(*random.sample(numbers, 3))
        value = evaluate(text)
        return text, int(value) if value is not None and value.denominator == 1 else None
    signs = random.choice(SIGNS)
    return sum_text(numbers, signs), _value(numbers, signs)


@cache
def products() -> Int[Tensor, "N 5"]:
    """All items that need * or /, up to the order of their numbers: number of the shape, operands, target."""
    line = torch.arange(NUMBERS[0], NUMBERS[1] + 1)
    numbers = torch.cartesian_prod(line, line, line)
    a, b, c = numbers.unbind(1)
    fractions = [
        (a * b + c, 1), (a * b - c, 1), (a - b * c, 1), ((a + b) * c, 1), ((a - b) * c, 1), (a * b * c, 1),
        (a + c * b, b), (a - c * b, b), (a * c - b, c), (a + b, c), (a - b, c), (a * b, c),
        (a, b + c), (a, b - c), (a, b * c),
    ]  # fmt: skip
    found = []
    for shape, (above, below) in enumerate(fractions):
        below = torch.as_tensor(below).expand_as(a)
        divisor = torch.where(below == 0, 1, below)
        target = above // divisor
        usable = (below != 0) & (target * divisor == above)
        usable &= (target >= TARGETS[0]) & (target <= TARGETS[1])
        rows = numbers[usable]
        found.append(torch.cat([torch.full_like(rows[:, :1], shape), rows, target[usable][:, None]], dim=1))
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
