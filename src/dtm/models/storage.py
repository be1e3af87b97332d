"""Models on disk: ``model.safetensors`` and ``config.json`` in one folder, loaded strictly by name."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dtm.errors import CheckpointError, nearest, require
from dtm.models.transformer import Transformer, TransformerConfig


def save_model(model: Transformer, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write weights (optionally in a smaller dtype) and shape to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: value.detach().cpu().to(dtype or value.dtype).contiguous()
        for name, value in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(asdict(model.config), indent=2) + "\n", encoding="utf-8")


def load_model(folder: Path) -> Transformer:
    """Read a model back in float32; a missing or unexpected tensor is an error that names it."""
    try:
        shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "model.safetensors")
    except (FileNotFoundError, json.JSONDecodeError, SafetensorError) as problem:
        raise CheckpointError(f"no usable model in {folder}: {problem}") from None
    known = {f.name for f in fields(TransformerConfig)}
    for key in shape:
        require(
            key in known,
            f"{folder}/config.json: unknown field {key!r}. {nearest(key, known)}",
            CheckpointError,
        )
    model = Transformer(TransformerConfig(**shape))
    expected = model.state_dict()
    for name in expected.keys() ^ weights.keys():
        kind = "misses" if name in expected else "has an unexpected"
        raise CheckpointError(f"{folder}/model.safetensors {kind} tensor {name!r}")
    for name, value in weights.items():
        found, wanted = tuple(value.shape), tuple(expected[name].shape)
        message = f"{folder}/model.safetensors: {name!r} is {found}, config.json says {wanted}"
        require(found == wanted, message, CheckpointError)
    model.load_state_dict(weights)
    return model
