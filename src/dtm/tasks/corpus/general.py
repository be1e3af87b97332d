"""Parts of rows from a list or a file: general instructions of the source model, or a user's own rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from dtm.errors import DataError, require
from dtm.tasks.corpus.part import Example
from dtm.tasks.language.own import open_rows
from dtm.tasks.language.rows import is_prompt
from dtm.writing import write_text


@dataclass(frozen=True, slots=True)
class Rows:
    """A part that draws rows from a list: the source's instructions, or a user's own rows."""

    rows: Sequence[Example]

    def draw(self, random: Random, right: float) -> Example:
        """One row."""
        return random.choice(self.rows)


def save_rows(rows: Sequence[Example], path: Path) -> None:
    """Write rows as JSON lines."""
    lines = [json.dumps({"prompt": row.prompt, "completion": row.answer}) for row in rows]
    write_text(path, "\n".join(lines) + "\n")


def read_rows(path: Path) -> list[Example]:
    """Read rows of a user's source (`open_rows`), each with a "prompt" and a "completion"."""
    rows = [_example(row, where) for where, row in open_rows(path, "corpus.data")]
    require(bool(rows), f"{path} has no rows", DataError)
    return rows


def _example(row: Any, where: str) -> Example:
    require(
        isinstance(row, dict) and is_prompt(row.get("prompt")) and isinstance(row.get("completion"), str),
        f'{where}: must be an object with a "prompt" (text or messages) and a "completion" (text)',
        DataError,
    )
    return Example.of(row["prompt"], row["completion"])
