"""Help of `dtm train RECIPE` and `dtm pretrain RECIPE`: a first page, one section, or all sections.

The first page has the command's options and the fields that most runs change: those of the recipe's task and
model, of the chosen method and of its loop. The texts are the docstrings below the configuration's fields.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from dtm.cli.parse import SHAPE, first_line
from dtm.config import METHODS, RunConfig
from dtm.config.registry import load_method_class
from dtm.errors import ConfigError, nearest
from dtm.loop.registry import is_under, other_fields

WIDTH = 110
FIRST_PAGE = ("task", "model", "method", "tilt", "iterate")
"""Sections of the first page, as far as the run reads them."""


def requested(flags: Sequence[str]) -> str | None:
    """Return the page that ``--help [SECTION]`` names; None without this flag.

    >>> requested(["--help", "decoding"]), requested(["-h"]), requested(["--seed", "1"])
    ('decoding', '', None)
    """
    for place, flag in enumerate(flags):
        if flag in ("-h", "--help"):
            after = flags[place + 1] if place + 1 < len(flags) else ""
            return "" if after.startswith("-") else after
    return None


def page(config: RunConfig, command: str, usage: str, options: str, section: str) -> str:
    """The help text: the first page, one section, or all sections."""
    sections = dict(_sections(config, command))
    if section == "":
        return _first_page(config, sections, usage, options, command)
    if section != "all" and section not in sections:
        raise ConfigError(f"--help {section}: no such section. {nearest(section, [*sections, 'all'])}")
    shown = sections if section == "all" else {section: sections[section]}
    return "\n\n".join(_in_full(name, value) for name, value in shown.items())


def _sections(config: RunConfig, command: str) -> Iterator[tuple[str, Any]]:
    """Return the sections that the command and the chosen method read, by name."""
    unread = (
        *other_fields(load_method_class(config.method.name)),
        *(["pretrain"] if command == "train" else []),
    )
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not is_under(field.name, unread):
            yield field.name, _Section(field.name, value, config, command)


@dataclasses.dataclass(frozen=True, slots=True)
class _Section:
    """One section of a configuration, with the fields that the run reads."""

    name: str
    value: Any
    config: RunConfig
    command: str

    @property
    def title(self) -> str:
        return first_line(type(self.value).__doc__)

    def fields(self) -> Iterator[tuple[str, str, str]]:
        """Flag with its values, default, and description of each field."""
        docs, hints = field_docs(type(self.value)), typing.get_type_hints(type(self.value))
        unread = other_fields(load_method_class(self.config.method.name))
        for field in dataclasses.fields(self.value):
            flag = f"--{self.name}.{field.name.replace('_', '-')}"
            chosen = (self.name, field.name) in (("method", "name"), ("task", "kind"))
            hidden = chosen or (self.command == "train" and flag in SHAPE)
            if not hidden and not is_under(f"{self.name}.{field.name}", unread):
                default = getattr(self.value, field.name)
                yield f"{flag} {values_of(hints[field.name])}", _shown(default), docs.get(field.name, "")


def _first_page(
    config: RunConfig, sections: dict[str, _Section], usage: str, options: str, command: str
) -> str:
    parts = [usage.rstrip(), options.rstrip(), _top_level(config)]
    if command == "train":
        parts.append(_wrapped("methods", f"--method {', '.join(METHODS)}, or path/to/file.py:Class"))
    parts += [_in_short(name, sections[name]) for name in FIRST_PAGE if name in sections]
    others = [name for name in sections if name not in FIRST_PAGE]
    lines = [f"  {name:<12} {_short(sections[name].title, WIDTH - 15)}" for name in others]
    more = f"more: `dtm {command} {config.recipe} --help SECTION`, or `--help all`"
    parts.append("\n".join([more, *lines]))
    return "\n\n".join(parts)


def _top_level(config: RunConfig) -> str:
    docs, hints = field_docs(RunConfig), typing.get_type_hints(RunConfig)
    rows = [
        (f"--{name} {values_of(hints[name])}", _shown(getattr(config, name)), docs[name])
        for name in ("seed", "device", "precision", "compile", "budget")
    ]
    return _table("run", rows)


def _in_short(name: str, section: _Section) -> str:
    chosen = {"method": section.config.method.name, "task": section.config.task.kind}.get(name)
    return _table(name if chosen is None else f"{name} {chosen}", list(section.fields()))


def _table(title: str, rows: Sequence[tuple[str, str, str]]) -> str:
    """Format one line per field, cut to the width."""
    width = min(44, max((len(flag) for flag, _, _ in rows), default=0))
    lines = []
    for flag, default, doc in rows:
        room = WIDTH - width - len(default) - 8
        lines.append(f"  {flag:<{width}}  {_short(doc, room)} ({default})")
    return "\n".join([title, *lines])


def _in_full(name: str, section: _Section) -> str:
    lines = [f"{name}: {section.title}"]
    for flag, default, doc in section.fields():
        lines.append(f"  {flag} (now: {default})")
        lines.append(textwrap.indent(textwrap.fill(doc, WIDTH - 6), "      "))
    return "\n".join(lines)


def table_of(title: str, value: Any, prefix: str = "", hidden: Collection[str] = ()) -> str:
    """Format the fields of a dataclass, without sections and hidden ones, one line per field."""
    docs, hints = field_docs(type(value)), typing.get_type_hints(type(value))
    dot = f"{prefix}." if prefix else ""
    rows = [
        (
            f"--{dot}{field.name.replace('_', '-')} {values_of(hints[field.name])}",
            _shown(getattr(value, field.name)),
            docs.get(field.name, ""),
        )
        for field in dataclasses.fields(value)
        if field.name not in hidden and not dataclasses.is_dataclass(getattr(value, field.name))
    ]
    return _table(title, rows)


def _wrapped(title: str, text: str) -> str:
    return title + "\n" + textwrap.indent(textwrap.fill(text, WIDTH - 2), "  ")


def _short(text: str, room: int) -> str:
    """Return the first sentence; if it does not fit, its first clause, cut to fit."""
    sentence = text.split(". ")[0].rstrip(".")
    for mark in ("; ", ": ", ", "):
        if len(sentence) > room:
            sentence = sentence.partition(mark)[0]
    return sentence if len(sentence) <= room else f"{sentence[: max(room - 1, 0)].rstrip()}…"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def values_of(hint: Any) -> str:
    """Return the values that a field accepts, as help shows them.

    >>> values_of(float | None), values_of(typing.Literal["auto", "on"]), values_of(bool)
    ('X', 'auto|on', '')
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return "|".join(values_of(choice) for choice in arguments if choice is not type(None))
    if origin is typing.Literal:
        return "|".join(map(str, arguments))
    if origin is tuple:
        return " ".join(values_of(choice) for choice in arguments)
    return {int: "N", float: "X", str: "TEXT", bool: ""}.get(hint, "VALUE")


def field_docs(config: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, inherited fields included."""
    docs: dict[str, str] = {}
    for kind in reversed(config.__mro__):
        if not dataclasses.is_dataclass(kind):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        except (OSError, TypeError):  # no source: a class made at run time
            continue
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                docs[field.target.id] = " ".join(str(below.value.value).split())
    return docs
