"""The samples of a run's evaluations: a stratified selection, reward histograms, and changed answers."""

from __future__ import annotations

import json
import math
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from dtm.errors import CheckpointError
from dtm.evaluation.reveals import as_text
from dtm.runs.events import read_lines

NAME = re.compile(r"step-(\d+)-tilt-([\d.]+)\.jsonl")
MOST_EVALUATIONS = 8
"""Number of evaluations with samples and histograms: the first, the last, and some in between."""
BINS = 20
MOST_MOVED = 10
"""Number of answers listed as gained, and as lost."""


@dataclass(frozen=True)
class Evaluated:
    """The samples of one evaluation."""

    step: int
    tilt: float
    rows: list[dict[str, Any]]

    @cached_property
    def by_prompt(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of each prompt, which are adjacent in the file."""
        groups: dict[str, list[dict[str, Any]]] = {}
        last, rows = object(), list[dict[str, Any]]()
        for row in self.rows:
            if row["prompt"] != last:
                last = row["prompt"]
                rows = groups.setdefault(json.dumps(last), [])
            rows.append(row)
        return groups

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """Return the 95 % interval of the mean reward over prompts, whose completions are not independent."""
        groups = self.by_prompt.values()
        means = [sum(row["reward"] for row in rows) / len(rows) for rows in groups]
        if len(means) < 2:
            return None, None
        mean = sum(means) / len(means)
        spread = sum((value - mean) ** 2 for value in means) / (len(means) - 1)
        half = 1.96 * math.sqrt(spread / len(means))
        return mean - half, mean + half


class Evaluations(Sequence[Evaluated]):
    """The evaluations of a run, in order, without those that have no rewards.

    Their samples stay on disk. A page asks for the same few of them again and again: those are kept.
    """

    def __init__(self, folder: Path) -> None:
        """Read every file once, one at a time."""
        self._folder, self._kept = folder, dict[int, Evaluated]()
        self._names, self._low, self._high = list[str](), array("d"), array("d")
        self.total = 0
        """Number of samples of all evaluations."""
        self.recorded: list[int] = []
        """Places of the evaluations with recorded reveals."""
        for name in sorted(entry.name for entry in folder.glob("step-*.jsonl")):
            found = _read(folder / name)
            if found is not None:
                self._note(name, found)

    def _note(self, name: str, found: Evaluated) -> None:
        if any("replay" in row for row in found.rows):
            self.recorded.append(len(self._names))
        self.total += len(found.rows)
        self._names.append(name)
        for ends, end in zip((self._low, self._high), found.interval, strict=True):
            ends.append(math.nan if end is None else end)

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, place: int) -> Evaluated: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Evaluated]: ...
    def __getitem__(self, place: int | slice) -> Evaluated | Sequence[Evaluated]:
        places = range(len(self))[place]
        if isinstance(places, range):
            return [self[each] for each in places]
        if places not in self._kept:
            path = self._folder / self._names[places]
            found = _read(path)
            if found is None:
                raise CheckpointError(f"{path} has changed while it was read: run the command again")
            self._kept[places] = found
        return self._kept[places]

    def interval(self, step: int, tilt: float) -> tuple[float | None, float | None]:
        """Return the interval of the mean reward of an evaluation (see `Evaluated`)."""
        wanted = step, round(float(tilt), 4)
        place = bisect_left(self._names, wanted, key=_place)
        if place == len(self) or _place(self._names[place]) != wanted or math.isnan(self._low[place]):
            return None, None
        return self._low[place], self._high[place]


def _place(name: str) -> tuple[int, float]:
    """Return step and tilt of a file of samples; −1 for another file."""
    found = NAME.fullmatch(name)
    return (int(found[1]), round(float(found[2]), 4)) if found else (-1, -1.0)


def _read(path: Path) -> Evaluated | None:
    """Read the rows with a reward of an evaluation; None without any."""
    step, tilt = _place(path.name)
    if step < 0:
        return None
    rows = read_lines(path, ("prompt", "completion", "reward"))
    found = Evaluated(step, tilt, [row for row in rows if isinstance(row["reward"], (int, float))])
    return found if found.rows else None


def spread_out(count: int, most: int) -> list[int]:
    """Return at most ``most`` of ``count`` indices, evenly spaced from the first to the last.

    >>> spread_out(3, 8), spread_out(101, 3), spread_out(5, 1)
    ([0, 1, 2], [0, 50, 100], [4])
    """
    if count <= most:
        return list(range(count))
    if most < 2:
        return [count - 1] * most
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})


def shown_evaluations(evaluations: Sequence[Evaluated]) -> list[Evaluated]:
    """Return the first evaluation, the last, and some in between."""
    return [evaluations[place] for place in spread_out(len(evaluations), MOST_EVALUATIONS)]


def stratified(evaluations: Sequence[Evaluated], most: int) -> list[tuple[Evaluated, dict[str, Any]]]:
    """Select about ``most`` samples: equally many per evaluation, evenly over the order of their rewards."""
    chosen = shown_evaluations(evaluations)
    each = max(1, most // max(len(chosen), 1))
    found = []
    for one in chosen:
        ranked = sorted(one.rows, key=lambda row: row["reward"])
        found += [(one, ranked[place]) for place in spread_out(len(ranked), each)]
    return found


def histogram(evaluations: Sequence[Evaluated]) -> dict[str, Any] | None:
    """Count rewards in shared bins, with a row per shown evaluation; None without samples."""
    chosen = shown_evaluations(evaluations)
    rewards = [[row["reward"] for row in one.rows] for one in chosen]
    everything = sorted({value for values in rewards for value in values})
    if not everything:
        return None
    if len(everything) <= BINS:  # one bar per value
        place = {value: index for index, value in enumerate(everything)}
        labels = [f"{value:.4g}" for value in everything]
        counts = [[0] * len(everything) for _ in chosen]
        for row, values in zip(counts, rewards, strict=True):
            for value in values:
                row[place[value]] += 1
    else:
        low, high = everything[0], everything[-1]
        width = (high - low) / BINS
        labels = [f"{low + k * width:.3g} to {low + (k + 1) * width:.3g}" for k in range(BINS)]
        counts = [[0] * BINS for _ in chosen]
        for row, values in zip(counts, rewards, strict=True):
            for value in values:
                row[min(int((value - low) / width), BINS - 1)] += 1
    steps = [{"step": one.step, "tilt": one.tilt} for one in chosen]
    return {"labels": labels, "counts": counts, "evaluations": steps}


def moved(evaluations: Sequence[Evaluated]) -> dict[str, Any] | None:
    """Return answers that the tuned model gives more or less often than the base; None without both.

    "share" is the mean total variation between the answers of a prompt before and after, as drawn.
    """
    if len(evaluations) < 2:
        return None
    before, after = evaluations[0].by_prompt, evaluations[-1].by_prompt
    changes, variations = list[dict[str, Any]](), list[float]()
    for prompt in before.keys() & after.keys():
        old, new = before[prompt], after[prompt]
        shares = [
            {answer: count / len(rows) for answer, count in _answers(rows).items()} for rows in (old, new)
        ]
        known = {repr(row["completion"]): row for row in (*old, *new)}
        total = 0.0
        for answer in sorted(shares[0].keys() | shares[1].keys()):
            was, now = (share.get(answer, 0.0) for share in shares)
            total += abs(now - was) / 2
            if now != was:
                changes.append({"row": known[answer], "before": was, "after": now})
        variations.append(total)
    if not variations:
        return None
    changes.sort(key=_by_change)
    gained = [change for change in changes if change["after"] > change["before"]]
    lost = [change for change in changes if change["after"] < change["before"]]
    share = sum(variations) / len(variations)
    return {"share": share, "gained": gained[:MOST_MOVED], "lost": lost[:MOST_MOVED]}


def _by_change(change: Mapping[str, Any]) -> tuple[float, float, str]:
    """Sort by change, then by reward and text, so that the order is always the same."""
    row = change["row"]
    return (
        -abs(change["after"] - change["before"]),
        -float(row["reward"]),
        as_text([row["prompt"], row["completion"]]),
    )


def _answers(rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    return Counter(repr(row["completion"]) for row in rows)
