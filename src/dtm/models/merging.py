"""Merge π_a's adapter into its weights for inference, and layers that read the same input into one product.

For example q, k and v become one matrix, and W x + (α / r) B A x becomes one product instead of three. The
model declares which layers can be merged (`dtm.models.linears`).

The base is never changed: merged layers are new, and everything else is shared. The sum is computed in
float32 and rounded to the base's precision, or to eight bits (`fp8`); NF4 weights are dequantised first.
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
from dtm.models.linears import expand, merge_groups, parent_of
from dtm.models.low_rank import Adapted
from dtm.models.nf4 import full_weight, is_nf4
from dtm.models.transformer import Transformer


def for_decoding(model: Denoiser, fp8: bool) -> Denoiser:
    """The model itself, or with ``fp8`` a copy of it whose linear layers are in eight bits."""
    if not fp8:
        return model
    require(
        isinstance(model, Transformer),
        f"decoding.fp8 needs a native transformer, not a {type(model).__name__}. Leave --decoding.fp8 out.",
    )
    assert isinstance(model, Transformer)
    return merged(model, fp8=True)


def merged(model: Transformer, fp8: bool = False) -> Transformer:
    """Make a copy of ``model`` for inference with the adapter merged into its weights.

    Layers that are not merged are shared with ``model``. With ``fp8`` all declared linear layers are new, and
    in eight bits, apart from routers and experts.
    """
    if fp8:
        require_products(model.embedding.weight.device)
    shared = [m for m in model.modules() if isinstance(m, Adapted) or not any(True for _ in m.children())]
    made = copy.deepcopy(model, {id(module): module for module in shared})
    plain = [linear for linear in model.linears() if linear.is_plain]
    for pattern, group in merge_groups(plain).items():
        names = [linear.path.rpartition(".")[2] for linear in group]
        for path in expand(pattern, group[0].indices):
            parent, whole = parent_of(made, path)
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
    """One linear layer whose outputs are those of the parts, concatenated."""
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
    with torch.autocast(weight.device.type, enabled=False):  # rollouts call this under autocast
        update = layer.lora_B.weight @ layer.lora_A.weight
    return update.mul_(layer.scale).add_(weight).to(weight.dtype)


def _base(layer: Any) -> Any:
    """The frozen layer of an adapted one; any other layer itself."""
    return layer.base_layer if isinstance(layer, Adapted) else layer
