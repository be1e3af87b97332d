"""Settings that may differ between compared runs: the method and its own fields.

Its own are its section, the learning rate, and the fields of its loop (`dtm.loop.policies.OWN`). All else is
shared, and `dtm.comparison.audit` refuses runs in which it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dtm.config import METHODS, RunConfig, configure_method
from dtm.config.registry import load_method_class
from dtm.config.serialise import joined, leaves, nested, parse_yaml, read_mapping, update
from dtm.errors import ConfigError, nearest, require
from dtm.loop.policies import check_settings, is_own, is_under, other_fields

Changes = Mapping[str, Any]
"""Fields to change: those of the configuration by section, or the method's own by name."""


def label(method: str) -> str:
    """A method's short name in tables, folders and flags: of file.py:Class, the class.

    >>> label("c-dtm"), label("my_method.py:MyMethod")
    ('c-dtm', 'MyMethod')
    """
    return method.rpartition(":")[2]


def parse_names(text: str) -> list[str]:
    """Methods with commas between, each checked to exist."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    require(bool(names), f"--methods names none. {nearest('', METHODS)}")
    for name in names:
        load_method_class(name)
    require(len({label(name) for name in names}) == len(names), f"--methods: {text} names a method twice")
    return names


def parse_set(text: str) -> tuple[str, Changes]:
    """``spg.optimizer.lr=3e-5`` or ``spg.draws=4`` as the method and its changes."""
    place, equals, value = text.partition("=")
    name, dot, field = place.partition(".")
    require(
        bool(dot and field and equals and value),
        f"--set {text}: write METHOD.FIELD=VALUE, for example spg.optimizer.lr=3e-5 or spg.draws=4",
    )
    return name, nested(field, parse_yaml(value, f"--set {text}"))


def read_settings(path: Path) -> list[tuple[str, Changes]]:
    """The same from a YAML file with a section for each method."""
    found = read_mapping(path)
    for name, changes in found.items():
        require(isinstance(changes, Mapping), f"{path}: {name} must be a section of fields, got {changes!r}")
    return list(found.items())


def contestants(
    start: RunConfig, names: Sequence[str], given: Sequence[tuple[str, Changes]]
) -> dict[str, RunConfig]:
    """The configuration of every method by its label, with the settings given for it."""
    changes: dict[str, Changes] = {label(name): {} for name in names}
    for name, further in given:
        require(name in changes, f"{name} has settings, but is not compared. {nearest(name, changes)}")
        changes[name] = joined(changes[name], dict(_placed(further)))
    configs = {label(name): changed(with_method(start, name), changes[label(name)]) for name in names}
    for config in configs.values():
        check_settings(config)
    return configs


def with_method(config: RunConfig, name: str) -> RunConfig:
    """The same run with another method; the recipe's own keeps its settings."""
    return config if config.method.name == name else replace(config, method=configure_method(name))


def changed(config: RunConfig, changes: Changes) -> RunConfig:
    """A contestant with fields of its own changed; a field that all share is refused."""
    name = label(config.method.name)
    result = update(config, dict(_placed(changes)), where=name)
    shared = [field for field in differing(config, result) if not is_own(field)]
    if shared:
        flag = shared[0].replace("_", "-")
        raise ConfigError(
            f"{name}: {shared[0]} is not the method's own, all must share it: give it to all with --{flag}"
        )
    return result


def _placed(changes: Changes) -> Iterator[tuple[str, Any]]:
    """The changes from the top of a configuration on; other names are fields of the method's section."""
    sections = {field.name for field in fields(RunConfig)}
    inner: dict[str, Any] = {}
    for key, value in changes.items():
        known = key.replace("-", "_")
        if known in sections:
            yield known, value
        else:
            inner[known] = value
    if inner:
        yield "method", inner


def differing(first: RunConfig, second: RunConfig) -> list[str]:
    """The fields in which two configurations differ."""
    before, after = leaves(first), leaves(second)
    return [name for name in before | after if before.get(name) != after.get(name)]


def own_settings(config: RunConfig) -> dict[str, Any]:
    """The method's own fields that it reads: its section, the learning rate, and those of its loop."""
    unread = other_fields(load_method_class(config.method.name))
    ends = ("tilt.final", "iterate.iterations") if config.budget is not None else ()
    return {
        name: value
        for name, value in leaves(config).items()
        if is_own(name) and not is_under(name, (*unread, *ends))
    }
