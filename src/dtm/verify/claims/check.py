"""A claim: a statement, a deviation measured on the code, and its tolerance."""

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
    """Statement in words and symbols."""
    number: str
    """Number of the claim in docs/method.md (section 12), or the paper's proposition."""
    name: str
    """Name of the function that measures the deviation."""
    deviation: float
    """Measured value."""
    tolerance: float
    """Bound on the deviation."""
    relation: Relation
    """Whether the deviation must be at most, or at least, the tolerance."""

    @property
    def passed(self) -> bool:
        """Whether the claim holds; false for a deviation of nan."""
        if self.relation == "at most":
            return self.deviation <= self.tolerance
        return self.deviation >= self.tolerance


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement and the function that measures the deviation of the code from it."""

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
        """Sort key: the numbered claims in order, then those of the paper."""
        digits = re.match(r"\d+", self.number)
        return (int(digits.group()) if digits else 1000, self.number)

    def check(self) -> Check:
        """Measure the deviation."""
        with _single_thread():
            deviation = self.measure()
        return Check(self.claim, self.number, self.name, deviation, self.tolerance, self.relation)


@contextmanager
def _single_thread() -> Iterator[None]:
    """Context with one thread: several threads are slower on tensors this small."""
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
    """Decorator that adds a function to `CLAIMS`; it returns the deviation from ``statement``."""

    def enrol(measure: Callable[[], float]) -> Callable[[], float]:
        CLAIMS.append(Claim(statement, number, tolerance, relation, measure))
        return measure

    return enrol
