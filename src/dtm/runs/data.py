"""Store rows that were given in Python as a file, so that a run can be opened and resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtm.config import LanguageConfig, RunConfig
from dtm.distributed import current
from dtm.errors import DataError, require
from dtm.runs.folder import RUNS, make_folder
from dtm.tasks.language.own import RowSource, read_own
from dtm.writing import write_text


def with_data(config: RunConfig, data: RowSource, out: str | Path | None) -> RunConfig:
    """Return the configuration with these rows as its data.

    The name of a file or of a data set is kept. Rows in memory are stored as JSON lines in the parent folder
    of ``out``, under a hash of their contents.
    """
    task = config.task
    require(
        isinstance(task, LanguageConfig) and task.kind == "custom",
        f"data: {config.recipe} is a run of the task {task.kind}, which has its own rows. Use a recipe of "
        "the task custom, for example llada-custom",
    )
    assert isinstance(task, LanguageConfig)
    if not isinstance(data, str | Path):
        rows = list(data)
        read_own(rows)  # report a bad row before the file is written
        folder = RUNS if out is None else Path(out).parent
        data = current().by_first(lambda: store_rows(rows, folder))
    return replace(config, task=replace(task, data=str(data)))


def store_rows(rows: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write rows as ``rows-HASH.jsonl`` into a folder, unless the file exists; return its absolute path."""
    text = "".join(f"{_line(row, number)}\n" for number, row in enumerate(rows, start=1))
    name = f"rows-{hashlib.sha256(text.encode()).hexdigest()[:12]}.jsonl"
    path = make_folder(folder).absolute() / name
    if not path.is_file():
        write_text(path, text)
    return path


def _line(row: Mapping[str, Any], number: int) -> str:
    for column, value in row.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as problem:
            raise DataError(
                f'data, row {number}, column "{column}": {problem}. The rows are stored as JSON: give '
                "numbers, texts, lists and dicts"
            ) from None
    return json.dumps(dict(row))
