"""Tuning before a comparison: the same number of trials for every method, on validation prompts.

The grid of a method is three learning rates (the one it starts with, a third and three times of it) by its
default settings and its knobs (`Method.knobs`). Trials are taken from it in a fixed order, those with few
changes first. Each is a run with the comparison's budget and a seed that the comparison does not use. The
trial with the highest mean reward on validation prompts is picked; of equals, the earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dtm.comparison.settings import Changes, changed, differing
from dtm.comparison.sweep import Say, run_all
from dtm.config import RunConfig
from dtm.config.registry import load_method_class
from dtm.config.serialise import leaves
from dtm.errors import DtmError, require

SEED = 1000
"""Of every trial; comparisons use 0, 1, …"""
RATES = (1.0, 1 / 3, 3.0)
"""Learning rates of the grid, over the one that the method starts with."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting of a method, and its result."""

    method: str
    number: int
    changed: dict[str, Any]
    """Fields that differ from what the method starts with."""
    reward: float | None
    """Mean reward on the validation prompts at the end; None if the run failed."""
    measures: dict[str, float]
    picked: bool = False


def trials(config: RunConfig, count: int) -> list[RunConfig]:
    """The first ``count`` settings of a method's grid, the one it starts with first."""
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
    """Settings in the grid of a method."""
    return len(RATES) * len(_knobs(config))


def _knobs(config: RunConfig) -> tuple[Changes, ...]:
    """Its default settings, and its knobs."""
    return {}, *load_method_class(config.method.name)(config.method).tuning(config)


def _rate(config: RunConfig, number: int) -> float:
    """A learning rate of the grid, rounded to three digits; the one it starts with is kept."""
    lr = config.optimizer.lr
    return lr if number == 0 else float(f"{lr * RATES[number]:.3g}")


def tune(
    configs: Mapping[str, RunConfig],
    count: int,
    out: Path,
    jobs: int,
    say: Say = print,
    processes: int = 1,
) -> tuple[dict[str, RunConfig], list[Trial]]:
    """Every method with the settings that its trials picked, and all trials."""
    grid = {name: trials(config, count) for name, config in configs.items()}
    runs = run_all(
        {
            f"{name}-trial-{number}": replace(config, seed=SEED)
            for number in range(count)
            for name, config in ((name, found[number]) for name, found in grid.items())
        },
        out,
        jobs,
        say,
        all_must_finish=False,
        processes=processes,
    )
    picked, records = {}, []
    for name, settings in grid.items():
        measures = [
            runs[key].summary["tuned"] if key in runs else {}
            for key in (f"{name}-trial-{number}" for number in range(count))
        ]
        best = _best(name, measures, out)
        picked[name] = settings[best]
        records += [
            Trial(name, number, _changes(configs[name], config), found.get("reward"), found, number == best)
            for number, (config, found) in enumerate(zip(settings, measures, strict=True))
        ]
    return picked, records


def _best(name: str, measures: Iterable[Mapping[str, float]], out: Path) -> int:
    """The number of the best trial; the first of equals."""
    rewards = [found.get("reward", -float("inf")) for found in measures]
    require(max(rewards) > -float("inf"), f"no trial of {name} finished; see the logs in {out}", DtmError)
    return rewards.index(max(rewards))


def _changes(start: RunConfig, config: RunConfig) -> dict[str, Any]:
    values = leaves(config)
    return {field: values[field] for field in differing(start, config)}


def on_the_edge(records: Iterable[Trial]) -> list[str]:
    """Notes for the reader: picked learning rates at the edge of their grid."""
    return [
        f"{trial.method} took the learning rate {trial.changed['optimizer.lr']:.3g}, the edge of its grid"
        for trial in records
        if trial.picked and "optimizer.lr" in trial.changed
    ]
