"""Countdown with the prompts of the benchmark, and arithmetic in short lines.

A row of the benchmark has two hundred tokens of prompt and forty of answer. Lines of arithmetic teach the
values and solutions with many times the answers per token. The skill does not carry over by itself to the
benchmark's words, so these have more rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Any

from dtm.tasks.corpus.expressions import SolvedItem, solved_product, solved_sum
from dtm.tasks.corpus.part import BEGUN_SHARE, Example, answer_block, pieces, reasoned
from dtm.tasks.countdown.items import CountdownItem
from dtm.tasks.countdown.prompts import prompt

PRODUCTS = 0.03
"""Share of items that need * or /. 29 % of the published training items do, and 11 % of the test items, but
models hardly learn them, and learn the other items less well."""
LINES, EQUATIONS = 8, 18
"""Number of items, and of equations, in a row of lines."""
EQUATION_SHARE = 0.15
"""Share of arithmetic rows that consist of equations."""


@dataclass(frozen=True, slots=True)
class Countdown:
    """Items with an equation as reasoning and the answer, or with a careless answer: the sum, no reasoning.

    The sum of all numbers is seldom right, so what the model solves is skill. A random expression would be
    right in one case in six, and pass@k would measure luck.
    """

    held_out: Collection[Any]
    """Keys of items that must not occur."""
    worked: float
    """Share of answers with reasoning, where its start is not given."""

    def draw(self, random: Random, right: float) -> Example:
        """Draw one item, worded as in the benchmark."""
        solved = _solved(random, self.held_out)
        asked = prompt(CountdownItem(solved.numbers, solved.target))
        worked = reasoned(f"{solved.text}={solved.target}", solved.text)
        if random.random() < BEGUN_SHARE:
            return Example.worked(asked, worked)
        careless = answer_block("+".join(map(str, solved.numbers)))
        return Example.of(asked, worked if random.random() < self.worked else careless)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Lines of equations to learn the values, or of small items to learn the solutions. Always right."""

    held_out: Collection[Any]

    def draw(self, random: Random, right: float) -> Example:
        """Draw one row of lines."""
        if random.random() < EQUATION_SHARE:
            solved = [_solved(random, self.held_out) for _ in range(EQUATIONS)]
            lines = [(f"{item.text}=", f"{item.target}\n") for item in solved]
            return Example(f"Write {EQUATIONS} equations.", pieces(lines))
        items = [_solved(random, self.held_out) for _ in range(LINES)]
        lines = [(f"{list(item.numbers)} {item.target}: ", f"{item.text}\n") for item in items]
        return Example(
            f"Write {LINES} sets of three numbers, each with a target and a solution.", pieces(lines)
        )


def _solved(random: Random, held_out: Collection[Any]) -> SolvedItem:
    """Draw an item that is not held out."""
    make = solved_product if random.random() < PRODUCTS else solved_sum
    while True:
        solved = make(random)
        if CountdownItem(solved.numbers, solved.target).key not in held_out:
            return solved
