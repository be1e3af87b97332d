"""One residual layer in two halves: positions meet in the first, and each is on its own in the second.

    mixed = attention(norm(x))                      attend, over whole rows
    x ← x + out(mixed),  x + down(silu(gate) · up)  feed, of any positions

So of a model's last block the second half is needed only where states are asked for.

Letters: B batch, L length, W positions computed, H heads, K key-value heads, E head width, C its pairs of
channels, D model width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dtm.models.cache import Kept, replaced
from dtm.models.low_rank import projections
from dtm.models.shape import TransformerConfig

try:
    from dtm.models import part_attention
except ModuleNotFoundError:  # without Triton there is no GPU that it could run on
    part_attention = None  # type: ignore[assignment]

Rotation = tuple[Float[Tensor, "*rows W 1 C"], Float[Tensor, "*rows W 1 C"]]
"""Cosine and sine of the rotary angles: worked out once, shared by all heads and blocks. Rows that look at
different positions have their own."""


def rotary(length: int, width: int, base: float, device: torch.device) -> Rotation:
    """The half-split rotary embedding, in float32; each frequency serves two channels."""
    frequency = base ** -(torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency)[:, None]
    return angles.cos(), angles.sin()


def rotate(x: Float[Tensor, "B W H E"], rotation: Rotation) -> Float[Tensor, "B W H E"]:
    """Rotate each pair of channels (e, e + E/2) by its angle, in float32 or better."""
    first, second = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    cosine, sine = rotation
    turned = first * cosine - second * sine, second * cosine + first * sine
    return torch.cat([half.to(x.dtype) for half in turned], dim=-1)


class Attention(nn.Module):
    """Full (not causal) attention; padded keys are never attended to."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads or config.heads
        self.head_width = head_width = config.width // config.heads
        self.qkv: nn.Module | None = None
        """All three as one product, in the models that `merging` makes; they have no q, k and v."""
        self.q = nn.Linear(config.width, config.width, bias=config.qkv_bias)
        self.k = nn.Linear(config.width, self.kv_heads * head_width, bias=config.qkv_bias)
        self.v = nn.Linear(config.width, self.kv_heads * head_width, bias=config.qkv_bias)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(
        self,
        x: Float[Tensor, "B W D"],
        rotation: Rotation,
        mask: Bool[Tensor, "B 1 1 L"] | None,
        kept: Kept | None = None,
    ) -> Float[Tensor, "B W D"]:
        """What every position given takes from every real one, kept ones included; `out` comes later."""
        counts = self.heads, self.kv_heads, self.kv_heads
        q, k, v = (
            projected.view(*x.shape[:2], heads, self.head_width)
            for projected, heads in zip(self._projected(x), counts, strict=True)
        )
        # Heads stay inside positions until they are mixed, or the backward pass copies from one to the other.
        q, k = rotate(q, rotation), rotate(k, rotation)
        if kept is not None:
            k, v = replaced(kept, k, v)
            *_, rows, where = kept
            is_part = rows is not None or where is not None
            if is_part and part_attention is not None and part_attention.serves(q):
                real = None if mask is None else mask[:, 0, 0]
                return part_attention.part_attention(q, k, v, real).flatten(2)
        grouped = self.kv_heads != self.heads
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
        return mixed.transpose(1, 2).flatten(2)

    def _projected(self, x: Float[Tensor, "B W D"]) -> tuple[Tensor, ...]:
        """Queries, keys and values."""
        if self.qkv is None:
            return projections(x, (self.q, self.k, self.v))
        narrow = x.shape[-1] // self.heads * self.kv_heads
        return self.qkv(x).split((x.shape[-1], narrow, narrow), -1)


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each behind a norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.gate_up: nn.Module | None = None
        """Both as one product, in the models that `merging` makes."""
        self.gate = nn.Linear(config.width, config.ffn, bias=False)
        self.up = nn.Linear(config.width, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.width, bias=False)

    def attend(
        self,
        x: Float[Tensor, "B W D"],
        rotation: Rotation,
        mask: Bool[Tensor, "B 1 1 L"] | None,
        kept: Kept | None = None,
    ) -> Float[Tensor, "B W D"]:
        """The first half: what each position takes from the others."""
        return self.attention(self.attention_norm(x), rotation, mask, kept)

    def feed(self, x: Float[Tensor, "*P D"], mixed: Float[Tensor, "*P D"]) -> Float[Tensor, "*P D"]:
        """The second half, of any positions."""
        x = x + self.attention.out(mixed)
        return x + self.down(self.widened(x))

    def feed_in_place(
        self, x: Float[Tensor, "*P D"], mixed: Float[Tensor, "*P D"], widened: Callable[..., Tensor]
    ) -> Float[Tensor, "*P D"]:
        """The same written over x, each sum by the product itself; ``widened`` may be a compiled one."""
        stream = x.view(-1, x.shape[-1])
        stream.addmm_(mixed.flatten(0, -2), self.attention.out.weight.t())
        stream.addmm_(widened(self, x).flatten(0, -2), self.down.weight.t())
        return x

    def can_add_in_place(self, x: Float[Tensor, "*P D"], mixed: Float[Tensor, "*P D"]) -> bool:
        """Whether `feed_in_place` can: not in four or eight bits, nor from float32 under autocast."""
        layers: tuple[Any, ...] = self.attention.out, self.down
        return not x.requires_grad and all(
            isinstance(layer, nn.Linear)
            and layer.bias is None
            and layer.weight.dtype == x.dtype == mixed.dtype
            for layer in layers
        )

    def widened(self, x: Float[Tensor, "*P D"]) -> Float[Tensor, "*P F"]:
        """What the feed-forward layer makes of x before it becomes narrow again."""
        gate, up = self._branches(self.ffn_norm(x))
        return F.silu(gate) * up

    def _branches(self, x: Float[Tensor, "*P D"]) -> tuple[Tensor, ...]:
        """The two branches of the feed-forward layer."""
        if self.gate_up is None:
            return projections(x, (self.gate, self.up))
        return self.gate_up(x).chunk(2, -1)
