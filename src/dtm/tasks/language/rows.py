"""One row of a language task: its prompt, and the columns for rewards and graders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dtm.errors import DataError, require
from dtm.files import bounded_lines, json_row
from dtm.random import stream
from dtm.tasks.language.tokenizer import Messages

RESERVED = {"prompts", "completions"}
"""Names of arguments of a reward besides the columns of the rows."""
Placed = tuple[str, Any]
"""A value, with its place for errors first."""


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt as text or messages, and its other columns."""

    prompt: Messages
    columns: Mapping[str, Any] = field(default_factory=dict)
    prefill: str = ""
    """Text with which the answer begins."""
    same: Hashable = None
    """Key that is equal for rows that must be in the same split; None: the prompt is the key."""

    @property
    def key(self) -> Hashable:
        """Key of the split."""
        return str(self.prompt) if self.same is None else self.same


def json_lines(path: Path) -> Iterator[Placed]:
    """Yield the values of a JSON-lines file, each with its place for errors; skip empty lines."""
    with path.open("rb") as stream:
        for number, line in enumerate(bounded_lines(stream), start=1):
            if line.strip():
                where = f"{path}, line {number}"
                yield where, json_row(line, f"{where}: ", DataError)


def numbered(values: Iterable[Any], source: str) -> Iterator[Placed]:
    """Yield values with their places: rows 1, 2, … of a source."""
    return ((f"{source}, row {number}", value) for number, value in enumerate(values, start=1))


def checked_rows(values: Iterable[Placed]) -> list[Row]:
    """Make rows from mappings with a "prompt" and equal other columns."""
    rows: list[Row] = []
    for where, value in values:
        rows.append(_checked(value, where, rows))
    return rows


def _checked(value: Any, where: str, before: Sequence[Row]) -> Row:
    """Check and make one row, with the columns of the first row."""
    has = f"; it has {', '.join(map(str, value))}" if isinstance(value, Mapping) and value else ""
    if isinstance(value, list):
        has = "; it is an array: write one object on each line"
    require(
        isinstance(value, Mapping) and "prompt" in value,
        f'{where}: must be an object with a "prompt"{has}',
        DataError,
    )
    columns = {name: column for name, column in value.items() if name != "prompt"}
    taken = sorted(columns.keys() & RESERVED)
    require(
        not taken,
        f"{where}: a reward already has the argument {', '.join(taken)}. Rename this column",
        DataError,
    )
    prompt = value["prompt"]
    require(
        is_prompt(prompt),
        f'{where}: "prompt" must be text, or a list of {{"role": …, "content": …}}',
        DataError,
    )
    require(
        not before or columns.keys() == before[0].columns.keys(),
        f"{where}: has the columns {', '.join(columns) or 'none'}, the first row has "
        f"{', '.join(before[0].columns) if before else ''}",
        DataError,
    )
    return Row(prompt, columns)


def is_prompt(value: Any) -> bool:
    """Return whether a value is text, or a list of messages."""
    return isinstance(value, str) or (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in value)
    )


def split_off(rows: Sequence[Row], held_out: int, seed: int) -> tuple[list[Row], list[Row]]:
    """Split off about ``held_out`` random rows (a tenth of few), so that no key is in both parts."""
    size = max(1, min(held_out, len(rows) // 10))
    keys = list(dict.fromkeys(row.key for row in rows))
    order = torch.randperm(len(keys), generator=stream(seed, "language-split")).tolist()
    by_key: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        by_key[row.key].append(row)
    chosen: list[Row] = []
    rest: list[Row] = []
    for place in order:
        (chosen if len(chosen) < size else rest).extend(by_key[keys[place]])
    return chosen, rest
