"""Countdown with the prompts of the benchmark, and rows with many small questions of the same kind.

A row of the benchmark has two hundred tokens of prompt and forty of answer. Lines of arithmetic teach the
same skill with many times the answers per token. Rows of questions carry it over to the words and to the form
of the answers of the benchmark.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Any

from dtm.tasks.corpus.expressions import SolvedItem, solved_product, solved_sum
from dtm.tasks.corpus.part import Example, answer_block, pieces, reasoned
from dtm.tasks.countdown.items import CountdownItem
from dtm.tasks.countdown.prompts import QUESTION, prompt

PRODUCTS = 0.03
"""Share of items that need * or /. 29 % of the published training items do, and 11 % of the test items, but
models hardly learn them, and learn the other items less well."""
LINES, EQUATIONS, QUESTIONS = 8, 18, 3
"""Number of items, of equations, and of questions in a row."""
EQUATION_SHARE, QUESTION_SHARE = 0.1, 0.45
"""Shares of arithmetic rows that consist of equations, and of questions in the benchmark's words. A base
without questions was right on 98 % of the test's sums in lines, and on three quarters of them when asked as
in the benchmark."""


@dataclass(frozen=True, slots=True)
class Countdown:
    """Items with an equation as reasoning and the answer, or with a careless answer: the sum, no reasoning.

    The sum of all numbers is seldom right, so what the model solves is skill. A random expression would be
    right in one case in six, and pass@k would measure luck.
    """

    held_out: Collection[Any]
    """Keys of items that must not occur."""

    def draw(self, random: Random, right: float) -> Example:
        """Draw one item, worded as in the benchmark."""
        solved = _solved(random, self.held_out)
        answer = _worked(solved)
        if random.random() >= right:
            answer = answer_block("+".join(map(str, solved.numbers)))
        return Example.of(prompt(CountdownItem(solved.numbers, solved.target)), answer)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Rows of equations (values), of items (solutions), or of questions in the benchmark's words.

    Their answers are always right.
    """

    held_out: Collection[Any]

    def draw(self, random: Random, right: float) -> Example:
        """Draw one row."""
        kind = random.random()
        if kind < EQUATION_SHARE:
            solved = self._solved(random, EQUATIONS)
            lines = [(f"{item.text}=", f"{item.target}\n") for item in solved]
            return Example(f"Write {EQUATIONS} equations.", pieces(lines))
        if kind < EQUATION_SHARE + QUESTION_SHARE:
            solved = self._solved(random, QUESTIONS)
            asked = [QUESTION.format(numbers=list(item.numbers), target=item.target) for item in solved]
            lines = [(f"{each}\n", f"{_worked(item)}\n") for each, item in zip(asked, solved, strict=True)]
            return Example(f"Ask {QUESTIONS} questions and answer them.", pieces(lines))
        solved = self._solved(random, LINES)
        lines = [(f"{list(item.numbers)} {item.target}: ", f"{item.text}\n") for item in solved]
        return Example(
            f"Write {LINES} sets of three numbers, each with a target and a solution.", pieces(lines)
        )

    def _solved(self, random: Random, count: int) -> list[SolvedItem]:
        return [_solved(random, self.held_out) for _ in range(count)]


def _worked(solved: SolvedItem) -> str:
    """Return the answer with the equation as reasoning."""
    return reasoned(f"{solved.text}={solved.target}", solved.text)


def _solved(random: Random, held_out: Collection[Any]) -> SolvedItem:
    """Draw an item that is not held out."""
    make = solved_product if random.random() < PRODUCTS else solved_sum
    while True:
        solved = make(random)
        if CountdownItem(solved.numbers, solved.target).key not in held_out:
            return solved
