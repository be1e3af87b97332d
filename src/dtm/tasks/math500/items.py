"""MATH items, read from a data folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtm.tasks.answers.markup import published_box
from dtm.tasks.data import is_hub, read_rows

TRAIN = ("math_train_7500.jsonl.gz", "math_test_minus_math500_4500.jsonl.gz")


@dataclass(frozen=True, slots=True)
class MathItem:
    """A problem and its answer in LaTeX, without the box."""

    problem: str
    answer: str

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that a reward receives."""
        return {"answer": self.answer}


def test_items(folder: Path) -> list[MathItem]:
    """Read the 500 problems of MATH500."""
    rows = read_rows(folder, "math500_test.jsonl", ("problem", "answer"))
    return [MathItem(row["problem"], row["answer"]) for row in rows]


def train_items(folder: Path) -> list[MathItem]:
    """Read the other 12,000 problems of MATH, without the few whose solution has an empty box."""
    names = TRAIN[:1] if is_hub(folder) else TRAIN  # the hub's training split contains both
    rows = [row for name in names for row in read_rows(folder, name, ("problem", "solution"))]
    return [MathItem(row["problem"], answer) for row in rows if (answer := _boxed(row["solution"]))]


def _boxed(solution: str) -> str | None:
    r"""Return the answer in a solution's last box; some write ``\boxed 5``."""
    box = published_box(solution)
    return None if box == solution else box
