"""Events of a run, which are passed to callbacks; writers of events to files, and readers."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

from dtm.errors import DtmWarning, StorageError
from dtm.writing import write_text, writing

Kind = Literal[
    "rollouts", "audit", "step", "phase", "evaluation", "samples", "measuring", "resumed", "stopped"
]


@dataclass(frozen=True, slots=True)
class Event:
    """An event and its values.

    ``audit`` when decoding is compared with exact decoding, ``rollouts`` after rollouts are drawn, ``step``
    after an optimiser step, ``phase`` at the end of a phase, ``evaluation`` after measuring on held-out
    prompts and ``samples`` with the completions behind it, ``measuring`` before an adapted model is measured,
    ``resumed`` and ``stopped`` once each.
    """

    kind: Kind
    step: int
    """Optimiser steps since the start of the run."""
    values: Mapping[str, Any]


Callback = Callable[[Event], None]
"""Anything that can be called with an event; ``callbacks=[print]`` works."""
Emit = Callable[..., None]
"""Function that sends an event, of a kind and with named values, to every callback."""
CHUNK = 1 << 16
"""Bytes that are read at once from the end of a log."""
NUMBERS = (
    *("tilt", "h", "phase", "steps", "seconds", "skipped", "ess", "absorbed", "absorbed_error"),
    *("reward", "best", "distinct", "coverage", "valid"),
)
"""Values with which readers calculate: numbers or null in every row that has them, else it is damaged."""


class Callbacks:
    """The callbacks of a run; a failed write is raised by `check`, where the run can be saved."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks
        self._failed: StorageError | None = None

    def __call__(self, event: Event) -> None:
        """Call each with an event, also after a failed write."""
        for callback in self._callbacks:
            try:
                callback(event)
            except StorageError as problem:
                self._failed = problem

    def check(self) -> None:
        """Raise the latest failed write."""
        if self._failed is not None:
            raise self._failed


class SampleFiles:
    """Callback that writes the completions of each evaluation to ``samples/``, one JSON object per line.

    Completions with recorded reveals have them under "replay".
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, event: Event) -> None:
        """Write one file per tilt."""
        if event.kind == "samples":
            columns = (event.values[name] for name in ("prompts", "completions", "rewards"))
            names = ("prompt", "completion", "reward")
            rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            for replay in event.values.get("replays", ()):
                rows[replay["row"]]["replay"] = {k: v for k, v in replay.items() if k != "row"}
            path = self.folder / f"step-{event.step:08d}-tilt-{event.values['tilt']:09.4f}.jsonl"
            with writing(path):
                self.folder.mkdir(exist_ok=True)
            write_text(path, "\n".join(map(json.dumps, rows)) + "\n")


class JsonLines:
    """Callback that appends every event except samples to ``metrics.jsonl``, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _drop_torn_line(path)

    def __call__(self, event: Event) -> None:
        """Append one line; numbers that JSON cannot hold become null."""
        if event.kind == "samples":
            return
        lost = not self.path.is_file() or self.path.stat().st_size == 0
        if event.kind == "resumed" and event.step > 0 and lost:
            notice = f"{self.path} has lost the rows of {event.step} steps; figures begin here"
            warnings.warn(notice, DtmWarning, stacklevel=2)
        row = {"event": event.kind, "step": event.step, **event.values}
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        with writing(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite) + "\n")


def read_events(path: Path, kind: str) -> list[dict[str, Any]]:
    """Read the rows of one kind, in order, without those that were repeated after a resume."""
    return [row for row in newest_first(path) if row["event"] == kind][::-1]


def newest_first(path: Path, end: int | None = None, warn: bool = True) -> Iterator[dict[str, Any]]:
    """Read the rows of a log from its last to its first, in bounded memory; skip damaged lines.

    Rows of a stopped attempt that lie after the step of a resume are left out: older rows of all kinds with
    a step above that of a ``resumed`` row. Runs without such rows (`dtm pretrain`, `dtm adapt`) repeat steps;
    of those only the last are returned. The steps of one kind of row fall only where a run was resumed, so
    from the end an older row is a repeat if its step exceeds the lowest one of its kind so far.

    Args:
        path: the log.
        end: read only so many bytes of it, to read the same rows twice while a run adds others.
        warn: warn of damaged lines, after the last row.
    """
    resumed = math.inf  # the lowest step from which a run was resumed, so far
    lowest: dict[str, int] = {}
    tilts: dict[str, set[float | None]] = {}  # of the rows at the lowest step
    damaged = first = number = 0
    lines = _lines_backwards(path, path.stat().st_size if end is None else end)
    next(lines)  # what follows the last newline: nothing, or a torn line
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if row is None:
            damaged, first = damaged + 1, number
            continue
        kind, step, tilt = row["event"], row["step"], row.get("tilt")
        if step > resumed:
            continue
        if kind == "resumed":
            resumed = step
        if kind not in lowest or step < lowest[kind]:
            lowest[kind], tilts[kind] = step, set()
        if step == lowest[kind] and tilt not in tilts[kind]:
            tilts[kind].add(tilt)
            yield row
    if damaged and warn:
        _warn_of_damage(path, damaged, number + 1 - first)


def read_lines(path: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Read the objects of a JSON-lines file that have the given keys; skip damaged lines with a warning.

    A run that was killed, or is writing now, may end in half a line.
    """
    damaged = first = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            row = _parsed(line, names)
            if row is None:
                damaged, first = damaged + 1, first or number
            else:
                yield row
    if damaged:
        _warn_of_damage(path, damaged, first)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a finite number and not a bool.

    >>> [is_number(value) for value in (2, 0.5, True, math.nan, "1", 10**400)]
    [True, True, False, False, False, False]
    """
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_real and abs(value) <= sys.float_info.max


def _row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line of the log; None if it is damaged or a value has the wrong type."""
    row = _parsed(line, ("event", "step"))
    if row is None or not isinstance(row["event"], str) or type(row["step"]) is not int:
        return None
    values = (row.get(name) for name in NUMBERS)
    return row if all(value is None or is_number(value) for value in values) else None


def _parsed(line: bytes, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the JSON object of a line; None if it is damaged or lacks a key."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and all(name in row for name in names) else None


def _warn_of_damage(path: Path, count: int, first: int) -> None:
    notice = f"{path}: {count} damaged lines are skipped, the first is line {first}"
    warnings.warn(notice, DtmWarning, stacklevel=3)


def _lines_backwards(path: Path, end: int) -> Iterator[bytes]:
    """Read the lines of a file's first ``end`` bytes, the last one first.

    The first result is what follows the last newline: empty, or a torn line.
    """
    parts: list[bytes] = []  # of a line whose start is not read yet, its end first
    with path.open("rb") as file:
        while end > 0:
            begin = max(end - CHUNK, 0)
            file.seek(begin)
            *lines, last = file.read(end - begin).split(b"\n")
            parts.append(last)
            if lines:
                yield b"".join(reversed(parts))
                yield from reversed(lines[1:])
                parts = lines[:1]
            end = begin
    yield b"".join(reversed(parts))


def _drop_torn_line(path: Path) -> None:
    """Remove an incomplete last line, left by a run that was killed while writing."""
    if path.exists():
        size = path.stat().st_size
        torn = len(next(_lines_backwards(path, size)))
        if torn:
            with path.open("r+b") as file:
                file.truncate(size - torn)
