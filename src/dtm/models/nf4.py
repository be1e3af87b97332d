"""NF4 base weights: the projections of the blocks in four bits, the rest as it is.

Blocks of 64 weights share a scale, and the scales are themselves quantised, as in QLoRA. The weights are
frozen; adapters are trained above them. Needs bitsandbytes, which computes on CPUs too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dtm.errors import ConfigError
from dtm.models.families.base import PROJECTIONS

if TYPE_CHECKING:
    from dtm.models.transformer import Transformer


def bitsandbytes() -> Any:
    """The library, imported when it is first needed."""
    try:
        import bitsandbytes as library
    except ImportError:
        raise ConfigError(
            "NF4 weights need bitsandbytes: pip install 'discrete-tilt-matching[nf4]', or load without nf4"
        ) from None
    return library


def with_nf4_layers(model: Transformer) -> Transformer:
    """Replace the projections of a model on the meta device by layers that `quantise` fills."""
    layers = bitsandbytes().nn
    for path in PROJECTIONS.values():
        for number in range(model.config.layers):
            parent_name, _, name = path.replace("*", str(number)).rpartition(".")
            parent = model.get_submodule(parent_name)
            plain = parent.get_submodule(name)
            assert isinstance(plain, nn.Linear)
            layer = layers.Linear4bit(
                plain.in_features,
                plain.out_features,
                bias=plain.bias is not None,
                quant_type="nf4",
                device="meta",
            )
            # On some CPUs evaluation would repack the weights, in a form that cannot be differentiated.
            layer.support_avx512bf16_for_cpu = False
            setattr(parent, name, layer)
    return model


def is_nf4(module: nn.Module) -> bool:
    """Whether a layer holds four-bit weights (or waits for them)."""
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
    """The weight of an NF4 layer, unpacked to the precision that it computes in."""
    weight: Tensor = bitsandbytes().functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    return weight.to(layer.compute_dtype)
