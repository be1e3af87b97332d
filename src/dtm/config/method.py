"""Base classes of method settings; each method's own settings are in its file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from dtm.errors import require

Preset = Literal["fixed", "published"]
"""Variant of a published method: with its defects corrected, or exactly as its code."""
Rule = tuple[Callable[[Any], bool], str]
"""A condition on a field's value, and its words in an error."""
AT_LEAST_ONE: Rule = (lambda value: value >= 1, "be at least 1")
POSITIVE: Rule = (lambda value: value > 0, "be positive")
NOT_NEGATIVE: Rule = (lambda value: value >= 0, "not be negative")
BETWEEN_0_AND_1: Rule = (lambda value: 0 < value < 1, "lie in (0, 1)")
SHARE: Rule = (lambda value: 0 <= value <= 1, "lie in [0, 1]")
SHARE_BELOW_1: Rule = (lambda value: 0 <= value < 1, "lie in [0, 1)")


def check_fields(section: str, config: object, **rules: Rule) -> None:
    """Raise an error for a field that breaks its rule; the message names the flag."""
    for name, (holds, rule) in rules.items():
        value = getattr(config, name)
        require(holds(value), f"{section}.{name.replace('_', '-')} must {rule}, got {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodConfig:
    """Settings of a method; derive your own method's settings from this class."""

    name: str = ""
    """Name of the method, or path/to/file.py:Class for your own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IteratingConfig(MethodConfig):
    """Settings of a method that iterates: rollouts of the current model, then a few updates on them."""

    updates: int = 1
    """μ, the number of updates per set of rollouts."""

    def __post_init__(self) -> None:
        check_fields("method", self, updates=AT_LEAST_ONE)
