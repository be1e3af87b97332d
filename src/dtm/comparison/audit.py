"""Check that runs may be compared: finished, one budget, and equal in all but their methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtm.api import Run
from dtm.comparison.settings import differing, label
from dtm.config.budget import Budget
from dtm.errors import CheckpointError, ConfigError, require
from dtm.evaluation.explain import ROUNDS, differences
from dtm.loop.fingerprint import GROUPS
from dtm.loop.registry import is_own
from dtm.runs.folder import read_object

Entries = dict[str, dict[int, Run]]
"""The runs of a comparison by method and seed."""


def audited(runs: Sequence[Run]) -> tuple[Entries, list[str]]:
    """Return the runs by method and seed, and notes for the reader; raise an error if not comparable."""
    require(bool(runs), "no runs to compare: name the folders of finished runs")
    entries = _by_method(runs)
    seeds = {name: sorted(found) for name, found in entries.items()}
    first, expected = next(iter(seeds.items()))
    for name, found in seeds.items():
        require(found == expected, f"{first} has runs with the seeds {expected}, {name} with {found}")
    for of_seeds in entries.values():
        _one_setting(list(of_seeds.values()))
    reference = entries[first]
    _alike_over_seeds(list(reference.values()))
    notes = [
        note
        for of_seeds in entries.values()
        for seed in expected
        for note in _alike(reference[seed], of_seeds[seed])
    ]
    return entries, list(dict.fromkeys(notes))


def read_fingerprint(run: Run) -> dict[str, Any]:
    """Read the fingerprint that the run wrote at its start."""
    path = run.folder.fingerprint
    require(
        path.is_file(),
        f"{run.path} has no {path.name}, which a comparison needs. Run it again.",
        CheckpointError,
    )
    return read_object(path)


def _by_method(runs: Sequence[Run]) -> Entries:
    entries: Entries = {}
    for run in runs:
        config = run.config
        require(
            config.budget is not None,
            f"{run.path} had no budget, and runs are compared at the same budget. Train it with --budget",
        )
        require(run.is_finished, f"{run.path} has not finished: continue it with --resume", CheckpointError)
        of_seeds = entries.setdefault(label(config.method.name), {})
        require(
            config.seed not in of_seeds,
            f"{run.path} is a second run of {label(config.method.name)} with seed {config.seed}",
        )
        of_seeds[config.seed] = run
    return entries


def _one_setting(runs: Sequence[Run]) -> None:
    """Raise an error if the seeds of a method have different settings."""
    first = runs[0].config
    for run in runs[1:]:
        own = [field for field in differing(first, run.config) if is_own(field)]
        require(
            not own,
            f"{runs[0].path} and {run.path} are two settings of {label(first.method.name)}: "
            f"{', '.join(own)} differ; "
            "compare one of them at a time",
        )


def _alike(first: Run, second: Run) -> list[str]:
    """Raise an error if two runs of a seed differ in more than the method; return notes on rounding."""
    one, other = read_fingerprint(first), read_fingerprint(second)
    deciding, rounding = dict(GROUPS), dict(ROUNDS)
    if Budget.parse(str(first.config.budget)).unit == "seconds":
        deciding["hardware"] = rounding.pop("hardware")  # other hardware does other work per minute
    found = list(differences(deciding, one, other))
    if found:
        listed = "\n".join(found)
        raise ConfigError(f"{first.path} and {second.path} differ in more than the method:\n{listed}")
    lines = [line.strip() for line in differences(rounding, one, other)]
    return [f"the runs differ in {', '.join(lines)}, which changes rounding"] if lines else []


def _alike_over_seeds(runs: Sequence[Run]) -> None:
    """Raise an error if seeds differ in more than the order of the training prompts."""
    groups = {group: title for group, title in GROUPS.items() if group != "training"}
    first = read_fingerprint(runs[0])
    for run in runs[1:]:
        found = list(differences(groups, first, read_fingerprint(run)))
        require(
            not found, f"{runs[0].path} and {run.path} differ in more than the seed:\n" + "\n".join(found)
        )
