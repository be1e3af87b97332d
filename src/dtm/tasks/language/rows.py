"""One row of a language task: what is asked, and the columns that rewards and graders need."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dtm.errors import DataError, require
from dtm.random import stream
from dtm.tasks.language.tokenizer import Messages


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt as text or messages, and its other columns."""

    prompt: Messages
    columns: Mapping[str, Any] = field(default_factory=dict)
    prefill: str = ""
    """What the answer is made to begin with."""


def read_own(path: Path) -> list[Row]:
    """Rows of a JSON-lines file of one's own: a "prompt" in each, and the same other columns in all."""
    require(path.is_file(), f"task.data: no file {path}", DataError)
    rows: list[Row] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            found = json.loads(line)
        except json.JSONDecodeError as problem:
            raise DataError(f"{where}: not JSON ({problem.msg})") from None
        require(
            isinstance(found, dict) and "prompt" in found,
            f'{where}: must be an object with a "prompt"',
            DataError,
        )
        prompt = found.pop("prompt")
        require(
            isinstance(prompt, str) or _are_messages(prompt),
            f'{where}: "prompt" must be text, or a list of {{"role": …, "content": …}}',
            DataError,
        )
        require(
            not rows or found.keys() == rows[0].columns.keys(),
            f"{where}: has the columns {', '.join(found) or 'none'}, the first row has "
            f"{', '.join(rows[0].columns) if rows else ''}",
            DataError,
        )
        rows.append(Row(prompt, found))
    require(len(rows) >= 3, f"{path} holds {len(rows)} rows; each of the three splits needs one", DataError)
    return rows


def _are_messages(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in prompt)
    )


def split_off(rows: Sequence[Row], held_out: int, seed: int) -> tuple[list[Row], list[Row]]:
    """A random part of at most ``held_out`` rows (a tenth of few), and the rest."""
    size = max(1, min(held_out, len(rows) // 10))
    order = torch.randperm(len(rows), generator=stream(seed, "language-split")).tolist()
    shuffled = [rows[place] for place in order]
    return shuffled[:size], shuffled[size:]
