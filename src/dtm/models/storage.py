"""Save and load models: ``config.json`` and safetensors in a folder, in the native or a hub layout."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from dtm.errors import CheckpointError, require
from dtm.models.families import read_shape
from dtm.models.families.native import NATIVE
from dtm.models.hub import find_folder
from dtm.models.nf4 import add_nf4_layers
from dtm.models.shape import TransformerConfig
from dtm.models.transformer import Transformer
from dtm.models.weights import check, fill


def save_model(model: Transformer, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write weights (optionally in another dtype) and shape to ``folder``, in the native layout."""
    weights = {
        name: value.detach().cpu().to(dtype or value.dtype).contiguous()
        for name, value in model.state_dict().items()
    }
    plain = weights.keys() == without_memory(model.config).state_dict().keys()
    require(
        plain,
        "this model has adapters or NF4 weights and cannot be saved as a plain model. Write the adapter "
        "with dtm.models.export.save_adapter, or merge it with dtm.models.export.save_merged.",
        CheckpointError,
    )
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    shape = asdict(model.config)
    for name in ("head_width", "attention_block"):  # earlier versions do not know these fields
        if shape[name] is None:
            del shape[name]
    (folder / "config.json").write_text(json.dumps(shape, indent=2) + "\n", encoding="utf-8")


def load_model(
    path: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    nf4: bool = False,
) -> Transformer:
    """Load a model from a folder: saved by this package, or LLaDA or Dream in the layout of the hub.

    A hub name stands for its downloaded copy: ``load_model("GSAI-ML/LLaDA-8B-Instruct")``. No code from the
    folder is run. A tensor that is missing, unexpected or of another shape, a missing shard, and an
    unsupported setting are errors that name it. Without a ``dtype``, native models are loaded in float32, and
    those of the hub in the dtype they are stored in. With ``nf4`` the declared linear layers are quantised to
    four bits while they are read.
    """
    folder = find_folder(path)
    family, config = read_shape(folder)
    model = without_memory(config)
    if nf4:
        add_nf4_layers(model, model.linears())
    if dtype is None and family is NATIVE:
        dtype = torch.float32
    fill(model, folder, family.hub_name, dtype, torch.device(device))
    return model


def check_weights(folder: Path) -> None:
    """Check files, names and shapes of a folder without reading weights; raises what `load_model` would."""
    family, config = read_shape(folder)
    check(without_memory(config), folder, family.hub_name)


def without_memory(config: TransformerConfig) -> Transformer:
    """Build a model on the meta device: names and shapes only."""
    with torch.device("meta"):
        return Transformer(config)
