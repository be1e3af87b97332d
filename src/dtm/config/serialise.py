"""Write configurations to YAML and read them back; errors in a file name the place and the remedy."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dtm.config import MethodConfig, TaskConfig, configure_method, configure_task
from dtm.config.legacy import convert, is_legacy
from dtm.errors import ConfigError, DtmWarning, nearest
from dtm.files import MAX_CONFIG, read_text

Config = TypeVar("Config")
"""Any configuration: a frozen dataclass of fields and sections."""

SCIENTIFIC = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
"""YAML 1.1 reads 3e-4 as text, since it has no point, and 1.5e1, since it has no sign."""

CHANGEABLE = frozenset(
    (
        *("reward.on_error", "reward.timeout", "reward.workers", "reward.in_process"),
        *("corpus.workers", "checkpoint.every", "checkpoint.keep"),
        *("distributed.row_order", "distributed.shard", "distributed.shard_size"),
        "decoding.ahead",
    )
)
"""Fields that may change when a run is continued."""
ENDS = frozenset(("tilt.final", "iterate.iterations"))
"""Fields that set the end of a run; they may change if the run has not finished."""


def to_yaml(config: object) -> str:
    """Format the whole configuration as YAML."""
    return yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True)


def load_yaml(path: Path, start: Config) -> Config:
    """Return ``start`` with the fields of a YAML file replaced.

    A file of release 0.1 is converted, with a notice.
    """
    data = read_mapping(path)
    if is_legacy(data):
        notice = f"{path} is a configuration of dtm 0.1; its fields are converted (see CHANGELOG.md)"
        warnings.warn(notice, DtmWarning, stacklevel=2)
        data = convert(data)
    return update(start, data, where=str(path))


def read_mapping(path: Path) -> Mapping[str, Any]:
    """Read a YAML file of fields."""
    if not path.exists():
        raise ConfigError(f"no configuration file at {path}")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name the YAML file in it")
    data = parse_yaml(read_text(path, MAX_CONFIG, ConfigError), str(path))
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} must hold a mapping of fields, as `dtm recipes show NAME` prints it")
    return data


class _PlainLoader(yaml.SafeLoader):
    """YAML loader without aliases, with which a few lines can expand to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not supported")
        return super().compose_node(parent, index)


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML text; ``where`` names its source in errors."""
    try:
        return yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:  # ValueError: invalid dates and numbers
        raise ConfigError(f"{where} is not valid YAML: {problem}") from None


def nested(field: str, value: Any) -> dict[str, Any]:
    """Return a field, named as on the command line (``tilt.max-steps``), as a nested mapping for `update`."""
    change = value
    for name in reversed(field.replace("-", "_").split(".")):
        change = {name: change}
    return dict(change)


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two changes; the second wins. Fields that must fit each other are then changed together.

    >>> joined({"tilt": {"step": 1, "final": 3}}, {"tilt": {"step": 2}, "seed": 4})
    {'tilt': {'step': 2, 'final': 3}, 'seed': 4}
    """
    both = {
        key: joined(first[key], value)
        for key, value in second.items()
        if isinstance(value, Mapping) and isinstance(first.get(key), Mapping)
    }
    return {**first, **second, **both}


def update(config: Config, data: Mapping[str, Any], where: str) -> Config:
    """Return a copy of a config dataclass with some fields replaced, also in nested sections."""
    hints = typing.get_type_hints(type(config))
    changes: dict[str, Any] = {}
    for key, value in data.items():
        if key not in hints:
            raise ConfigError(f"{where}: no field {key!r}. {nearest(str(key), hints)}")
        place, current = f"{where}: {key}", getattr(config, key)
        if key == "recompute" and isinstance(value, bool):  # runs of 0.1 knew two values
            value = "all" if value else "none"
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{place} is a section: set its fields, got {value!r}")
            changes[key] = update(_section(current, value), value, where=place)
        else:
            changes[key] = _convert(value, hints[key], place)
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _section(current: Any, data: Mapping[str, Any]) -> Any:
    """Return the section to change: for another method or task, its defaults."""
    if isinstance(current, MethodConfig) and data.get("name", current.name) != current.name:
        return configure_method(str(data["name"]))
    if isinstance(current, TaskConfig) and data.get("kind", current.kind) != current.kind:
        return configure_task(str(data["kind"]))
    return current


def differences(old: Config, new: Config, apart_from: Collection[str] = ()) -> Iterator[str]:
    """Yield one line for each field in which two configurations differ."""
    before, after = leaves(old), leaves(new)
    for name in before | after:
        if name not in apart_from and before.get(name) != after.get(name):
            yield f"{name}: {before.get(name)!r} → {after.get(name)!r}"


def obstacles(saved: Config, config: Config, *, finished: bool = True) -> Iterator[str]:
    """Yield the differences with which a run cannot be continued."""
    return differences(saved, config, CHANGEABLE if finished else CHANGEABLE | ENDS)


def leaves(config: object) -> dict[str, Any]:
    """Return every field by its full name, as in ``tilt.step``."""
    return dict(_leaves(_plain(config)))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return list(value) if isinstance(value, tuple) else value


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _convert(value: Any, kind: Any, place: str) -> Any:
    """Convert ``value`` to the annotated type, or raise an error that names the expected type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for choice in arguments:
            try:
                return _convert(value, choice, place)
            except ConfigError:
                continue
    elif origin is typing.Literal:
        if value in arguments:
            return value
    elif origin is tuple:
        if isinstance(value, list | tuple) and len(value) == len(arguments):
            return tuple(_convert(v, a, place) for v, a in zip(value, arguments, strict=True))
    elif kind is float:
        if type(value) in (int, float) or (isinstance(value, str) and SCIENTIFIC.fullmatch(value)):
            return float(value)
    elif kind is type(None):
        if value is None:
            return None
    elif isinstance(kind, type) and type(value) is kind:
        return value
    raise ConfigError(f"{place} must be {_describe(kind)}, got {value!r}")


def _describe(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(a) for a in arguments)
    if origin is typing.Literal:
        return " or ".join(repr(a) for a in arguments)
    if origin is tuple:
        return f"a list of {len(arguments)} values"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    return names.get(kind, str(kind))
