"""Registry of the families that can be loaded; a new family is one file, and one entry in FAMILIES."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtm.errors import CheckpointError, ConfigError, nearest, require
from dtm.models.families.a2d import A2D, AUTOREGRESSIVE
from dtm.models.families.base import Family, HubConfig
from dtm.models.families.dream import DREAM
from dtm.models.families.fast_dllm import FAST_DLLM
from dtm.models.families.llada import LLADA
from dtm.models.families.llada2 import LLADA2
from dtm.models.families.llada_moe import LLADA_MOE
from dtm.models.families.native import NATIVE
from dtm.models.families.sdar import SDAR, SDAR_MOE
from dtm.models.families.settings import STORED, Asked, completed, read_object, settled
from dtm.models.shape import TransformerConfig

FAMILIES = {
    family.name: family
    for family in (
        NATIVE, LLADA, LLADA_MOE, LLADA2, DREAM, *A2D, SDAR, SDAR_MOE, FAST_DLLM, *AUTOREGRESSIVE,
    )
}  # fmt: skip
REFUSED = {
    "diffusion_gemma": "DiffusionGemma corrupts text with uniformly random tokens, which is not an absorbing "
    "process: there is no mask token, and the theorem behind c-DTM does not apply",
    "nemotron_labs_diffusion": "no list of the tensors of Nemotron-Labs-Diffusion is published, so that a "
    "native loader would be a guess",
    "modernbert": "ModernBERT needs layers of its own (LayerNorm, sliding windows, two rotary bases), which "
    "the native transformer does not have",
}
"""Values of ``model_type`` that are known and not supported, and why."""


def read_shape(folder: Path, asked: Asked = STORED) -> tuple[Family, TransformerConfig]:
    """The family of a folder, and the shape that its ``config.json`` and the settings ``asked`` describe."""
    source = folder / "config.json"
    values = read_object(source)
    family = find_family(values, source)
    if family.leaves_out:
        values = completed(values, folder, asked, family)
    try:
        shape = family.read(HubConfig(values, str(source)))
        return family, settled(shape, folder, asked, family)
    except ConfigError as problem:  # the values do not make a shape
        raise CheckpointError(f"{source}: {problem}") from None


def read_sizes(folder: Path, asked: Asked = STORED) -> TransformerConfig:
    """The shape of a folder for estimates, which do not depend on the mask token.

    Blocks of a block-causal family have their usual size where neither the files nor ``asked`` state it.
    """
    asked = replace(asked, mask_token="0")
    family = find_family(read_object(folder / "config.json"), folder / "config.json")
    try:
        return read_shape(folder, asked)[1]
    except CheckpointError:
        if family.attention != "block" or asked.attention != "stored":
            raise
        return read_shape(folder, replace(asked, attention="block", block=family.usual_block))[1]


def find_family(values: Mapping[str, Any], source: Path) -> Family:
    """The family of a configuration: by ``model_type``, and by ``architectures`` where two share it."""
    kind = values.get("model_type", NATIVE.model_type)
    require(isinstance(kind, str), f"{source}: model_type must be text, got {kind!r}", CheckpointError)
    require(kind not in REFUSED, f"{source}: {kind!r} is not supported: {REFUSED.get(kind)}", CheckpointError)
    found = [family for family in FAMILIES.values() if kind in (family.model_type, *family.aliases)]
    named = [name for family in FAMILIES.values() for name in (family.model_type, *family.aliases) if name]
    require(
        bool(found),
        f"{source}: 'model_type' is {kind!r}, which is not supported. {nearest(str(kind), named)} "
        "`dtm models` lists the families.",
        CheckpointError,
    )
    stated = values.get("architectures")
    stated = [] if stated is None else stated
    require(
        isinstance(stated, list) and all(isinstance(name, str) for name in stated),
        f"{source}: architectures must be a list of texts or null, got {stated!r}",
        CheckpointError,
    )
    own = [family for family in found if set(family.architectures) & set(stated)]
    return (own or [family for family in found if not family.architectures])[0]
