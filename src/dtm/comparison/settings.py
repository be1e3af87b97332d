"""Settings that may differ between compared runs: the method and the fields of its own.

A method's own fields are its section, the learning rate, and the fields of its loop
(`dtm.loop.registry.OWN`). All other fields are shared; `dtm.comparison.audit` checks that they are equal.
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
from dtm.loop.registry import check_settings, is_own, is_under, other_fields

Changes = Mapping[str, Any]
"""Fields to change: nested by section, or the method's own fields by name."""


def label(method: str) -> str:
    """Return a method's short name in tables, folders and flags; for file.py:Class this is the class.

    >>> label("c-dtm"), label("my_method.py:MyMethod")
    ('c-dtm', 'MyMethod')
    """
    return method.rpartition(":")[2]


def parse_names(text: str) -> list[str]:
    """Parse the names of methods, separated by commas; each must exist."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    require(bool(names), f"--methods is empty. {nearest('', METHODS)}")
    for name in names:
        load_method_class(name)
    require(len({label(name) for name in names}) == len(names), f"--methods: {text} names a method twice")
    return names


def parse_set(text: str) -> tuple[str, Changes]:
    """Parse ``spg.optimizer.lr=3e-5`` or ``spg.draws=4`` into the method and its changes."""
    place, equals, value = text.partition("=")
    name, dot, field = place.partition(".")
    require(
        bool(dot and field and equals and value),
        f"--set {text}: write METHOD.FIELD=VALUE, for example spg.optimizer.lr=3e-5 or spg.draws=4",
    )
    return name, nested(field, parse_yaml(value, f"--set {text}"))


def read_settings(path: Path) -> list[tuple[str, Changes]]:
    """Read the changes of each method from a YAML file with a section per method."""
    found = read_mapping(path)
    for name, changes in found.items():
        require(isinstance(changes, Mapping), f"{path}: {name} must be a section of fields, got {changes!r}")
    return list(found.items())


def contestants(
    start: RunConfig, names: Sequence[str], given: Sequence[tuple[str, Changes]]
) -> dict[str, RunConfig]:
    """Return the configuration of every method, by its label, with its changes applied."""
    changes: dict[str, Changes] = {label(name): {} for name in names}
    for name, further in given:
        require(name in changes, f"{name} has settings, but is not compared. {nearest(name, changes)}")
        changes[name] = joined(changes[name], dict(_placed(further)))
    configs = {label(name): changed(with_method(start, name), changes[label(name)]) for name in names}
    for config in configs.values():
        check_settings(config)
    return configs


def with_method(config: RunConfig, name: str) -> RunConfig:
    """Return the configuration with another method; the recipe's own method keeps its settings."""
    return config if config.method.name == name else replace(config, method=configure_method(name))


def changed(config: RunConfig, changes: Changes) -> RunConfig:
    """Change a method's own fields in its configuration; a shared field is an error."""
    name = label(config.method.name)
    result = update(config, dict(_placed(changes)), where=name)
    shared = [field for field in differing(config, result) if not is_own(field)]
    if shared:
        flag = shared[0].replace("_", "-")
        raise ConfigError(f"{name}: {shared[0]} must be equal for all methods: set it with --{flag}")
    return result


def _placed(changes: Changes) -> Iterator[tuple[str, Any]]:
    """Return the changes nested from the top of a configuration; plain names are the method's fields."""
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
    """Return the fields in which two configurations differ."""
    before, after = leaves(first), leaves(second)
    return [name for name in before | after if before.get(name) != after.get(name)]


def own_settings(config: RunConfig) -> dict[str, Any]:
    """Return the method's own fields with their values: its section, learning rate, and loop."""
    unread = other_fields(load_method_class(config.method.name))
    ends = ("tilt.final", "iterate.iterations") if config.budget is not None else ()
    return {
        name: value
        for name, value in leaves(config).items()
        if is_own(name) and not is_under(name, (*unread, *ends))
    }
