"""NF4 base weights: the declared linear layers in four bits, the rest unchanged.

Blocks of 64 weights share a scale, and the scales are themselves quantised, as in QLoRA. The weights are
frozen; adapters are trained above them. Needs bitsandbytes, which computes on CPUs too.

The stack of a layer of all experts is quantised expert by expert, with scales in float32. It is dequantised
as a whole for a pass: grouped products need it in one piece. Routers keep their precision.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dtm.errors import ConfigError, install_extra, require
from dtm.models.experts import Stack
from dtm.models.linears import Linear, replace_modules

BLOCK = 64
"""Weights that share a scale."""


def bitsandbytes() -> Any:
    """Import the library when it is first needed.

    Its import may log that an optional kernel of the hub is missing, which NF4 does not need.
    """
    log = logging.getLogger("bitsandbytes")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        import bitsandbytes as library
    except ImportError:
        raise ConfigError(
            f"NF4 weights need bitsandbytes: {install_extra('nf4')}, or load without nf4"
        ) from None
    finally:
        log.setLevel(before)
    return library


def add_nf4_layers(model: nn.Module, linears: Iterable[Linear]) -> None:
    """Replace the linear layers of a model on the meta device by NF4 layers that `quantise` fills."""
    make = bitsandbytes().nn.Linear4bit

    def empty(plain: nn.Linear | Stack) -> nn.Module:
        if isinstance(plain, Stack):
            return Nf4Stack(plain)
        bias = plain.bias is not None
        layer: Any = make(plain.in_features, plain.out_features, bias=bias, quant_type="nf4", device="meta")
        # On some CPUs bitsandbytes would repack the weights in evaluation, without support for gradients.
        layer.support_avx512bf16_for_cpu = False
        return layer

    replace_modules(model, (linear for linear in linears if not linear.exact), empty)


class Nf4Stack(Stack):
    """One linear layer of every expert, in four bits; on the meta device until `quantise` fills it."""

    packed: Tensor
    scales: Tensor

    def __init__(self, plain: Stack) -> None:
        super().__init__(len(plain.weight), plain.in_features, plain.out_features)
        self.count = len(plain.weight)
        size = plain.in_features * plain.out_features
        require(
            size % BLOCK == 0,
            f"model.nf4 needs experts whose matrices have a multiple of {BLOCK} weights; one here has {size}",
        )
        self.compute_dtype = torch.float32
        self.weight = nn.Parameter(plain.weight.to("meta"), requires_grad=False)
        self.register_buffer("packed", torch.empty(self.count, size // 2, dtype=torch.uint8, device="meta"))
        self.register_buffer("scales", torch.empty(self.count, size // BLOCK, device="meta"))

    def fill(self, weight: Tensor, dtype: torch.dtype, device: torch.device, expert: int | None) -> None:
        """Quantise the matrix of one expert, or of all of them."""
        if expert is None:
            for number, matrix in enumerate(weight):
                self.fill(matrix, dtype, device, number)
            return
        if self.packed.is_meta:
            self.packed = torch.empty_like(self.packed, device=device)
            self.scales = torch.empty_like(self.scales, device=device)
            self.register_parameter("weight", None)
        packed, state = bitsandbytes().functional.quantize_4bit(
            weight.to(device, dtype), blocksize=BLOCK, quant_type="nf4", compress_statistics=False
        )
        self.packed[expert], self.scales[expert] = packed.flatten(), state.absmax
        self.compute_dtype = dtype

    def full_weight(self) -> Float[Tensor, "E N K"]:
        """Dequantise the weights of all experts."""
        library = bitsandbytes().functional
        state = library.QuantState(
            absmax=self.scales.flatten(),
            shape=torch.Size([self.count * self.out_features, self.in_features]),
            code=library.get_4bit_type("nf4", device=self.packed.device),
            blocksize=BLOCK,
            quant_type="nf4",
            dtype=self.compute_dtype,
        )
        weight: Tensor = library.dequantize_4bit(self.packed.view(-1, 1), state)
        return weight.view(self.count, self.out_features, self.in_features)


def is_nf4(module: nn.Module) -> bool:
    """Whether a layer is an NF4 layer, filled or not."""
    return isinstance(module, Nf4Stack) or type(module).__name__ == "Linear4bit"


def quantise(
    layer: nn.Module, weight: Tensor, dtype: torch.dtype, device: torch.device, expert: int | None = None
) -> None:
    """Quantise a full weight, or that of one ``expert``, into an NF4 layer that computes in ``dtype``."""
    if isinstance(layer, Nf4Stack):
        layer.fill(weight, dtype, device, expert)
        return
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
