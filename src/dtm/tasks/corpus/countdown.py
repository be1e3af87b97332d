"""Countdown with the prompts of the benchmark, and arithmetic in short lines.

A row of the benchmark has two hundred tokens of prompt and eight of answer. Lines of arithmetic teach the
same skill with many times the answers per token.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Any

from dtm.tasks.arithmetic import evaluate
from dtm.tasks.corpus.part import Example, answer_block, pieces
from dtm.tasks.countdown.generate import NUMBERS, TARGETS
from dtm.tasks.countdown.items import CountdownItem
from dtm.tasks.countdown.prompts import prompt

MULTIPLY = 0.15
"""Share of expressions with * or /: of the published test items, 27 of 256 need one."""
SHAPES = ("{}*{}+{}", "{}*{}-{}", "{}-{}*{}", "({}+{})*{}", "({}-{})*{}", "{}/{}+{}", "{}/{}-{}", "{}-{}/{}",
          "({}+{})/{}", "({}-{})/{}")  # fmt: skip
SIGNS = ((1, 1, 1), (1, 1, -1), (1, -1, 1), (-1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1))
"""Signs of a sum that begins with a plus."""
LINES = 8
"""Lines of arithmetic in a row."""
VALUES = 0.25
"""Share of rows whose lines ask for the value of a sum."""


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
                answer, value = expression(random, item.numbers)
        return Example.of(prompt(item), answer_block(answer))


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Lines of sums whose values are learnt, or of small items whose solutions are. Always right."""

    held_out: Collection[Any]

    def draw(self, random: Random, right: float) -> Example:
        """One row of lines."""
        if random.random() < VALUES:
            sums = [_sum(random, self.held_out) for _ in range(LINES)]
            lines = [(f"{text}=", f"{value}\n") for text, value in sums]
            return Example(f"Write {LINES} equations.", pieces(lines))
        solved = [_solved(random, self.held_out) for _ in range(LINES)]
        lines = [(f"{list(item.numbers)} {item.target}: ", f"{text}\n") for item, text in solved]
        return Example(
            f"Write {LINES} sets of three numbers, each with a target and a solution.", pieces(lines)
        )


def expression(random: Random, numbers: tuple[int, ...]) -> tuple[str, int | None]:
    """A random expression that uses each of three numbers once, and its value; None: not an integer.

    The terms of a sum keep the order of the numbers, those with a plus first: what is left to find are the
    signs.
    """
    if random.random() < MULTIPLY:
        text = random.choice(SHAPES).format(*random.sample(numbers, 3))
        value = evaluate(text)
        return text, int(value) if value is not None and value.denominator == 1 else None
    signs = random.choice(SIGNS)
    terms = sorted((sign * number for sign, number in zip(signs, numbers, strict=True)), key=lambda n: n < 0)
    return "".join(f"{term:+d}" for term in terms).removeprefix("+"), sum(terms)


def _sum(random: Random, held_out: Collection[Any]) -> tuple[str, int]:
    """An expression of three numbers, and its value; it solves no item that is held out."""
    while True:
        numbers = _numbers(random)
        text, value = expression(random, numbers)
        if value is None or abs(value) >= 1000:
            continue
        if CountdownItem(numbers, value).key not in held_out:
            return text, value


def _solved(random: Random, held_out: Collection[Any]) -> tuple[CountdownItem, str]:
    """An item that is not held out, and an expression that reaches its target."""
    while True:
        numbers = _numbers(random)
        text, value = expression(random, numbers)
        if value is None or not TARGETS[0] <= value <= TARGETS[1]:
            continue
        item = CountdownItem(numbers, value)
        if item.key not in held_out:
            return item, text


def _numbers(random: Random) -> tuple[int, ...]:
    return tuple(random.randint(*NUMBERS) for _ in range(3))
