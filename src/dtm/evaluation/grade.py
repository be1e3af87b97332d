"""Grade a file of generations: return rows with a verdict, and totals.

A row is a JSON object with ``question``, ``ground_truth`` and ``generation``. A row that cannot be graded is
reported with its number and does not stop the others.
"""

from __future__ import annotations

import gzip
import math
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from dtm.errors import DataError, nearest, require
from dtm.files import bounded_lines, json_row
from dtm.tasks.answers import countdown, gsm8k, math500, sudoku
from dtm.tasks.answers.verdict import RULES, Grader, Rules, Verdict

GRADERS: dict[str, Grader] = {
    "countdown": countdown.grade,
    "sudoku": sudoku.grade,
    "gsm8k": gsm8k.grade,
    "math500": math500.grade,
}

FIELDS = {"question": str, "ground_truth": object, "generation": str}


@dataclass(slots=True)
class Totals:
    """Counts over the rows graded so far."""

    rows: int = 0
    correct: int = 0
    correct_cells: int = 0
    empty_cells: int = 0
    without_gold: int = 0
    """Rows whose ground truth is null: returned, but not counted."""
    other_tasks: int = 0
    """Rows that name another task in a field "task": not counted."""
    errors: int = 0
    undecided: int = 0
    """Comparisons that ran past their deadline twice: counted as wrong."""

    def add(self, verdict: Verdict) -> None:
        """Count one verdict."""
        if verdict.correct is None:
            self.without_gold += 1
            return
        self.rows += 1
        self.correct += verdict.correct
        self.undecided += verdict.undecided
        self.correct_cells += verdict.correct_cells or 0
        self.empty_cells += verdict.empty_cells or 0

    def describe(self) -> list[str]:
        """Return the counts as lines of text; for Sudoku also the share of cells."""
        lines = [f"{_share(self.correct, self.rows)} correct"]
        if self.empty_cells:
            lines.insert(0, f"{_share(self.correct_cells, self.empty_cells)} empty cells correct")
        if self.without_gold:
            lines.append(f"rows without a gold answer (ground_truth null), not counted: {self.without_gold}")
        if self.other_tasks:
            lines.append(f"rows of other tasks, not counted: {self.other_tasks}")
        if self.undecided:
            lines.append(f"comparisons past their deadline, counted as wrong: {self.undecided}")
        if self.errors:
            lines.append(f"rows that could not be graded: {self.errors}")
        return lines


def grade_rows(
    task: str, rules: str, lines: Iterable[bytes], totals: Totals
) -> Iterator[dict[str, Any] | DataError]:
    """Yield each row with its verdict, or its error, and update ``totals``."""
    require(task in GRADERS, f"no task {task!r}. {nearest(task, GRADERS)}")
    require(rules in RULES, f"no rules {rules!r}. {nearest(rules, RULES)}")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _row(line)
            if row.get("task", task) != task:
                totals.other_tasks += 1
                continue
            verdict = GRADERS[task](
                row["question"], row["ground_truth"], row["generation"], cast(Rules, rules)
            )
        except DataError as problem:
            totals.errors += 1
            yield DataError(f"line {number}: {problem}")
            continue
        totals.add(verdict)
        yield {**row, **verdict_fields(verdict)}


def open_lines(file: str) -> Iterator[bytes]:
    """Yield the lines of a file, gzipped or not; ``-`` is the standard input."""
    if file == "-":
        yield from bounded_lines(sys.stdin.buffer)
        return
    path = Path(file)
    require(path.is_file(), f"no file {file}", DataError)
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as stream:
            yield from bounded_lines(stream)
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise DataError(f"{file} is a damaged gzip file: {problem}") from None


def _row(line: bytes) -> dict[str, Any]:
    row = json_row(line, "", DataError)
    require(isinstance(row, dict), f"must be a JSON object, is a {type(row).__name__}", DataError)
    missing = [name for name in FIELDS if name not in row]
    require(not missing, f"no {', no '.join(missing)}; a row has {', '.join(FIELDS)}", DataError)
    for name, kind in FIELDS.items():
        require(isinstance(row[name], kind), f"{name} must be text, is {str(row[name])[:80]!r}", DataError)
    return row


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as JSON values, with cells for Sudoku; infinities become null."""
    fields = asdict(verdict)
    if isinstance(verdict.extracted, float) and not math.isfinite(verdict.extracted):
        fields["extracted"] = None
    if not verdict.undecided:
        del fields["undecided"]
    if verdict.empty_cells is None:
        del fields["correct_cells"], fields["empty_cells"]
    return fields


def _share(part: int, whole: int) -> str:
    percent = f" ({part / whole:.1%})" if whole else ""
    return f"{part} of {whole}{percent}"
