"""What two equal runs must share: all but what a clock or the machine's memory says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

CLOCKED = ("seconds", "spent_seconds", "per_second", "peak_memory")


def timeless(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in CLOCKED}


def timeless_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [timeless(row) for row in rows]
