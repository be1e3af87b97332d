"""What may differ between the runs of a comparison: the objective, and what is its own.

Its own are its section, the learning rate, and what c-DTM alone reads of tilt, buffer and schedule. All else
is shared, and `dtm.comparison.audit` refuses runs in which it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from dtm.config import ObjectiveConfig, RunConfig
from dtm.config.serialise import joined, leaves, nested, read_mapping, update
from dtm.errors import ConfigError, nearest, require

OBJECTIVES: tuple[str, ...] = get_args(get_type_hints(ObjectiveConfig)["name"])
OWN = (
    "objective",
    "optimizer.lr",
    "optimizer.warmup",
    "optimizer.decay",
    "optimizer.floor",
    "optimizer.ema",
    "tilt.step",
    "tilt.final",
    "tilt.ess",
    "tilt.step_cap",
    "tilt.absorbed",
    "tilt.max_steps",
    "replay.refresh_every",
    "replay.refresh_fraction",
    "replay.priority",
)
"""Fields, or sections of fields, that belong to the objective. Baselines read the first two alone."""

Changes = Mapping[str, Any]
"""Fields to change: those of the configuration by section, or the objective's own by name."""


def is_own(field: str) -> bool:
    """Whether a field, as in ``optimizer.lr``, belongs to the objective."""
    return any(field == name or field.startswith(f"{name}.") for name in OWN)


def parse_names(text: str) -> list[str]:
    """Objectives with commas between."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        require(name in OBJECTIVES, f"--objectives: no objective {name!r}. {nearest(name, OBJECTIVES)}")
    require(len(set(names)) == len(names), f"--objectives: {text} names an objective twice")
    require(bool(names), f"--objectives names none. {nearest('', OBJECTIVES)}")
    return names


def parse_set(text: str) -> tuple[str, Changes]:
    """``spg.optimizer.lr=3e-5`` or ``spg.draws=4`` as the objective and its changes."""
    place, equals, value = text.partition("=")
    name, dot, field = place.partition(".")
    require(
        bool(dot and field and equals and value),
        f"--set {text}: write OBJECTIVE.FIELD=VALUE, for example spg.optimizer.lr=3e-5 or spg.draws=4",
    )
    return name, nested(field, yaml.safe_load(value))


def read_settings(path: Path) -> list[tuple[str, Changes]]:
    """The same from a YAML file with a section for each objective."""
    found = read_mapping(path)
    for name, changes in found.items():
        require(isinstance(changes, Mapping), f"{path}: {name} must be a section of fields, got {changes!r}")
    return list(found.items())


def contestants(
    start: RunConfig, names: Sequence[str], given: Sequence[tuple[str, Changes]]
) -> dict[str, RunConfig]:
    """The configuration of every objective, with what was given for it."""
    changes: dict[str, Changes] = {name: {} for name in names}
    for name, further in given:
        require(name in changes, f"{name} has settings, but is not compared. {nearest(name, changes)}")
        changes[name] = joined(changes[name], dict(_placed(name, further)))
    return {name: changed(with_objective(start, name), found) for name, found in changes.items()}


def with_objective(config: RunConfig, name: str) -> RunConfig:
    """The same run with another objective."""
    return replace(config, objective=replace(config.objective, name=name))  # type: ignore[arg-type]


def changed(config: RunConfig, changes: Changes) -> RunConfig:
    """A contestant with fields of its own changed; a field that all share is refused."""
    name = config.objective.name
    result = update(config, dict(_placed(name, changes)), where=name)
    shared = [field for field in differing(config, result) if not is_own(field)]
    if shared:
        flag = shared[0].replace("_", "-")
        raise ConfigError(
            f"{name}: {shared[0]} is not the objective's own, all must share it: give it to all with --{flag}"
        )
    return result


def _placed(name: str, changes: Changes) -> Iterator[tuple[str, Any]]:
    """The changes from the top of a configuration on; other names are fields of the objective's section."""
    sections = {field.name for field in fields(RunConfig)}
    inner: dict[str, Any] = {}
    for key, value in changes.items():
        known = key.replace("-", "_")
        if known in sections:
            yield known, value
        else:
            inner[known] = value
    if inner:
        yield "objective", inner if name == "c-dtm" else {name.replace("-", "_"): inner}


def differing(first: RunConfig, second: RunConfig) -> list[str]:
    """The fields in which two configurations differ."""
    before, after = leaves(first), leaves(second)
    return [name for name in before | after if before.get(name) != after.get(name)]


def own_settings(config: RunConfig) -> dict[str, Any]:
    """What a reader must know of a contestant: its own fields that its objective reads."""
    section = config.objective.name.replace("-", "_")
    if config.objective.baseline is not None:
        prefixes: tuple[str, ...] = ("objective.name", f"objective.{section}.", "optimizer.lr")
        return {name: value for name, value in leaves(config).items() if name.startswith(prefixes)}
    others = tuple(f"objective.{name.replace('-', '_')}." for name in OBJECTIVES)
    found = {name: value for name, value in leaves(config).items() if is_own(name)}
    unread = "tilt.final" if config.budget is not None else None
    return {k: v for k, v in found.items() if not k.startswith(others) and k != unread}
