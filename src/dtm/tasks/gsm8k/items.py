"""GSM8K items, read from a data folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtm.errors import DataError, require
from dtm.tasks.data import read_rows


@dataclass(frozen=True, slots=True)
class Gsm8kItem:
    """A question and its answer."""

    question: str
    answer: str
    """The text after "####" in the data set, commas and sign included."""

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that a reward receives."""
        return {"answer": self.answer}


def test_items(folder: Path) -> list[Gsm8kItem]:
    """Read the 1,319 test questions."""
    return _read(folder, "gsm8k_test.jsonl")


def train_items(folder: Path) -> list[Gsm8kItem]:
    """Read the 7,473 training questions."""
    return _read(folder, "gsm8k_train.jsonl.gz")


def solved_items(folder: Path) -> list[tuple[Gsm8kItem, str]]:
    """Read the training questions, each with the data set's solution."""
    rows = read_rows(folder, "gsm8k_train.jsonl.gz", ("question", "answer"))
    return list(zip(train_items(folder), (row["answer"] for row in rows), strict=True))


def _read(folder: Path, name: str) -> list[Gsm8kItem]:
    items = []
    for number, row in enumerate(read_rows(folder, name, ("question", "answer")), start=1):
        _, mark, answer = row["answer"].rpartition("####")
        require(bool(mark), f"{name}, row {number}: the answer does not end in '#### number'", DataError)
        items.append(Gsm8kItem(row["question"], answer.strip()))
    return items
