"""Export a tuned adapter: as a PEFT adapter folder with the hub's names, or merged into the base's weights.

PEFT can load the adapter folder over the original hub model. Merged weights are computed from the base's own
files, never from a quantised copy: file by file, W + (α / r) B A in float32, in the layout, shards and dtype
of the base.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dtm.errors import CheckpointError, require
from dtm.models.adapters import LoRA, adapter_weights, frozen_adapted
from dtm.models.families import FAMILIES, read_shape
from dtm.models.families.base import Family
from dtm.models.families.settings import STORED, Asked, Sidecar
from dtm.models.linears import Linear
from dtm.models.shape import TransformerConfig
from dtm.models.storage import without_memory
from dtm.models.transformer import Transformer
from dtm.models.weights import require_same_names, save_weights, weight_files, without_tied
from dtm.writing import copy_file, write_json

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."
"""Prefix of all names in a PEFT adapter file."""
_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack"}


def save_adapter(model: Transformer, lora: LoRA, folder: Path, base: str | Path) -> None:
    """Write a model's adapter as a PEFT folder; ``base`` is the name or folder of its base model."""
    family = FAMILIES[model.family]
    stored = {_stored_name(name, family): value for name, value in adapter_weights(model).items()}
    save_weights(folder / WEIGHTS, stored)
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(base),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": _target_pattern(lora.resolve(model.linears(), family.name), family),
        "bias": "none",
        "inference_mode": True,
    }
    write_json(folder / CONFIG, config)


def load_adapter(folder: Path, base: Transformer) -> tuple[Transformer, LoRA]:
    """Load an adapter folder over ``base``: a frozen model, and the adapter's shape."""
    weights, lora = read_adapter(folder, base.config)
    return frozen_adapted(base, lora, weights), lora


def read_adapter(folder: Path, shape: TransformerConfig) -> tuple[dict[str, Tensor], LoRA]:
    """Read the tensors of an adapter folder, by native name, and the adapter's shape; no base is needed."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        stored = load_file(folder / WEIGHTS)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, SafetensorError) as problem:
        raise CheckpointError(f"no usable adapter in {folder}: {problem}") from None
    _require_plain(config, folder)
    family = FAMILIES[shape.family]
    _require_no_head(stored, family, folder / WEIGHTS)
    linears = [
        linear
        for linear in shape.linears()
        if _stored_name(f"{linear.paths()[0]}.lora_A.weight", family) in stored
    ]
    require(
        bool(linears),
        f"{folder}/{WEIGHTS} holds no adapter of a {family.name} model: its first tensor is "
        f"{min(stored, default='absent')!r}",
        CheckpointError,
    )
    lora = LoRA(
        rank=config["r"],
        alpha=float(config["lora_alpha"]),
        dropout=float(config["lora_dropout"]),
        targets=tuple(linear.name for linear in linears),
    )
    paths = [path for linear in linears for path in linear.paths()]
    native = [f"{path}.lora_{side}.weight" for path in paths for side in "AB"]
    expected = {_stored_name(name, family): name for name in native}
    require_same_names(expected, stored, folder / WEIGHTS)
    _require_shapes(stored, linears, lora, family, folder / WEIGHTS)
    return {expected[name]: value for name, value in stored.items()}, lora


def _require_no_head(stored: Mapping[str, Tensor], family: Family, source: Path) -> None:
    """Raise an error for an adapter of the head: PEFT compares suffixes, and some heads share a layer's."""
    head = family.hub_name("unembedding")
    require(
        _stored_name("unembedding.lora_A.weight", family) not in stored,
        f"{source} also adapts the head, {head}, which is not supported. PEFT adapts all modules whose names "
        f"end with an entry of target_modules; {head.rpartition('.')[2]!r} matches the head. Train without "
        f'it: LoraConfig(..., exclude_modules=["{head}"]). Or merge the adapter with PEFT '
        "(merge_and_unload), save the model, and use its folder without --adapter",
        CheckpointError,
    )


def _require_shapes(
    stored: Mapping[str, Tensor], linears: Iterable[Linear], lora: LoRA, family: Family, source: Path
) -> None:
    """Raise an error for the first factor whose shape is not that of the base's layer."""
    for linear in linears:
        for path in linear.paths():
            for side, wanted in (("A", (lora.rank, linear.inputs)), ("B", (linear.outputs, lora.rank))):
                name = _stored_name(f"{path}.lora_{side}.weight", family)
                found = tuple(stored[name].shape)
                require(
                    found == wanted,
                    f"{source}: {name!r} is {found}, and this {family.name} model needs {wanted}: the "
                    "adapter belongs to another base",
                    CheckpointError,
                )


