"""Tuning before a comparison: the same number of trials for every method, on validation prompts.

The grid of a method is three learning rates (its default, a third and three times of it), combined with its
default settings and each of its knobs (`Method.knobs`). Trials are taken from the grid in a fixed order, with
few changes first. Each is a run with the comparison's budget and a seed that the comparison does not use. The
trial with the highest mean reward on validation prompts wins; of equals, the earlier one. If it lies at an
edge of the grid, all methods get further trials (`dtm.comparison.extension`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dtm.comparison.extension import EXTENSIONS, RATE, between, beyond
from dtm.comparison.jobs import Say, run_all
from dtm.comparison.settings import Changes, changed, differing
from dtm.config import RunConfig
from dtm.config.registry import load_method_class
from dtm.config.serialise import leaves
from dtm.errors import DtmError, require

SEED = 1000
"""Seed of every trial; comparisons use 0, 1, …"""
RATES = (1.0, 1 / 3, 3.0)
"""Learning rates of the grid, as factors on the method's default."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One tried setting of a method, and its result."""

    method: str
    number: int
    changed: dict[str, Any]
    """Fields that differ from the method's defaults."""
    reward: float | None
    """Mean reward on the validation prompts at the end; None if the run failed."""
    measures: dict[str, float]
    picked: bool = False
    reason: str = "grid"
    """Reason for the trial: the grid, an extension beyond its edge, or as many trials as the others."""


def trials(config: RunConfig, count: int) -> list[RunConfig]:
    """Return the first ``count`` settings of a method's grid, its defaults first."""
    knobs = _knobs(config)
    places = sorted(
        ((rate, knob) for rate in range(len(RATES)) for knob in range(len(knobs))),
        key=lambda place: (sum(place), place),
    )
    require(
        1 <= count <= len(places),
        f"--trials must lie in 1 … {len(places)}, the size of the grid of {config.method.name}; got {count}",
    )
    return [
        changed(changed(config, knobs[knob]), {"optimizer": {"lr": _rate(config, rate)}})
        for rate, knob in places[:count]
    ]


def grid_size(config: RunConfig) -> int:
    """Return the number of settings in the grid of a method."""
    return len(RATES) * len(_knobs(config))


def _knobs(config: RunConfig) -> tuple[Changes, ...]:
    """Return the method's default settings and its knobs."""
    return {}, *load_method_class(config.method.name)(config.method).tuning(config)


def _rate(config: RunConfig, number: int) -> float:
    """Return a learning rate of the grid, rounded to three digits; the default is kept as it is."""
    lr = config.optimizer.lr
    return lr if number == 0 else float(f"{lr * RATES[number]:.3g}")


def tune(
    configs: Mapping[str, RunConfig],
    count: int,
    out: Path,
    jobs: int,
    say: Say = print,
    processes: int = 1,
    track: str | None = None,
) -> tuple[dict[str, RunConfig], list[Trial]]:
    """Tune every method; return the configurations with the best settings, and all trials."""
    tried = {name: trials(config, count) for name, config in configs.items()}
    why = {name: ["grid"] * count for name in configs}
    measured: dict[str, dict[str, float]] = {}
    for extension in range(EXTENSIONS + 1):
        fresh = range(0 if extension == 0 else count + extension - 1, count + extension)
        named = {
            f"{name}-trial-{number}": replace(settings[number], seed=SEED)
            for number in fresh
            for name, settings in tried.items()
        }
        runs = run_all(named, out, jobs, say, all_must_finish=False, processes=processes, track=track)
        measured |= {key: run.summary["tuned"] for key, run in runs.items()}
        found = {  # empty if a trial failed
            name: [measured.get(f"{name}-trial-{number}", {}) for number in range(count + extension)]
            for name in tried
        }
        if extension == EXTENSIONS or not _extend(configs, tried, why, found, out, say):
            break
    picked, records = {}, []
    for name, settings in tried.items():
        best = _best(name, found[name], out)
        picked[name] = settings[best]
        rows = zip(settings, found[name], why[name], strict=True)
        records += [
            Trial(
                name, number, _changes(configs[name], config), own.get("reward"), own, number == best, reason
            )
            for number, (config, own, reason) in enumerate(rows)
        ]
    return picked, records


def _extend(
    configs: Mapping[str, RunConfig],
    tried: dict[str, list[RunConfig]],
    why: dict[str, list[str]],
    found: Mapping[str, Sequence[Mapping[str, float]]],
    out: Path,
    say: Say,
) -> bool:
    """Add one trial to every method if the best of some method is at an edge; return whether it was."""
    best = {name: _best(name, measures, out) for name, measures in found.items()}
    edges = {name: beyond(settings, settings[best[name]]) for name, settings in tried.items()}
    if not any(edges.values()):
        return False
    for name, settings in tried.items():
        edge = edges[name]
        if edge is not None:
            field, further = edge
            why[name].append(f"beyond the edge of {field}")
            say(f"{name}: the best {field} is at the edge of its grid; trial {len(settings)} goes beyond")
        else:
            further = _next_inside(configs[name], settings, found[name], best[name])
            why[name].append("as many trials as the others")
        settings.append(further)
    return True


def _next_inside(
    start: RunConfig, settings: Sequence[RunConfig], measures: Sequence[Mapping[str, float]], best: int
) -> RunConfig:
    """Return the next untried setting of the grid, or a setting next to the best one."""
    untried = (config for config in trials(start, grid_size(start)) if config not in settings)
    rewards = [found.get("reward", -float("inf")) for found in measures]
    return next(untried, None) or between(settings, rewards, best)


def _best(name: str, measures: Iterable[Mapping[str, float]], out: Path) -> int:
    """Return the number of the best trial, the first of equals."""
    rewards = [found.get("reward", -float("inf")) for found in measures]
    require(max(rewards) > -float("inf"), f"no trial of {name} finished; see the logs in {out}", DtmError)
    return rewards.index(max(rewards))


def _changes(start: RunConfig, config: RunConfig) -> dict[str, Any]:
    values = leaves(config)
    return {field: values[field] for field in differing(start, config)}


def tuning_notes(records: Sequence[Trial]) -> list[str]:
    """Return notes for the reader: extensions of grids, and best learning rates still at an edge."""
    notes = []
    extended = [trial for trial in records if trial.reason.startswith("beyond")]
    if extended:
        each = max(trial.number for trial in records) + 1
        names = ", ".join(dict.fromkeys(trial.method for trial in extended))
        notes.append(
            f"grids were extended, the best setting being at an edge ({names}): {each} trials of each method"
        )
    for trial in records:
        rates = [other.changed.get(RATE) for other in records if other.method == trial.method]
        tried = [rate for rate in rates if rate is not None]
        if trial.picked and RATE in trial.changed and trial.changed[RATE] in (min(tried), max(tried)):
            notes.append(
                f"{trial.method}: the best learning rate, {trial.changed[RATE]:.3g}, is the edge of its grid"
            )
    return notes
