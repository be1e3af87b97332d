"""Read and write results: a JSON file with score and fingerprint, and the items in a file of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtm.errors import DataError, require
from dtm.runs.folder import make_folder
from dtm.writing import write_json, write_text

if TYPE_CHECKING:  # comparing results needs no torch
    from dtm.evaluation.protocol import Examination, Outcome

FOLDER = "evaluations"
"""Subfolder of a run's folder for its results; model cards read them."""


def place(asked: Examination, model: str, out: Path, exams: int = 1) -> Path:
    """Return the path of a result: in the folder ``out``, or ``out`` itself if it is a .json file.

    A result of the same model is replaced; a result of another model, or any other file, is an error.
    """
    if out.suffix == ".json":
        require(exams == 1, f"--json {out} is one file for {exams} lengths: name a folder")
        path = make_folder(out.parent) / out.name
    else:
        part = "-until-end" if asked.until_end else ""
        part += "" if asked.limit is None else f"-first{asked.limit}"
        path = make_folder(out) / f"{asked.task}-{asked.protocol}-{asked.length}{part}.json"
    if path.exists():
        other = read_result(path)["fingerprint"]["names"]["model"]
        require(other == model, f"{path} is a result of {other}: choose another file with --json", DataError)
    return path


def read_result(path: Path) -> dict[str, Any]:
    """Read a result; raise an error for any other file."""
    require(path.is_file(), f"no file {path}", DataError)
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise DataError(f"{path} is not JSON: {problem}") from None
    is_result = isinstance(result, dict) and {"measures", "fingerprint", "rows"} <= result.keys()
    require(is_result, f"{path} is not a result of `dtm eval --task … --json`", DataError)
    found: dict[str, Any] = result
    return found


def read_rows(path: Path, result: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Read the items of a result, if their file still exists."""
    rows = path.with_name(str(result["rows"]))
    if not rows.is_file():
        return None
    return [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]


def write_outcome(outcome: Outcome, path: Path) -> None:
    """Write the result, and its items to a second file."""
    rows = path.with_suffix(".jsonl")
    lines = (json.dumps({"task": outcome.asked.task, **row}) + "\n" for row in outcome.rows)
    write_text(rows, "".join(lines))
    write_json(path, {**as_json(outcome), "rows": rows.name})


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the result without its items, as JSON values."""
    asked = outcome.asked
    return {
        "task": asked.task,
        "protocol": asked.protocol,
        "length": asked.length,
        **({"until_end": True} if asked.until_end else {}),
        "items": len(outcome.rows),
        "measures": outcome.measures,
        "minutes": round(outcome.seconds / 60, 2),
        "fingerprint": outcome.fingerprint,
    }
