"""Save and load models: ``config.json`` and safetensors in a folder, in the native or a hub layout."""

from __future__ import annotations

import shutil
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from dtm.errors import CheckpointError, require
from dtm.models.families import FAMILIES, read_shape
from dtm.models.families.native import NATIVE
from dtm.models.families.settings import STORED, Asked, Sidecar
from dtm.models.hub import find_folder
from dtm.models.nf4 import add_nf4_layers
from dtm.models.shape import TransformerConfig
from dtm.models.transformer import Transformer
from dtm.models.weights import SINGLE, check, fill, save_weights
from dtm.writing import write_json, writing

_LATER = (
    *("head_width", "qk_norm", "attention_block"),
    *("experts", "rope_width", "fused_qkv", "block_origin"),
)
"""Fields that dtm 0.1 does not know: left out at their defaults, so that it can load the model."""


def save_model(model: Transformer, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write weights (optionally in another dtype) and shape to ``folder``, in the native layout."""
    weights = _plain_weights(model, dtype)
    save_weights(folder / SINGLE, weights)
    values = asdict(model.config)
    shape = {
        field.name: values[field.name]
        for field in fields(model.config)
        if field.name not in _LATER or values[field.name] != field.default
    }
    write_json(folder / "config.json", shape)


def save_hub(
    model: Transformer, tokenizer: Any | None, folder: Path, dtype: torch.dtype | None = None
) -> None:
    """Write a model in the public layout of its family, with its tokenizer's files and ``dtm.json``.

    The names are those of `transformers`; a tied head is left out. The folder is complete or absent.
    """
    family = FAMILIES[model.family]
    if family.write is None:
        raise CheckpointError(
            f"models of the family {family.name} are not written in a public layout; use dtm.save_model"
        )
    require(
        not folder.exists() or (folder.is_dir() and not any(folder.iterdir())),
        f"{folder} is not empty: choose another folder",
        CheckpointError,
    )
    own = _plain_weights(model, dtype)
    slots = family.slots(model.config, own, stored=())
    weights = {
        name: own[native] if expert is None else own[native][expert].clone()
        for name, (native, expert) in slots.items()
    }
    config = family.write(model.config) | {"dtype": str(next(iter(weights.values())).dtype).split(".")[1]}
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with writing(folder, partial):
        save_weights(partial / SINGLE, weights, {"format": "pt"})
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
        Sidecar.of(model.config).write(partial)
        write_json(partial / "config.json", config)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)


def _plain_weights(model: Transformer, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Weights of a model without adapters, on the CPU."""
    weights = {
        name: value.detach().cpu().to(dtype or value.dtype).contiguous()
        for name, value in model.state_dict().items()
    }
    require(
        weights.keys() == without_memory(model.config).state_dict().keys(),
        "this model has adapters or NF4 weights and cannot be saved as a plain model. Write the adapter "
        "with dtm.models.export.save_adapter, or merge it with dtm.models.export.save_merged.",
        CheckpointError,
    )
    return weights


def load_model(
    path: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    nf4: bool = False,
    mask_id: int | str | None = None,
    attention: Literal["full", "block"] | None = None,
    block: int | None = None,
    asked: Asked = STORED,
) -> Transformer:
    """Load a model from a folder: saved by this package, or of a known family in the layout of the hub.

    A hub name stands for its downloaded copy: ``load_model("GSAI-ML/LLaDA-8B-Instruct")``. No code from the
    folder is run. A tensor that is missing, unexpected or of another shape, a missing shard, and an
    unsupported setting are errors that name it. Without a ``dtype``, native models are loaded in float32, and
    those of the hub in the dtype they are stored in. With ``nf4`` the declared linear layers are quantised to
    four bits while they are read. ``mask_id`` (an id or a token's text), ``attention`` and its ``block``
    state what a configuration leaves open; ``asked`` is all of them as one record.
    """
    if asked is STORED:
        token = None if mask_id is None else str(mask_id)
        asked = Asked(mask_token=token, attention=attention or "stored", block=block)
    folder = find_folder(path)
    family, config = read_shape(folder, asked)
    model = without_memory(config)
    if nf4:
        add_nf4_layers(model, model.linears())
    if dtype is None and family is NATIVE:
        dtype = torch.float32
    slots = partial(family.slots, config, _names(config))
    fill(model, folder, slots, dtype, torch.device(device), family.tied_names(config))
    return model


def check_weights(folder: Path, asked: Asked = STORED) -> None:
    """Check files, names and shapes of a folder without reading weights; raises what `load_model` would."""
    family, config = read_shape(folder, asked)
    slots = partial(family.slots, config, _names(config))
    check(without_memory(config), folder, slots, family.tied_names(config))


def _names(config: TransformerConfig) -> list[str]:
    """Names of the parameters of a model."""
    return list(without_memory(config).state_dict())


def without_memory(config: TransformerConfig) -> Transformer:
    """Build a model on the meta device: names and shapes only."""
    with torch.device("meta"):
        return Transformer(config)
