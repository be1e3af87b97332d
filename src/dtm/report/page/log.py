"""The parts of a run's log that its page shows, in memory that does not grow with the run's length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dtm.report.page.curves import Rows, Thinner
from dtm.runs.events import is_number, newest_first
from dtm.tilts import LOW_ESS

CURVES = ("evaluation", "phase", "step", "rollouts")
"""Kinds of events with curves."""
PHASES = 60
"""Number of phases in the table of a page: the latest."""
WARNINGS = 20
"""Number of phases that a page warns of: the latest."""

Interval = Callable[[int, float], tuple[float | None, float | None]]
"""Function of step and tilt that returns the interval of an evaluation's mean reward."""


class Log:
    """The first, last and thinned rows of a log, and sums over it.

    Rows are added from the last to the first, so that repeats after a resume are known when they are read.
    """

    def __init__(self, counts: Mapping[str, int], points: int, interval: Interval) -> None:
        """``counts`` has the number of rows of each kind; a curve has at most ``points``."""
        self._interval = interval
        self._thinners = {kind: Thinner(counts.get(kind, 0), points) for kind in CURVES}
        self._phases: list[Mapping[str, Any]] = []
        self._warned: list[Mapping[str, Any]] = []
        self.first: dict[str, Mapping[str, Any]] = {}
        """The first row of each kind."""
        self.last: dict[str, Mapping[str, Any]] = {}
        """The last row of each kind."""
        self.unlisted = 0
        """Number of phases with a warning before those of `warned`."""
        self.rewards: tuple[float, ...] = ()
        """The first and the last held-out reward; a single one if there is one."""
        self.best: float | None = None
        """The best possible reward, as first measured."""
        self.fallback: str | None = None
        """Reason of the first fallback to exact decoding."""
        self.skipped = 0
        """Number of completions without a reward."""

    @classmethod
    def read(cls, path: Path, points: int, interval: Interval) -> Log:
        """Summarise a file: count its rows, then read it again; without a file the log is empty."""
        if not path.is_file():
            return cls({}, points, interval)
        end = path.stat().st_size
        counts = Counter(row["event"] for row in newest_first(path, end))
        log = cls(counts, points, interval)
        log._add_all(newest_first(path, end, warn=False))
        return log

    @property
    def curves(self) -> dict[str, Rows]:
        """The thinned rows of the kinds with curves."""
        return {kind: thinner.rows for kind, thinner in self._thinners.items()}

    @property
    def phases(self) -> Rows:
        """The latest phases, at most `PHASES`."""
        return self._phases[::-1]

    @property
    def warned(self) -> Rows:
        """The latest phases with a warning, at most `WARNINGS`."""
        return self._warned[::-1]

    def _add_all(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            self._add(row["event"], row)

    def _add(self, kind: str, row: Mapping[str, Any]) -> None:
        """Add the row before those added so far."""
        self.last.setdefault(kind, row)
        self.first[kind] = row
        if kind == "evaluation":
            self._add_evaluation(row)
        elif kind == "phase":
            self._add_phase(row)
        elif kind in self._thinners:
            self._thinners[kind].add(row)
        if kind == "rollouts":
            self.skipped += row.get("skipped") or 0
        elif kind == "audit":
            self.fallback = row.get("falls_back") or self.fallback

    def _add_evaluation(self, row: Mapping[str, Any]) -> None:
        low, high = self._interval(row["step"], row.get("tilt") or 0.0)
        self._thinners["evaluation"].add({**row, "reward_low": low, "reward_high": high})
        if is_number(row.get("reward")):
            self.rewards = row["reward"], *self.rewards[-1:]
        if is_number(row.get("best")):
            self.best = row["best"]

    def _add_phase(self, row: Mapping[str, Any]) -> None:
        self._thinners["phase"].add(_with_range(row))
        if len(self._phases) < PHASES:
            self._phases.append(row)
        if _has_warning(row):
            if len(self._warned) < WARNINGS:
                self._warned.append(row)
            else:
                self.unlisted += 1


def _with_range(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the ends of the absorbed share's standard error to a phase."""
    share, error = row.get("absorbed"), row.get("absorbed_error")
    if not is_number(share) or not is_number(error):
        return row
    return {**row, "absorbed_low": share - error, "absorbed_high": share + error}


def _has_warning(phase: Mapping[str, Any]) -> bool:
    """Return whether a phase absorbed too little for a known cause, or few rollouts carry its weights."""
    return bool(phase.get("cause")) or (bool(phase.get("steps")) and (phase.get("ess") or 1.0) < LOW_ESS)
