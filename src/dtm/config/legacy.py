"""Convert configurations of release 0.1: ``objective`` became ``method``, and each loop has a section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OLD_SECTIONS = ("diffu_grpo", "wd1", "unigrpo", "spg", "vrpo", "gdpo", "trace_rl")
"""Sections that ``objective`` had for the baselines."""


def is_legacy(data: Mapping[str, Any]) -> bool:
    """Return whether the fields of a YAML file are those of release 0.1.

    >>> is_legacy({"objective": {"guard": False}}), is_legacy({"method": {"name": "spg"}})
    (True, False)
    """
    tilt = data.get("tilt")
    tilt = tilt if isinstance(tilt, Mapping) else {}
    absorbed = tilt.get("absorbed")
    return "objective" in data or "patience" in tilt or (isinstance(absorbed, int | float) and absorbed > 1)


def convert(data: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the fields of release 0.1 to their current names; keep the other fields."""
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in data.items()}
    tilt = result.get("tilt")
    tilt = tilt if isinstance(tilt, dict) else {}
    if "patience" in tilt:
        result["evaluation"] = {"patience": tilt.pop("patience"), **result.get("evaluation", {})}
    if isinstance(tilt.get("absorbed"), int | float) and tilt["absorbed"] > 1:
        tilt["absorbed"] = "never"
    objective = result.pop("objective", None)
    if not isinstance(objective, Mapping):
        return result
    name = objective.get("name", "c-dtm")
    section = str(name).replace("-", "_")
    if section in OLD_SECTIONS:
        result["method"] = {"name": name, **(objective.get(section) or {})}
        if "final" in tilt:
            result["iterate"] = {"iterations": max(1, round(float(tilt["final"])))}
    else:
        result["method"] = {key: value for key, value in objective.items() if key not in OLD_SECTIONS}
    if "after_end" in objective:
        result["pretrain"] = {"after_end": objective["after_end"], **result.get("pretrain", {})}
    return result
