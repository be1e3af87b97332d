"""Registry of the families that can be loaded; a new family is one file, and one entry in FAMILIES."""

from __future__ import annotations

from pathlib import Path

from dtm.errors import CheckpointError, ConfigError, nearest, require
from dtm.models.families.a2d import A2D, AUTOREGRESSIVE
from dtm.models.families.base import Family, HubConfig
from dtm.models.families.dream import DREAM
from dtm.models.families.llada import LLADA
from dtm.models.families.native import NATIVE
from dtm.models.families.settings import STORED, Asked, completed, read_object, settled
from dtm.models.shape import TransformerConfig

FAMILIES = {family.name: family for family in (NATIVE, LLADA, DREAM, *A2D, *AUTOREGRESSIVE)}
_BY_MODEL_TYPE = {family.model_type: family for family in FAMILIES.values()}


def read_shape(folder: Path, asked: Asked = STORED) -> tuple[Family, TransformerConfig]:
    """The family of a folder, and the shape that its ``config.json`` and the settings ``asked`` describe."""
    source = folder / "config.json"
    values = read_object(source)
    family = _family(values.get("model_type", NATIVE.model_type), source)
    if family.leaves_out:
        values = completed(values, folder, asked)
    try:
        shape = family.read(HubConfig(values, str(source)))
        return family, settled(shape, folder, asked, family.leaves_out)
    except ConfigError as problem:  # the values do not make a shape
        raise CheckpointError(f"{source}: {problem}") from None


def _family(model_type: object, source: Path) -> Family:
    named = [name for name in _BY_MODEL_TYPE if name]
    require(
        isinstance(model_type, str) and model_type in _BY_MODEL_TYPE,
        f"{source}: 'model_type' is {model_type!r}, which is not supported. "
        f"{nearest(str(model_type), named)}",
        CheckpointError,
    )
    return _BY_MODEL_TYPE[str(model_type)]
