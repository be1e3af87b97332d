"""FP8 linear layers for decoding: W ≈ s Q, with Q in float8_e4m3fn and one scale s per output.

    y = (q s_x) (s Q)ᵀ        q, s_x: the activations of a token, rounded in the same way on the fly

GPUs from compute capability 8.9 on compute eight-bit products at twice the rate of bfloat16. Scales are
applied to the sums, which are rounded to bfloat16. The mantissa has three bits: the rounding error is at most
a sixteenth of a number, or half of the smallest step of its row. Attention, norms, embedding and head are
unchanged.
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float, Float8e4m3fn
from torch import Tensor, nn

from dtm.errors import ConfigError, require

LARGEST = torch.finfo(torch.float8_e4m3fn).max
MULTIPLE = 16
"""The kernels need matrices whose sides are multiples of this."""


def rounded(x: Float[Tensor, "N K"]) -> tuple[Float8e4m3fn[Tensor, "N K"], Float[Tensor, "N 1"]]:
    """Round rows to eight bits with scales s = max |x| / 448, so that each row's largest number is exact."""
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / LARGEST  # rows of zeros stay zero
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


class Fp8Linear(nn.Module):
    """A linear layer for inference."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None) -> None:
        super().__init__()
        require_multiples(weight.shape[1], weight.shape[0], "one layer")
        low, scale = rounded(weight)
        self.register_buffer("weight", low)
        self.register_buffer("scale", scale.T)
        self.register_buffer("bias", bias)

    def forward(self, x: Float[Tensor, "*B K"]) -> Float[Tensor, "*B N"]:
        """Multiply; the result is in bfloat16 under autocast, else in the precision of ``x``."""
        out = product(*rounded(x.flatten(0, -2)), self.weight, self.scale)
        if not torch.is_autocast_enabled(x.device.type):
            out = out.to(x.dtype)
        if self.bias is not None:
            out = out + self.bias.to(out.dtype)
        return out.view(*x.shape[:-1], -1)


def product(
    x: Float8e4m3fn[Tensor, "M K"],
    x_scale: Float[Tensor, "M 1"],
    weight: Float8e4m3fn[Tensor, "N K"],
    weight_scale: Float[Tensor, "1 N"],
) -> Float[Tensor, "M N"]:
    """X Wᵀ, in bfloat16."""
    # The public torch.nn.functional.scaled_mm is the same kernel, but torch 2.11 cannot compile it.
    return torch._scaled_mm(x, weight.T, x_scale, weight_scale, out_dtype=torch.bfloat16, use_fast_accum=True)


def require_products(device: torch.device) -> None:
    """Raise an error if the device cannot multiply in eight bits, by trying it."""
    problem = _problem(device.type)
    if problem is not None:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"this {device.type}"
        raise ConfigError(
            f"decoding.fp8 needs a GPU of compute capability 8.9 or newer (Ada, Hopper), and {name} cannot "
            f"multiply in eight bits: {problem}. Leave --decoding.fp8 out; --decoding.refresh saves time too."
        )


def require_multiples(inputs: int, outputs: int, name: str) -> None:
    """Raise an error for a layer whose sides the kernels do not support."""
    require(
        inputs % MULTIPLE == outputs % MULTIPLE == 0,
        f"decoding.fp8 needs layers whose sides are multiples of {MULTIPLE}; {name} has {inputs} inputs and "
        f"{outputs} outputs. Leave --decoding.fp8 out for this model.",
    )


@cache
def _problem(kind: str) -> str | None:
    """The error of an eight-bit product on a type of device; None if it works."""
    ones = torch.ones(MULTIPLE, MULTIPLE, device=kind)
    try:
        low, scale = rounded(ones)
        product(low, scale, low, scale.T)
    except RuntimeError as problem:
        return str(problem).splitlines()[0]
    return None
