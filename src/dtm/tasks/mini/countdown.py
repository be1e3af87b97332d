"""Countdown in characters: three numbers and a target, then an expression that reaches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from dtm.random import stream
from dtm.tasks.answers.countdown import solves
from dtm.tasks.countdown import reward as rewards
from dtm.tasks.countdown.generate import NUMBERS, TARGETS, generate
from dtm.tasks.countdown.items import CountdownItem, test_items, train_items
from dtm.tasks.countdown.modes import mode_accuracies, share
from dtm.tasks.mini.characters import BLANK, Alphabet

TRAIN, HELD_OUT = 4096, 256
"""Items made for each split where no data folder gives them."""


@dataclass(frozen=True)
class Countdown:
    """A share ``solved`` of the corpus reaches its target; × and ÷ are a share ``multiply`` of its operators.

    With a data ``folder`` the items are the published ones, without they are generated.
    """

    folder: Path | None = None
    seed: int = 0
    solved: float = 0.18
    multiply: float = 0.1

    name = "countdown-mini"
    alphabet = Alphabet("0123456789,=>+-*/()")
    completion_length = 16
    reward_range = rewards.RANGE

    def items(self, split: str) -> Sequence[CountdownItem]:
        """Solvable items; none of a split occurs in another, whatever the order of its numbers."""
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
        """Numbers, target, and a mark that the answer follows."""
        return f"{','.join(map(str, item.numbers))}={item.target}>"

    def corpus(
        self, split: str, count: int, generator: torch.Generator, solved: float
    ) -> tuple[Int[Tensor, "N P"], Int[Tensor, "N W"]]:
        """Random expressions under their own value as the target, or under that of another one."""
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        while sum(len(target) for _, _, target in parts) < count:
            numbers, answer, target = self._pairs(4 * count, generator, solved)
            allowed = torch.ones_like(target, dtype=torch.bool)
            if split == "train":
                allowed = ~torch.isin(_keys(numbers, target), self._held_out.to(target.device))
            parts.append((numbers[allowed], answer[allowed], target[allowed]))
        numbers, answer, target = (torch.cat(column)[:count] for column in zip(*parts, strict=True))
        # The question must not give the order away in which the answer uses the numbers.
        shuffle = torch.rand(count, 3, generator=generator, device=target.device).argsort(1)
        return self._asked(numbers.gather(1, shuffle), target), answer

    def _pairs(
        self, count: int, generator: torch.Generator, solved: float
    ) -> tuple[Int[Tensor, "N 3"], Int[Tensor, "N W"], Int[Tensor, " N"]]:
        """Numbers, expression and target, which the expression reaches in a share ``solved`` of the rows."""
        numbers, answer, value = self._expressions(count, generator)
        count = len(value)
        device = generator.device
        is_right = torch.rand(count, generator=generator, device=device) < solved
        other = value[torch.randperm(count, generator=generator, device=device)]
        return numbers, answer, torch.where(is_right, value, other)

    def reward(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Any) -> list[float]:
        """1 for the target, 0.1 for the right numbers; the whole completion is the answer."""
        return rewards.reward(prompts, [f"<answer>{text}</answer>" for text in completions], **columns)

    def measure(self, completions: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> dict[str, float]:
        """Accuracy, and that of its two modes: items solvable by + and −, and items that need × or ÷."""
        numbers, target = columns["numbers"], columns["target"]
        correct = [solves(*row) for row in zip(completions, numbers, target, strict=True)]
        return {"accuracy": share(correct), **mode_accuracies(correct, numbers, target)}

    def _expressions(
        self, count: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "N 3"], Int[Tensor, "N W"], Int[Tensor, " N"]]:
        """Numbers, expression and value of those that come to a whole number in the range of targets."""
        device = generator.device

        def draw(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, device=device)

        low, high = NUMBERS
        numbers = low + (draw(count, 3) * (high - low + 1)).long()
        times = draw(count, 2) < self.multiply
        operators = 2 * times.long() + (draw(count, 2) < 0.5)  # 0 +, 1 −, 2 ×, 3 ÷
        form = (draw(count) * 3).long()
        above, below = _value(numbers, operators, form)
        whole = (below != 0) & (above % torch.where(below == 0, 1, below) == 0)
        value = torch.where(whole, above // torch.where(below == 0, 1, below), -1)
        kept = (value >= TARGETS[0]) & (value <= TARGETS[1])
        answer = self._written(numbers[kept], operators[kept], form[kept])
        return numbers[kept], answer, value[kept]

    def _written(
        self, numbers: Int[Tensor, "N 3"], operators: Int[Tensor, "N 2"], form: Int[Tensor, " N"]
    ) -> Int[Tensor, "N W"]:
        """Expressions on a grid; the brackets of a form stand in columns of their own."""
        digits = self._digits.to(numbers.device)[numbers]
        symbols = torch.tensor([self.alphabet.characters.index(s) for s in "+-*/"], device=numbers.device)[
            operators
        ]
        opening, closing = (self.alphabet.characters.index(bracket) for bracket in "()")

        def bracket(symbol: int, of_form: int) -> Int[Tensor, "N 1"]:
            return torch.where(form == of_form, symbol, BLANK)[:, None]

        return torch.cat(
            [
                bracket(opening, 1),
                digits[:, 0],
                symbols[:, :1],
                bracket(opening, 2),
                digits[:, 1],
                bracket(closing, 1),
                symbols[:, 1:],
                digits[:, 2],
                bracket(closing, 2),
            ],
            dim=1,
        )

    def _asked(self, numbers: Int[Tensor, "N 3"], target: Int[Tensor, " N"]) -> Int[Tensor, "N P"]:
        digits = self._digits.to(numbers.device)
        comma, equals, mark = (
            torch.full_like(numbers[:, :1], self.alphabet.characters.index(symbol)) for symbol in ",=>"
        )
        first, second, third = digits[numbers].unbind(1)
        return torch.cat([first, comma, second, comma, third, equals, digits[target], mark], dim=1)

    @cached_property
    def _held_out(self) -> Int[Tensor, " M"]:
        """The keys of all validation and test items."""
        items = [*self.items("validation"), *self.items("test")]
        numbers, target = torch.tensor([item.numbers for item in items]), [item.target for item in items]
        return _keys(numbers, torch.tensor(target))

    @cached_property
    def _digits(self) -> Int[Tensor, "M 3"]:
        """Every number up to the largest target in three places."""
        return self.alphabet.grid(str(number).rjust(3) for number in range(TARGETS[1] + 1))


def _value(
    numbers: Int[Tensor, "N 3"], operators: Int[Tensor, "N 2"], form: Int[Tensor, " N"]
) -> tuple[Int[Tensor, " N"], Int[Tensor, " N"]]:
    """The value as an unreduced fraction; without brackets × and ÷ bind before + and −."""
    one = torch.ones_like(numbers[:, 0])
    a, b, c = ((column, one) for column in numbers.unbind(1))
    first, second = operators.unbind(1)
    right_first = (form == 2) | ((form == 0) & (first < 2) & (second >= 2))
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
    """Equal for items that are the same up to the order of the numbers."""
    low, middle, high = numbers.sort(1).values.unbind(1)
    return ((low * 100 + middle) * 100 + high) * 1000 + target


def _distinct(items: Sequence[CountdownItem]) -> list[CountdownItem]:
    return list({item.key: item for item in items}.values())
