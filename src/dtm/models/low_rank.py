"""Linear layers with a low-rank update, W x + B (s A x), applied one by one or several to the same input.

Layers that read the same input multiply it with all their A as one matrix, and the scale s multiplies A x (r
numbers per token) instead of the output. The result is the same up to rounding, with less memory traffic,
which is the main cost of adapters at LLaDA's width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Adapted(nn.Module):
    """A frozen layer, shared with other models, and its own low-rank update, which starts at zero."""

    def __init__(self, base: Any, rank: int, scale: float, dropout: float) -> None:
        super().__init__()
        self.base_layer: nn.Module = base
        self.scale = scale
        self.dropout = dropout
        # Float32 or better, or small updates would be rounded away.
        kind = {"dtype": torch.promote_types(base.weight.dtype, torch.float32), "device": base.weight.device}
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, device="meta")
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, device="meta")
        for layer in (self.lora_A, self.lora_B):  # no draw from the global generator
            layer.weight = nn.Parameter(torch.zeros_like(layer.weight, **kind))

    def forward(self, x: Float[Tensor, "*P D"]) -> Float[Tensor, "*P W"]:
        """W x + B (s A x)."""
        (y,) = projections(x, [self])
        return y


def projections(x: Float[Tensor, "*P D"], layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
    """Apply each layer to x.

    The adapters among them share the dropout mask, so they must have the same dropout and mode.
    """
    adapted = [layer for layer in layers if isinstance(layer, Adapted)]
    if not adapted:
        return tuple(layer(x) for layer in layers)
    down = torch.cat([layer.lora_A.weight for layer in adapted])
    first = adapted[0]
    seen = F.dropout(x, first.dropout) if first.dropout and first.training else x
    if not torch.is_autocast_enabled(x.device.type):
        seen = seen.to(down.dtype)
    # An iterator, not a dict by layer: torch.compile would recompile that for every block.
    low = iter(torch.split(F.linear(seen, down), [layer.lora_A.out_features for layer in adapted], -1))
    return tuple(
        _with_update(layer, x, next(low)) if isinstance(layer, Adapted) else layer(x) for layer in layers
    )


def _with_update(layer: Adapted, x: Float[Tensor, "*P D"], low: Float[Tensor, "*P R"]) -> Tensor:
    """W x + B (s A x), given A x, in the precision of the frozen layer's output."""
    y: Tensor = layer.base_layer(x)
    return y + layer.lora_B(layer.scale * low).to(y.dtype)
