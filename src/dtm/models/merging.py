"""π_a for inference: its adapter in the weights, and projections of the same input as one product.

    q, k, v → one matrix    gate, up → one matrix    W x + (α / r) B A x → one product, not three

The base is never touched: new layers take the place of adapted ones and of those beside them, and everything
else is shared, so there is nothing to undo. The sum is taken in float32 and rounded to the base's precision,
or to eight bits (`fp8`); four-bit weights are unpacked for it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dtm.errors import require
from dtm.models.denoiser import Denoiser
from dtm.models.fp8 import Fp8Linear, require_products
from dtm.models.low_rank import Adapted
from dtm.models.nf4 import full_weight, is_nf4
from dtm.models.transformer import Transformer

GROUPS = {
    "attention.qkv": ("q", "k", "v"),
    "attention.out": ("out",),
    "gate_up": ("gate", "up"),
    "down": ("down",),
}
"""What a block's projections become, and which of them: those of a group have the same input."""


def for_decoding(model: Denoiser, fp8: bool) -> Denoiser:
    """The model itself, or with ``fp8`` one whose projections are those of the model in eight bits."""
    if not fp8:
        return model
    require(
        isinstance(model, Transformer),
        f"decoding.fp8 needs a native transformer; of a {type(model).__name__} the projections are unknown",
    )
    assert isinstance(model, Transformer)
    return merged(model, fp8=True)


def merged(model: Transformer, fp8: bool = False) -> Transformer:
    """A model with the adapter of ``model`` in its weights, for inference; groups without one are shared.

    With ``fp8`` every projection is new, and in eight bits.
    """
    if fp8:
        require_products(model.embedding.weight.device)
    shared = [m for m in model.modules() if isinstance(m, Adapted) or not any(True for _ in m.children())]
    made = copy.deepcopy(model, {id(module): module for module in shared})
    for block in made.blocks:
        for path, names in GROUPS.items():
            where, _, whole = path.rpartition(".")
            parent = block.get_submodule(where)
            parts = [parent.get_submodule(name) for name in names]
            if fp8 or any(isinstance(part, Adapted) for part in parts):
                for name in names:
                    delattr(parent, name)
                layer = _one_layer(parts)
                setattr(parent, whole, Fp8Linear(layer.weight, layer.bias) if fp8 else layer)
    made.fp8, made.adds_in_place = fp8, True
    return made.eval()


@torch.no_grad()
def _one_layer(parts: Sequence[nn.Module]) -> nn.Linear:
    """One linear layer that returns what the parts return, one after the other."""
    weight = torch.cat([_weight(part) for part in parts])
    biases = [bias for bias in (_base(part).bias for part in parts) if bias is not None]
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], len(weight), bias=bool(biases))
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        linear.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return linear


def _weight(layer: Any) -> Tensor:
    """The weight of a layer with its adapter, if it has one, in the precision of the base."""
    base = _base(layer)
    weight: Tensor = full_weight(base) if is_nf4(base) else base.weight
    if not isinstance(layer, Adapted):
        return weight
    with torch.autocast(weight.device.type, enabled=False):  # rollouts ask for the sum in the midst of it
        update = layer.lora_B.weight @ layer.lora_A.weight
    return update.mul_(layer.scale).add_(weight).to(weight.dtype)


def _base(layer: Any) -> Any:
    """A layer without its adapter."""
    return layer.base_layer if isinstance(layer, Adapted) else layer
