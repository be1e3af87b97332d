"""Choose the loop of a method, and check the settings that belong to it."""

from __future__ import annotations

from collections.abc import Iterable

from dtm.config import RunConfig
from dtm.config.registry import load_method_class
from dtm.loop.anneal import Anneal
from dtm.loop.base import Loop
from dtm.loop.iterate import Iterate
from dtm.methods.base import Method

LOOPS: dict[str, type[Loop]] = {"anneal": Anneal, "iterate": Iterate}
OWN = ("method", "optimizer.lr", *(field for loop in LOOPS.values() for field in loop.own_fields))
"""Fields and sections that belong to the method: its section, the learning rate, and those of its loop."""


def make_loop(config: RunConfig, method: Method) -> Loop:
    """Return the loop of the method; raise an error for settings that do not fit it."""
    return LOOPS[method.loop](config, method)


def check_settings(config: RunConfig) -> None:
    """Raise an error for settings that do not fit the configuration's method."""
    method = load_method_class(config.method.name)(config.method)
    make_loop(config, method)
    method.check_decoding(config.decoding)


def other_fields(method: type[Method] | Method) -> tuple[str, ...]:
    """Return the fields and sections of other loops, which the method's loop does not read."""
    return tuple(name for loop, kind in LOOPS.items() if loop != method.loop for name in kind.own_fields)


def is_own(field: str) -> bool:
    """Return whether a field such as ``optimizer.lr`` belongs to the method; compared runs share the others.

    >>> is_own("method.draws"), is_own("tilt.step"), is_own("decoding.block")
    (True, True, False)
    """
    return is_under(field, OWN)


def is_under(field: str, names: Iterable[str]) -> bool:
    """Return whether a field is one of ``names``, or in a section of them."""
    return any(field == name or field.startswith(f"{name}.") for name in names)
