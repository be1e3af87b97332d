"""Base classes of method settings; each method's own settings are in its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dtm.config.rules import AT_LEAST_ONE, check_fields

Preset = Literal["fixed", "published"]
"""Variant of a published method: with its defects corrected, or exactly as its code."""


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
