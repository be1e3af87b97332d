"""π_a for inference: its adapter in the weights, and projections of the same input as one product.

    q, k, v → one matrix    gate, up → one matrix    W x + (α / r) B A x → one product, not three

The base is never touched: new layers take the place of adapted ones and of those beside them, and everything
else is shared, so there is nothing to undo. The sum is taken in float32 and rounded to the base's precision;
four-bit weights are unpacked for it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dtm.models.nf4 import full_weight, is_nf4
from dtm.models.transformer import Transformer

GROUPS = {
    "attention.qkv": ("q", "k", "v"),
    "attention.out": ("out",),
    "gate_up": ("gate", "up"),
    "down": ("down",),
}
"""What a block's projections become, and which of them: those of a group have the same input."""


def merged(model: Transformer) -> Transformer:
    """A model with the adapter of ``model`` in its weights, for inference; groups without one are shared."""
    shared = [m for m in model.modules() if hasattr(m, "lora_A") or not any(True for _ in m.children())]
    made = copy.deepcopy(model, {id(module): module for module in shared})
    for block in made.blocks:
        for path, names in GROUPS.items():
            where, _, whole = path.rpartition(".")
            parent = block.get_submodule(where)
            parts = [parent.get_submodule(name) for name in names]
            if any(hasattr(part, "lora_A") for part in parts):
                for name in names:
                    delattr(parent, name)
                setattr(parent, whole, _one_layer(parts))
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
    if base is layer:
        return weight
    (name,) = layer.lora_A.keys()
    update = layer.lora_B[name].weight.float() @ layer.lora_A[name].weight.float()
    return update.mul_(layer.scaling[name]).add_(weight).to(weight.dtype)


def _base(layer: Any) -> Any:
    """A layer without its adapter."""
    return getattr(layer, "base_layer", layer)
