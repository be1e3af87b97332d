"""Adapters added into the weights for the time of the rollouts: one product for W + (α / r) B A, not three.

The base is never touched: merged layers are new and everything else is shared, so there is nothing to undo.
The sum is taken in float32 and rounded to the base's precision; four-bit weights are unpacked for it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from dtm.models.nf4 import full_weight, is_nf4
from dtm.models.transformer import Transformer


def merged(model: Transformer) -> Transformer:
    """A model with the adapter of ``model`` in its weights, for inference; it shares what has no adapter."""
    memo: dict[int, nn.Module] = {}
    for module in model.modules():
        if hasattr(module, "lora_A"):
            memo[id(module)] = _merged_layer(module)
        elif not any(True for _ in module.children()):
            memo.setdefault(id(module), module)
    return copy.deepcopy(model, memo).requires_grad_(False).eval()


@torch.no_grad()
def _merged_layer(layer: Any) -> nn.Linear:
    """One linear layer from a base layer and its adapter."""
    base, (name,) = layer.base_layer, layer.lora_A.keys()
    weight: Tensor = full_weight(base) if is_nf4(base) else base.weight
    update = layer.lora_B[name].weight.float() @ layer.lora_A[name].weight.float()
    with torch.device("meta"):
        linear = nn.Linear(base.in_features, base.out_features, bias=base.bias is not None)
    total = update.mul_(layer.scaling[name]).add_(weight)
    linear.weight = nn.Parameter(total.to(weight.dtype), requires_grad=False)
    if base.bias is not None:
        linear.bias = base.bias
    return linear
