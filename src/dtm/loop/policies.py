"""The loop policy of a method."""

from __future__ import annotations

from collections.abc import Iterable

from dtm.config import RunConfig
from dtm.config.registry import load_method_class
from dtm.loop.anneal import Anneal
from dtm.loop.iterate import Iterate
from dtm.loop.policy import Loop
from dtm.methods.base import Method

LOOPS: dict[str, type[Loop]] = {"anneal": Anneal, "iterate": Iterate}
OWN = ("method", "optimizer.lr", *(field for loop in LOOPS.values() for field in loop.own_fields))
"""Fields and sections that belong to the method: its own, the learning rate, and those of its loop."""


def make_loop(config: RunConfig, method: Method) -> Loop:
    """The policy that the method names; settings that do not fit it are refused."""
    return LOOPS[method.loop](config, method)


def check_settings(config: RunConfig) -> None:
    """Refuse settings that do not fit the configuration's method, before any run starts."""
    method = load_method_class(config.method.name)(config.method)
    make_loop(config, method)
    method.check_decoding(config.decoding)


def other_fields(method: type[Method] | Method) -> tuple[str, ...]:
    """Fields and sections that the method's loop does not read, since another loop owns them."""
    return tuple(name for loop, kind in LOOPS.items() if loop != method.loop for name in kind.own_fields)


def is_own(field: str) -> bool:
    """Whether a field, as in ``optimizer.lr``, belongs to the method: all else is shared in a comparison.

    >>> is_own("method.draws"), is_own("tilt.step"), is_own("decoding.block")
    (True, True, False)
    """
    return is_under(field, OWN)


def is_under(field: str, names: Iterable[str]) -> bool:
    """Whether a field is one of ``names``, or in a section of them."""
    return any(field == name or field.startswith(f"{name}.") for name in names)
