"""Read the data sets by their file names from a folder: JSON lines or CSV, gzipped or not.

Instead of a folder, ``hub`` means the hub's data sets, loaded with the package `datasets`, and ``generated``
means generated items, for Countdown and Sudoku. A folder of that name has precedence.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dtm.errors import DataError, install_extra, require
from dtm.files import bounded_lines, json_row

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
"""The files of a data folder, and the source of each. The package ships none of them."""

ON_HUB = {
    "countdown_cd3_train_subset.jsonl": ("Jiayi-Pan/Countdown-Tasks-3to4", "train"),
    "gsm8k_test.jsonl": ("openai/gsm8k", "test"),
    "gsm8k_train.jsonl.gz": ("openai/gsm8k", "train"),
    "math500_test.jsonl": ("ankner/math-500", "test"),
    "math_train_7500.jsonl.gz": ("ankner/math-500", "train"),
}
"""Data set and split of the files that the hub has too. Its training split of MATH contains both files."""
CONFIGURATIONS = {"openai/gsm8k": "main"}
"""Configuration of data sets that have several."""

Row = dict[str, Any]


def is_hub(folder: Path) -> bool:
    """Return whether a folder's name means the hub."""
    return folder == Path("hub") and not folder.exists()


def is_generated(folder: Path) -> bool:
    """Return whether a folder's name means generated items."""
    return folder == Path("generated") and not folder.exists()


def read_rows(folder: Path, name: str, columns: tuple[str, ...]) -> list[Row]:
    """Read the rows of one file, and check their columns; ``x.jsonl`` may also be ``x.jsonl.gz``."""
    path, found = _hub_rows(name) if is_hub(folder) else _file_rows(folder, name)
    rows = []
    for number, row in found:
        missing = [column for column in columns if column not in row]
        require(not missing, f"{path}, row {number}: no column {', '.join(missing)}", DataError)
        rows.append(row)
    require(bool(rows), f"{path} holds no rows", DataError)
    return rows


def _hub_rows(name: str) -> tuple[str, Iterator[tuple[int, Row]]]:
    """Return the name of the hub's data set, and its numbered rows."""
    require(
        name in ON_HUB,
        f"{name} is not on the hub. It can be had from {SOURCES[name]}; name the folder that holds it with "
        "--data-dir, or make items with --data-dir generated",
        DataError,
    )
    dataset, split = ON_HUB[name]
    rows = hub_dataset(
        dataset,
        CONFIGURATIONS.get(dataset),
        split,
        needed_by="--data-dir hub",
        otherwise=f"name a folder with --data-dir; this file can be had from {SOURCES[name]}",
    )
    return f"{dataset}, split {split}", enumerate(map(dict, rows), start=1)


def hub_dataset(
    name: str, configuration: str | None, split: str, *, needed_by: str, otherwise: str
) -> Iterable[Mapping[str, Any]]:
    """Load a split of a data set of the hub; ``otherwise`` is the remedy without a network."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(f"{needed_by} needs the package datasets: {install_extra('hub')}") from None
    try:
        rows: Iterable[Mapping[str, Any]] = load_dataset(name, configuration, split=split)
    except Exception as problem:  # no network, no such data set, a full disk: many types of error
        raise DataError(
            f"{name} could not be read from the hub: {problem}. Without a network, {otherwise}"
        ) from problem
    return rows


def _file_rows(folder: Path, name: str) -> tuple[str, Iterator[tuple[int, Row]]]:
    path = _find(folder, name)
    return str(path), _rows(path)


def _find(folder: Path, name: str) -> Path:
    plain = name.removesuffix(".gz")
    for candidate in (name, plain, f"{plain}.gz"):
        if (folder / candidate).is_file():
            return folder / candidate
    or_hub = ", or take it from the hub with --data-dir hub" if name in ON_HUB else ""
    raise DataError(
        f"no file {folder / name}. It can be had from {SOURCES[name]}; store it under this name{or_hub}"
    )


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        if ".csv" in path.suffixes:
            with opener(path, "rt", encoding="utf-8", newline="") as file:
                yield from enumerate(csv.DictReader(file), start=1)
            return
        with opener(path, "rb") as stream:
            for number, line in enumerate(bounded_lines(stream), start=1):
                row = json_row(line, f"{path}, row {number}: ", DataError)
                require(isinstance(row, dict), f"{path}, row {number}: not a JSON object", DataError)
                yield number, row
    except DataError:
        raise
    except (ValueError, EOFError, OSError, zlib.error, csv.Error) as problem:
        raise DataError(f"{path} cannot be read: {problem}") from None
