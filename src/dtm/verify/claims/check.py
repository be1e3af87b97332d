"""A claim: a sentence, a number measured on the code, and the bound that it must meet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

Relation = Literal["at most", "at least"]


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one claim."""

    claim: str
    """The statement, in words and symbols."""
    number: str
    """Its number in docs/method.md (section 12), or the paper's proposition."""
    name: str
    """The name of the function that measured it."""
    deviation: float
    """The measured value."""
    tolerance: float
    """The bound on it."""
    relation: Relation
    """Whether the deviation must stay below the tolerance or reach it."""

    @property
    def passed(self) -> bool:
        """Whether the claim holds; a deviation that is nan does not."""
        if self.relation == "at most":
            return self.deviation <= self.tolerance
        return self.deviation >= self.tolerance


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement and the function that measures how far the code is from it."""

    claim: str
    number: str
    tolerance: float
    relation: Relation
    measure: Callable[[], float]

    @property
    def name(self) -> str:
        """The measuring function's name."""
        return self.measure.__name__

    def position(self) -> tuple[int, str]:
        """The numbered claims in their order, then those of the paper alone."""
        digits = re.match(r"\d+", self.number)
        return (int(digits.group()) if digits else 1000, self.number)

    def check(self) -> Check:
        """Measure."""
        with _single_thread():
            deviation = self.measure()
        return Check(self.claim, self.number, self.name, deviation, self.tolerance, self.relation)


@contextmanager
def _single_thread() -> Iterator[None]:
    """Tensors this small only lose by being split, and most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


CLAIMS: list[Claim] = []
"""Every claim, by number."""


def claim(
    number: str, statement: str, tolerance: float, relation: Relation = "at most"
) -> Callable[[Callable[[], float]], Callable[[], float]]:
    """Enrol a function that returns the deviation from ``statement``."""

    def enrol(measure: Callable[[], float]) -> Callable[[], float]:
        CLAIMS.append(Claim(statement, number, tolerance, relation, measure))
        return measure

    return enrol
