"""Countdown with the prompts of the benchmark, and arithmetic in short lines.

A row of the benchmark has two hundred tokens of prompt and sixty of answer. Lines of arithmetic teach the
same skill with several times the answers per token.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Any

from dtm.tasks.corpus.expressions import Solved, random_expression, solved_product, solved_sum
from dtm.tasks.corpus.part import Example, answer_block, pieces, reasoned
from dtm.tasks.countdown.items import CountdownItem
from dtm.tasks.countdown.prompts import prompt

PRODUCTS = 0.05
"""Share of items that need * or /: 29 % of the published training items do, and 11 % of the test items."""
LINES, EQUATIONS = 8, 12
"""Items in a row of items, and equations in a row of equations."""
EQUATION_SHARE = 0.15
"""Share of the rows of arithmetic that have equations."""


@dataclass(frozen=True, slots=True)
class Countdown:
    """Items with the work and the answer, or with a guess: any expression of the numbers, without work."""

    held_out: Collection[Any]
    """Keys of items that must not occur."""

    def draw(self, random: Random, right: float) -> Example:
        """One item in the benchmark's words."""
        solved = _solved(random, self.held_out)
        if random.random() < right:
            answer = reasoned(solved.equation, solved.text)
        else:
            answer = answer_block(random_expression(random, solved.numbers, PRODUCTS))
        return Example.of(prompt(CountdownItem(solved.numbers, solved.target)), answer)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Lines of equations whose values are learnt, or of small items whose solutions are. Always right."""

    held_out: Collection[Any]

    def draw(self, random: Random, right: float) -> Example:
        """One row of lines."""
        if random.random() < EQUATION_SHARE:
            equations = [_solved(random, self.held_out).equation for _ in range(EQUATIONS)]
            split = (equation.partition("=") for equation in equations)
            lines = [(f"{asked}=", f"{told}\n") for asked, _, told in split]
            return Example(f"Write {EQUATIONS} equations.", pieces(lines))
        items = [_solved(random, self.held_out) for _ in range(LINES)]
        lines = [(f"{list(item.numbers)} {item.target}: ", f"{item.text}\n") for item in items]
        return Example(
            f"Write {LINES} sets of three numbers, each with a target and a solution.", pieces(lines)
        )


def _solved(random: Random, held_out: Collection[Any]) -> Solved:
    """An item that is not held out, and whose sum of all numbers does not solve one that is."""
    make = solved_product if random.random() < PRODUCTS else solved_sum
    while True:
        solved = make(random)
        told = solved.target, sum(solved.numbers)
        if not any(CountdownItem(solved.numbers, value).key in held_out for value in told):
            return solved