def save_merged(model: Transformer, lora: LoRA, folder: Path, base: Path, asked: Asked = STORED) -> None:
    """Merge a model's adapter into the base's full-precision weights, and write them."""
    merge_adapter(adapter_weights(model), lora, folder, base, asked)


def merge_adapter(
    weights: Mapping[str, Tensor], lora: LoRA, folder: Path, base: Path, asked: Asked = STORED
) -> None:
    """Merge an adapter into the base's full-precision weights, and write them in its layout and shards.

    All other files (configuration, tokeniser, index) are copied from the base's folder. Settings that these
    leave out, and those ``asked`` for, are written to ``dtm.json``.
    """
    require(folder.resolve() != base.resolve(), f"{folder} is the base itself: choose another folder")
    family, config = read_shape(base, asked)
    files = weight_files(base)
    slots = family.slots(config, without_memory(config).state_dict(), files)
    expected = {name: native for name, (native, _) in slots.items()}
    require_same_names(expected, without_tied(files, family.tied_names(config)), base)
    updates = {family.hub_name(name): pair for name, pair in _updates(weights).items()}
    for name in sorted(updates.keys() - files.keys()):
        raise CheckpointError(f"{base} has no tensor {name!r}: the adapter belongs to another model")
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(set(files.values())):
        merged = {name: _merged(value, updates.get(name), lora) for name, value in load_file(path).items()}
        save_weights(folder / path.name, merged, {"format": "pt"})
    for path in sorted(base.iterdir()):
        if path.is_file() and path.suffix not in _WEIGHT_SUFFIXES:
            copy_file(path, folder / path.name)
    if family.leaves_out:
        Sidecar.of(config).write(folder)


def _merged(weight: Tensor, update: tuple[Tensor, Tensor] | None, lora: LoRA) -> Tensor:
    """W + (α / r) B A, computed in float32 and stored in the dtype of W."""
    if update is None:
        return weight
    a, b = (factor.to("cpu", torch.float32) for factor in update)
    return (weight.float() + lora.scale * (b @ a)).to(weight.dtype)


def _updates(weights: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """The factors (A, B) of each adapted tensor, by the native name of that tensor."""
    modules = {name.removesuffix(".lora_A.weight") for name in weights if name.endswith(".lora_A.weight")}
    return {
        f"{module}.weight": (weights[f"{module}.lora_A.weight"], weights[f"{module}.lora_B.weight"])
        for module in sorted(modules)
    }


def _target_pattern(linears: Iterable[Linear], family: Family) -> str:
    """A regular expression that matches the full names of the adapted modules in the hub model only.

    Short names are ambiguous: LLaDA's ``ff_out`` is both a projection and the head.
    """
    paths = (family.hub_path(linear.path) for linear in linears)
    return "|".join(re.escape(path).replace(r"\*", r"\d+") for path in paths)


def _stored_name(native: str, family: Family) -> str:
    """PEFT's name of an adapter's tensor over the hub model."""
    module, lora, tensor = native.rpartition(".lora_")
    return f"{_PREFIX}{family.hub_name(module)}{lora}{tensor}"


def _require_plain(config: dict[str, Any], folder: Path) -> None:
    """Raise an error for adapters that compute anything but W x + (α / r) B A x."""
    for key, kind in {"r": int, "lora_alpha": int | float, "lora_dropout": int | float}.items():
        require(key in config, f"{folder}/{CONFIG}: {key!r} is missing", CheckpointError)
        is_number = isinstance(config[key], kind) and not isinstance(config[key], bool)
        require(is_number, f"{folder}/{CONFIG}: {key!r} is {config[key]!r}, not a number", CheckpointError)
    plain: dict[str, tuple[Any, ...]] = {
        "peft_type": ("LORA",),
        "use_rslora": (False,),
        "use_dora": (False,),
        "bias": ("none",),
        "rank_pattern": ({},),
        "alpha_pattern": ({},),
        "modules_to_save": (None,),
    }
    for key, allowed in plain.items():
        value = config.get(key, allowed[0])
        require(value in allowed, f"{folder}/{CONFIG}: {key!r} is {value!r}, not supported", CheckpointError)
