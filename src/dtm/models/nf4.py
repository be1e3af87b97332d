"""NF4 base weights: the declared linear layers in four bits, the rest unchanged.

Blocks of 64 weights share a scale, and the scales are themselves quantised, as in QLoRA. The weights are
frozen; adapters are trained above them. Needs bitsandbytes, which computes on CPUs too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dtm.errors import ConfigError
from dtm.models.linears import Linear, replace_modules


def bitsandbytes() -> Any:
    """Import the library when it is first needed."""
    try:
        import bitsandbytes as library
    except ImportError:
        raise ConfigError(
            "NF4 weights need bitsandbytes: pip install 'discrete-tilt-matching[nf4]', or load without nf4"
        ) from None
    return library


def add_nf4_layers(model: nn.Module, linears: Iterable[Linear]) -> None:
    """Replace the linear layers of a model on the meta device by NF4 layers that `quantise` fills."""
    make = bitsandbytes().nn.Linear4bit

    def empty(plain: nn.Linear) -> nn.Module:
        bias = plain.bias is not None
        layer: Any = make(plain.in_features, plain.out_features, bias=bias, quant_type="nf4", device="meta")
        # On some CPUs bitsandbytes would repack the weights in evaluation, without support for gradients.
        layer.support_avx512bf16_for_cpu = False
        return layer

    replace_modules(model, linears, empty)


def is_nf4(module: nn.Module) -> bool:
    """Whether a layer is an NF4 layer, filled or not."""
    return type(module).__name__ == "Linear4bit"


def quantise(layer: nn.Module, weight: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Quantise a full weight into an NF4 layer that computes in ``dtype``."""
    parameter = bitsandbytes().nn.Params4bit(
        weight.to(dtype), requires_grad=False, quant_type="nf4", compress_statistics=True, module=layer
    )
    layer.weight = parameter.to(device)
    layer.compute_dtype = dtype  # type: ignore[assignment]
    layer.compute_type_is_set = True  # type: ignore[assignment]


def full_weight(layer: Any) -> Tensor:
    """Dequantise the weight of an NF4 layer to the precision that it computes in."""
    weight: Tensor = bitsandbytes().functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    return weight.to(layer.compute_dtype)
