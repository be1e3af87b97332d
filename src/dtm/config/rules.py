"""Conditions on the fields of a configuration, and their words in an error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dtm.errors import require

Rule = tuple[Callable[[Any], bool], str]
"""A condition on a field's value, and its words in an error."""
AT_LEAST_ONE: Rule = (lambda value: value >= 1, "be at least 1")
AT_LEAST_TWO: Rule = (lambda value: value >= 2, "be at least 2")
POSITIVE: Rule = (lambda value: value > 0, "be positive")
FINITE: Rule = (lambda value: 0 < value < math.inf, "be positive and finite")
NOT_NEGATIVE: Rule = (lambda value: value >= 0, "not be negative")
BETWEEN_0_AND_1: Rule = (lambda value: 0 < value < 1, "lie in (0, 1)")
SHARE: Rule = (lambda value: 0 <= value <= 1, "lie in [0, 1]")
SHARE_BELOW_1: Rule = (lambda value: 0 <= value < 1, "lie in [0, 1)")
SHARE_ABOVE_0: Rule = (lambda value: 0 < value <= 1, "lie in (0, 1]")


def check_fields(section: str, config: object, **rules: Rule) -> None:
    """Raise an error for a field that breaks its rule; the message names the flag. None is allowed.

    Fields outside all sections have the section "".
    """
    prefix = f"{section}." if section else ""
    for name, (holds, rule) in rules.items():
        value = getattr(config, name)
        shown = f"{value:g}" if isinstance(value, float) else value
        require(value is None or holds(value), f"{prefix}{name.replace('_', '-')} must {rule}, got {shown}")
