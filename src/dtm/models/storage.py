"""Models on disk: ``config.json`` and safetensors in one folder, the package's own or as on the hub."""

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
from dtm.models.nf4 import with_nf4_layers
from dtm.models.shape import TransformerConfig
from dtm.models.transformer import Transformer
from dtm.models.weights import check, fill


def save_model(model: Transformer, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write weights (optionally in a smaller dtype) and shape to ``folder``, in the package's own layout."""
    weights = {
        name: value.detach().cpu().to(dtype or value.dtype).contiguous()
        for name, value in model.state_dict().items()
    }
    plain = weights.keys() == without_memory(model.config).state_dict().keys()
    require(
        plain,
        "this model has adapters or NF4 weights, which are not a model of their own. Write the adapter "
        "with dtm.models.export.save_adapter, or merge it with dtm.models.export.save_merged.",
        CheckpointError,
    )
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(asdict(model.config), indent=2) + "\n", encoding="utf-8")


def load_model(
    path: str | Path,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    nf4: bool = False,
) -> Transformer:
    """A model from a folder: saved by this package, or LLaDA or Dream as they lie on the hub.

    The hub's name of a model stands for its downloaded copy: ``load_model("GSAI-ML/LLaDA-8B-Instruct")``.
    No code from the folder is run. A tensor that is missing, unexpected or of another shape, a missing
    shard and a setting that the native transformer does not have are errors that name it. Without a
    ``dtype``, the package's own models come in float32 and the hub's in the dtype they are stored in.
    With ``nf4`` the projections of the blocks are quantised to four bits while they are read.
    """
    folder = find_folder(path)
    family, config = read_shape(folder)
    model = without_memory(config)
    if nf4:
        model = with_nf4_layers(model)
    if dtype is None and family is NATIVE:
        dtype = torch.float32
    fill(model, folder, family.hub_name, dtype, torch.device(device))
    return model


def check_weights(folder: Path) -> None:
    """Refuse a folder that `load_model` would refuse, in moments: files, names and shapes are looked at."""
    family, config = read_shape(folder)
    check(without_memory(config), folder, family.hub_name)


def without_memory(config: TransformerConfig) -> Transformer:
    """A model of names and shapes alone (on the meta device)."""
    with torch.device("meta"):
        return Transformer(config)
