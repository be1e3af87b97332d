"""Reading the data sets from a folder: JSON lines or CSV, gzipped or not, by the names they have there."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtm.errors import DataError, require

SOURCES = {
    "countdown_cd3_test.jsonl": "github.com/facebookresearch/SPG, dataset/countdown_cd3_test.jsonl",
    "countdown_cd3_train_subset.jsonl": "the three-number rows (nums, target) of github.com/liumy2010/UFT, "
    "data/countdown/train.parquet, or of Jiayi-Pan/Countdown-Tasks-3to4 on the hub",
    "gsm8k_test.jsonl": "github.com/openai/grade-school-math, grade_school_math/data/test.jsonl",
    "gsm8k_train.jsonl.gz": "github.com/openai/grade-school-math, grade_school_math/data/train.jsonl",
    "math500_test.jsonl": "github.com/openai/prm800k, prm800k/math_splits/test.jsonl",
    "math_train_7500.jsonl.gz": "the training split of MATH (problem, solution), github.com/hendrycks/math",
    "math_test_minus_math500_4500.jsonl.gz": "the test split of MATH (problem, solution) without the MATH500 "
    "problems, github.com/hendrycks/math",
    "sudoku4x4_test_spg256.csv": "github.com/facebookresearch/SPG, dataset/test_sudoku_split_new.csv",
}
"""The files of a data folder, and where each can be had. The package ships none of them."""

Row = dict[str, Any]


def read_rows(folder: Path, name: str, columns: tuple[str, ...]) -> list[Row]:
    """The rows of one file, each checked to have the columns. ``x.jsonl`` may stand as ``x.jsonl.gz``."""
    path = _find(folder, name)
    rows = []
    for number, row in _rows(path):
        missing = [column for column in columns if column not in row]
        require(not missing, f"{path}, row {number}: no column {', '.join(missing)}", DataError)
        rows.append(row)
    require(bool(rows), f"{path} holds no rows", DataError)
    return rows


def _find(folder: Path, name: str) -> Path:
    plain = name.removesuffix(".gz")
    for candidate in (name, plain, f"{plain}.gz"):
        if (folder / candidate).is_file():
            return folder / candidate
    raise DataError(f"no file {folder / name}. It can be had from {SOURCES[name]}; store it under this name")


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            if ".csv" in path.suffixes:
                yield from enumerate(csv.DictReader(file), start=1)
                return
            for number, line in enumerate(file, start=1):
                row = json.loads(line)
                require(isinstance(row, dict), f"{path}, row {number}: not a JSON object", DataError)
                yield number, row
    except (ValueError, EOFError, gzip.BadGzipFile) as problem:
        if isinstance(problem, DataError):
            raise
        raise DataError(f"{path} cannot be read: {problem}") from None
