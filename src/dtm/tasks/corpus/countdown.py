"""Countdown with the prompts of the benchmark, and arithmetic in short lines.

A row of the benchmark has two hundred tokens of prompt and eight of answer. Lines of arithmetic teach the
same skill with many times the answers per token.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Any

from dtm.tasks.corpus.expressions import random_expression, solved_product, solved_sum
from dtm.tasks.corpus.part import Example, answer_block, pieces
from dtm.tasks.countdown.items import CountdownItem
from dtm.tasks.countdown.prompts import prompt

PRODUCTS = 0.25
"""Share of items that need * or /: 29 % of the published training items do, and 11 % of the test items."""
LINES = 8
"""Lines of arithmetic in a row."""
VALUES = 0.25
"""Share of rows whose lines ask for the value of an expression."""


@dataclass(frozen=True, slots=True)
class Countdown:
    """Items with an answer that reaches the target, or a careless one that does not."""

    held_out: Collection[Any]
    """Keys of items that must not occur."""

    def draw(self, random: Random, right: float) -> Example:
        """One item in the benchmark's words."""
        item, answer = _solved(random, self.held_out)
        if random.random() >= right:
            value: int | None = item.target
            while value == item.target:
                answer, value = random_expression(random, item.numbers, PRODUCTS)
        return Example.of(prompt(item), answer_block(answer))


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Lines of expressions whose values are learnt, or of small items whose solutions are. Always right."""

    held_out: Collection[Any]

    def draw(self, random: Random, right: float) -> Example:
        """One row of lines."""
        solved = [_solved(random, self.held_out) for _ in range(LINES)]
        if random.random() < VALUES:
            lines = [(f"{text}=", f"{item.target}\n") for item, text in solved]
            return Example(f"Write {LINES} equations.", pieces(lines))
        lines = [(f"{list(item.numbers)} {item.target}: ", f"{text}\n") for item, text in solved]
        return Example(
            f"Write {LINES} sets of three numbers, each with a target and a solution.", pieces(lines)
        )


def _solved(random: Random, held_out: Collection[Any]) -> tuple[CountdownItem, str]:
    """An item that is not held out, and its solution."""
    make = solved_product if random.random() < PRODUCTS else solved_sum
    while True:
        numbers, target, text = make(random)
        item = CountdownItem(numbers, target)
        if item.key not in held_out:
            return item, text
