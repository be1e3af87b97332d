"""Countdown in characters: three numbers and a target, then an expression that reaches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dtm.random import stream
from dtm.tasks.answers.countdown import solves
from dtm.tasks.countdown import reward as rewards
from dtm.tasks.countdown.generate import generate
from dtm.tasks.countdown.items import CountdownItem, test_items, train_items
from dtm.tasks.countdown.modes import mode_accuracies, share
from dtm.tasks.mini.characters import BLANK, Alphabet

TRAIN, HELD_OUT = 4096, 256
"""Number of items generated per split without a data folder."""
LARGEST = 100
"""Largest number and target of the corpus, as in the published test items."""
PLUS, MINUS, TIMES, OVER = range(4)
"""Codes of operators; those below TIMES are signs."""
PLAIN, LEFT, RIGHT = range(3)
"""Codes of the brackets of an expression: none, around the first two numbers, or around the last two."""


@dataclass(frozen=True, slots=True)
class Expressions:
    """Expressions of three numbers, each with an operator before it, and their targets."""

    numbers: Int[Tensor, "N 3"]
    operators: Int[Tensor, "N 3"]
    """Operators before the numbers; before the first one a sign or BLANK."""
    brackets: Int[Tensor, " N"]
    target: Int[Tensor, " N"]

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, rows: Tensor | slice) -> Expressions:
        return Expressions(*(column[rows] for column in self._columns))

    def __add__(self, others: Expressions) -> Expressions:
        return Expressions(*map(torch.cat, zip(self._columns, others._columns, strict=True)))

    @property
    def _columns(self) -> tuple[Tensor, ...]:
        return self.numbers, self.operators, self.brackets, self.target


@dataclass(frozen=True)
class Countdown:
    """Countdown in characters; a share ``solved`` of the corpus's answers is complete.

    The other answers end before the last number. Sums have the numbers in the order of the question, each
    with its sign, so that a model can copy the numbers and has to learn the signs. × and ÷ are a share
    ``multiply`` of the drawn operators. With a data ``folder`` the items are the published ones, else they
    are generated.
    """

    folder: Path | None = None
    seed: int = 0
    solved: float = 0.2
    multiply: float = 0.5

    name = "countdown-mini"
    alphabet = Alphabet("0123456789,=>+-*/()")
    completion_length = 16
    reward_range = rewards.RANGE

    def items(self, split: str) -> Sequence[CountdownItem]:
        """Return solvable items; splits have no item in common, up to the order of numbers."""
        if self.folder is not None:
            if split == "test":
                return test_items(self.folder)
            found = _distinct(train_items(self.folder))
            order = torch.randperm(len(found), generator=stream(self.seed, "countdown-split")).tolist()
            shuffled = [found[place] for place in order]
            return shuffled[:HELD_OUT] if split == "validation" else shuffled[HELD_OUT:]
        everything = generate(TRAIN + 2 * HELD_OUT, self.seed)
        held_out = everything[TRAIN:]
        parts = {"train": everything[:TRAIN], "validation": held_out[:HELD_OUT], "test": held_out[HELD_OUT:]}
        return parts[split]

    def question(self, item: CountdownItem) -> str:
        """Format numbers, target, and a mark before the answer."""
        return f"{','.join(map(_two_digits, item.numbers))}={_two_digits(item.target)}>"

    def corpus(
        self, split: str, count: int, generator: torch.Generator, solved: float
    ) -> tuple[Int[Tensor, "N P"], Int[Tensor, "N W"]]:
        """Draw questions with answers: random expressions that reach the target, most of them incomplete."""
        right = self._drawn(split, 4 * count, generator)
        while len(right) < count:
            right += self._drawn(split, 4 * count, generator)
        right = right[:count]
        # The question must not reveal the order in which a product uses the numbers.
        order = torch.rand(count, 3, generator=generator, device=generator.device).argsort(1)
        asked = right.numbers.gather(1, order)
        signs = right.operators.clamp(min=PLUS).gather(1, order)
        is_sum = (right.operators < TIMES).all(1, keepdim=True)
        answer = replace(
            right,
            numbers=torch.where(is_sum, asked, right.numbers),
            operators=torch.where(is_sum, signs, right.operators),
        )
        is_finished = torch.rand(count, generator=generator, device=generator.device) < solved
        return self._asked(asked, right.target), self._written(answer, is_finished)

    def _drawn(self, split: str, count: int, generator: torch.Generator) -> Expressions:
        """Draw ``count`` random expressions; keep those with a target that the split may use."""
        device = generator.device

        def draw(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, device=device)

        numbers = 1 + (draw(count, 3) * LARGEST).long()
        operators = TIMES * (draw(count, 2) < self.multiply).long() + (draw(count, 2) < 0.5)
        first, second = (operators < TIMES).unbind(1)
        # Brackets stand round a sum that is multiplied or divided, and nowhere else.
        has_brackets = (first != second) & (draw(count) < 0.5)
        brackets = torch.where(has_brackets, torch.where(first, LEFT, RIGHT), PLAIN)
        above, below = _value(numbers, operators, brackets)
        divisor = torch.where(below == 0, 1, below)
        target = above // divisor
        kept = (below != 0) & (above % divisor == 0) & (target >= 1) & (target <= LARGEST)
        if split == "train":
            kept &= ~torch.isin(_keys(numbers, target), self._held_out.to(device))
        nothing = torch.full_like(operators[:, :1], BLANK)
        return Expressions(numbers, torch.cat([nothing, operators], dim=1), brackets, target)[kept]

    def reward(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Any) -> list[float]:
        """Return 1 for the target, 0.1 for the right numbers; the whole completion is the answer."""
        return rewards.reward(prompts, [f"<answer>{text}</answer>" for text in completions], **columns)

    def measure(self, completions: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> dict[str, float]:
        """Return the accuracy, of all items and of both modes: solvable by + and −, or by × or ÷ only."""
        numbers, target = columns["numbers"], columns["target"]
        correct = [solves(*row) for row in zip(completions, numbers, target, strict=True)]
        return {"accuracy": share(correct), **mode_accuracies(correct, numbers, target)}

    def _written(self, expressions: Expressions, is_finished: Bool[Tensor, " N"]) -> Int[Tensor, "N W"]:
        """Write expressions on a grid; each kind of bracket has separate columns."""
        device = expressions.numbers.device
        digits = self._digits.to(device)[expressions.numbers]
        ids = [self.alphabet.characters.index(symbol) for symbol in "+-*/"]
        symbols = torch.tensor([*ids, BLANK], device=device)[expressions.operators]  # BLANK is the last place
        opening, closing = (self.alphabet.characters.index(bracket) for bracket in "()")

        def bracket(symbol: int, kind: int) -> Int[Tensor, "N 1"]:
            return torch.where(expressions.brackets == kind, symbol, BLANK)[:, None]

        begun = [
            symbols[:, :1],
            bracket(opening, LEFT),
            digits[:, 0],
            symbols[:, 1:2],
            bracket(opening, RIGHT),
            digits[:, 1],
        ]
        rest = torch.cat(
            [bracket(closing, LEFT), symbols[:, 2:], digits[:, 2], bracket(closing, RIGHT)], dim=1
        )
        return torch.cat([*begun, torch.where(is_finished[:, None], rest, BLANK)], dim=1)

    def _asked(self, numbers: Int[Tensor, "N 3"], target: Int[Tensor, " N"]) -> Int[Tensor, "N P"]:
        digits = self._digits.to(numbers.device)
        comma, equals, mark = (
            torch.full_like(numbers[:, :1], self.alphabet.characters.index(symbol)) for symbol in ",=>"
        )
        first, second, third = digits[numbers].unbind(1)
        return torch.cat([first, comma, second, comma, third, equals, digits[target], mark], dim=1)

    @cached_property
    def _held_out(self) -> Int[Tensor, " M"]:
        """Return the keys of all validation and test items."""
        items = [*self.items("validation"), *self.items("test")]
        numbers, target = torch.tensor([item.numbers for item in items]), [item.target for item in items]
        return _keys(numbers, torch.tensor(target))

    @cached_property
    def _digits(self) -> Int[Tensor, "M 3"]:
        """Write every number in three places."""
        return self.alphabet.grid(_two_digits(number).rjust(3) for number in range(LARGEST + 1))


def _value(
    numbers: Int[Tensor, "N 3"], operators: Int[Tensor, "N 2"], brackets: Int[Tensor, " N"]
) -> tuple[Int[Tensor, " N"], Int[Tensor, " N"]]:
    """Return the value as an unreduced fraction; × and ÷ have precedence over + and −."""
    one = torch.ones_like(numbers[:, 0])
    a, b, c = ((column, one) for column in numbers.unbind(1))
    first, second = operators.unbind(1)
    right_first = (brackets == RIGHT) | ((brackets == PLAIN) & (first < TIMES) & (second >= TIMES))
    left = _apply(_apply(a, b, first), c, second)
    right = _apply(a, _apply(b, c, second), first)
    return torch.where(right_first, right[0], left[0]), torch.where(right_first, right[1], left[1])


def _apply(
    x: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor], operator: Int[Tensor, " N"]
) -> tuple[Tensor, Tensor]:
    (a, b), (c, d) = x, y
    choices = ((a * d + c * b, b * d), (a * d - c * b, b * d), (a * c, b * d), (a * d, b * c))
    above, below = (torch.stack([choice[part] for choice in choices]) for part in (0, 1))
    return above.gather(0, operator[None])[0], below.gather(0, operator[None])[0]


def _keys(numbers: Int[Tensor, "N 3"], target: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """Return keys that are equal for items with the same numbers in any order and the same target."""
    low, middle, high = numbers.sort(1).values.unbind(1)
    return ((low * 1000 + middle) * 1000 + high) * 1000 + target


def _two_digits(number: int) -> str:
    """Pad to two digits, so that digits of the same place value are in the same column of most questions."""
    return f"{number:02d}"


def _distinct(items: Sequence[CountdownItem]) -> list[CountdownItem]:
    return list({item.key: item for item in items}.values())
