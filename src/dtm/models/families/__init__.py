"""Registry of the families that can be loaded; a new family is one file, and one entry in FAMILIES."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dtm.errors import CheckpointError, ConfigError, nearest, require
from dtm.models.families.base import Family, HubConfig
from dtm.models.families.dream import DREAM
from dtm.models.families.llada import LLADA
from dtm.models.families.native import NATIVE
from dtm.models.shape import TransformerConfig

FAMILIES = {family.name: family for family in (NATIVE, LLADA, DREAM)}
_BY_MODEL_TYPE = {family.model_type: family for family in FAMILIES.values()}


def read_shape(folder: Path) -> tuple[Family, TransformerConfig]:
    """The family of a folder, and the shape that its ``config.json`` describes."""
    source = folder / "config.json"
    try:
        values = json.loads(source.read_text(encoding="utf-8"))
    except OSError as problem:
        raise CheckpointError(f"no usable model in {folder}: {problem}") from None
    except ValueError as problem:  # neither UTF-8 nor JSON
        raise CheckpointError(f"no usable model in {folder}: {source.name} is damaged, {problem}") from None
    require(isinstance(values, dict), f"{source}: not a JSON object", CheckpointError)
    return _read(values, str(source))


def _read(values: dict[str, Any], source: str) -> tuple[Family, TransformerConfig]:
    model_type = values.get("model_type", NATIVE.model_type)
    named = [name for name in _BY_MODEL_TYPE if name]
    require(
        model_type in _BY_MODEL_TYPE,
        f"{source}: 'model_type' is {model_type!r}, which is not supported. "
        f"{nearest(str(model_type), named)}",
        CheckpointError,
    )
    family = _BY_MODEL_TYPE[model_type]
    try:
        return family, family.read(HubConfig(values, source))
    except ConfigError as problem:  # the values do not make a shape
        raise CheckpointError(f"{source}: {problem}") from None
