"""One residual block in two halves: attention over all positions, then a feed-forward layer at each position.

    mixed = attention(norm(x))                      attend, over whole rows
    x ← x + out(mixed),  x + down(silu(gate) · up)  feed, at any positions

Some blocks have a mixture of experts in place of the feed-forward layer. The second half of the last block is
needed only at positions whose states are used.

Letters: B batch, L length, W positions computed, H heads, K key-value heads, E head width, C its pairs of
channels, M = H E width of the attention, D model width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from dtm.models.cache import Kept, replaced
from dtm.models.experts import FeedForward, Mixture, widened
from dtm.models.low_rank import projections
from dtm.models.shape import TransformerConfig
from dtm.models.visibility import Visible

Rotation = tuple[Float[Tensor, "*rows W 1 C"], Float[Tensor, "*rows W 1 C"]]
"""Cosine and sine of the rotary angles: computed once per pass, shared by all heads and blocks. Rows whose
windows start at different positions have their own."""
RESIDUAL = ("attention.out", "down")
"""Layers of a block that write into the residual stream."""


def rotary(length: int, width: int, base: float, device: torch.device) -> Rotation:
    """Rotary embedding, half-split, in float32; two channels share each frequency."""
    frequency = base ** -(torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency)[:, None]
    return angles.cos(), angles.sin()


def rotate(x: Float[Tensor, "B W H E"], rotation: Rotation) -> Float[Tensor, "B W H E"]:
    """Rotate each pair of channels (c, c + C) by its angle, in float32 or better; those from 2 C on stay."""
    cosine, sine = rotation
    pairs = cosine.shape[-1]
    first, second = x[..., : 2 * pairs].to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    turned = first * cosine - second * sine, second * cosine + first * sine
    return torch.cat([*(half.to(x.dtype) for half in turned), x[..., 2 * pairs :]], dim=-1)


def grouped_attention(
    q: Float[Tensor, "B H W E"], k: Float[Tensor, "B K J E"], v: Float[Tensor, "B K J E"], mask: Visible
) -> Float[Tensor, "B H W E"]:
    """Softmax attention of the queries to the keys that the mask allows; H / K query heads share a key head.

    No fast kernel takes shared heads and a mask together. With a mask, the queries that share a key head
    become further queries of one head: the same numbers by kernels that take the mask.
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    if not isinstance(mask, Tensor):
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=mask == "causal", enable_gqa=heads != kv_heads
        )
    group = heads // kv_heads
    together = q.unflatten(1, (kv_heads, group)).flatten(2, 3)
    if mask.shape[2] > 1:
        mask = mask.repeat(1, 1, group, 1)
    mixed = F.scaled_dot_product_attention(together, k, v, attn_mask=mask)
    return mixed.unflatten(2, (group, q.shape[2])).flatten(1, 2)


class Attention(nn.Module):
    """Attention to the positions that the model's mask allows; padded keys are never attended to."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads or config.heads
        self.head_width = config.head_size
        self.qkv: nn.Module | None = None
        """q, k and v as one product, in fused and in merged models (`merging`); these have no q, k and v."""
        if config.fused_qkv:
            fused = config.query_width + 2 * config.kv_width
            self.qkv = nn.Linear(config.width, fused, bias=config.qkv_bias)
        else:
            self.q = nn.Linear(config.width, config.query_width, bias=config.qkv_bias)
            self.k = nn.Linear(config.width, config.kv_width, bias=config.qkv_bias)
            self.v = nn.Linear(config.width, config.kv_width, bias=config.qkv_bias)
        self.out = nn.Linear(config.query_width, config.width, bias=False)
        self.q_norm: nn.Module | None = None
        """Norm of each head of the queries; one weight for all heads."""
        self.k_norm: nn.Module | None = None
        """Norm of each head of the keys."""
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(config.head_size, eps=config.norm_eps)
            self.k_norm = nn.RMSNorm(config.head_size, eps=config.norm_eps)

    def forward(
        self,
        x: Float[Tensor, "B W D"],
        rotation: Rotation,
        mask: Visible,
        kept: Kept | None = None,
    ) -> Float[Tensor, "B W M"]:
        """Attention of the given positions to visible ones, cached ones included; `out` is applied later."""
        counts = self.heads, self.kv_heads, self.kv_heads
        q, k, v = (
            projected.view(*x.shape[:2], heads, -1)
            for projected, heads in zip(self._projected(x), counts, strict=True)
        )
        if self.q_norm is not None and self.k_norm is not None:
            # Under autocast a float32 norm returns float32; values stay in the precision of the product.
            q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        # Keep [B, W, H, E] until attention: transposing earlier costs a copy in the backward pass.
        q, k = rotate(q, rotation), rotate(k, rotation)
        if kept is not None:
            k, v = replaced(kept, k, v)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return grouped_attention(q, k, v, mask).transpose(1, 2).flatten(2)

    def _projected(self, x: Float[Tensor, "B W D"]) -> tuple[Tensor, ...]:
        """Queries, keys and values."""
        if self.qkv is None:
            return projections(x, (self.q, self.k, self.v))
        narrow = self.head_width * self.kv_heads
        return self.qkv(x).split((self.head_width * self.heads, narrow, narrow), -1)


class Block(nn.Module):
    """Attention and a gated feed-forward layer or a mixture of experts, each behind a norm."""

    def __init__(self, config: TransformerConfig, number: int = 0) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.experts: Mixture | None = None
        self.shared: FeedForward | None = None
        """Expert that every token passes through."""
        if config.experts is not None and number in config.experts.layers:
            self.experts = Mixture(config.experts, config.width)
            if config.experts.shared is not None:
                self.shared = FeedForward(config.width, config.experts.shared)
            return
        self.gate_up: nn.Module | None = None
        """gate and up as one product, in merged models."""
        self.gate = nn.Linear(config.width, config.ffn, bias=False)
        self.up = nn.Linear(config.width, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.width, bias=False)

    def forward(self, part: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """Run a part of the block; a sharded block gathers its weights for it (`dtm.distributed`)."""
        return part(self, *inputs)

    def attend(
        self,
        x: Float[Tensor, "B W D"],
        rotation: Rotation,
        mask: Visible,
        kept: Kept | None = None,
    ) -> Float[Tensor, "B W M"]:
        """Run the first half: attention over all positions that the mask allows."""
        return self.attention(self.attention_norm(x), rotation, mask, kept)

    def attend_modules(self) -> list[nn.Module]:
        """Modules of the first half."""
        attention = (module for name, module in self.attention.named_children() if name != "out")
        return [self.attention_norm, *attention]

    def feed(self, x: Float[Tensor, "*P D"], mixed: Float[Tensor, "*P M"]) -> Float[Tensor, "*P D"]:
        """Run the second half, at any positions."""
        x = x + self.attention.out(mixed)
        if self.experts is None:
            return x + self.down(self.widened(x))
        y = self.ffn_norm(x)
        return x + self.experts(y) if self.shared is None else x + self.experts(y) + self.shared(y)

    def feed_in_place(
        self, x: Float[Tensor, "*P D"], mixed: Float[Tensor, "*P M"], widened: Callable[..., Tensor]
    ) -> Float[Tensor, "*P D"]:
        """Run the second half and write it over x, each sum fused into a product (addmm).

        ``widened`` is `Block.widened` or its compiled form.
        """
        stream = x.view(-1, x.shape[-1])
        stream.addmm_(mixed.flatten(0, -2), self.attention.out.weight.t())
        stream.addmm_(widened(self, x).flatten(0, -2), self.down.weight.t())
        return x

    def can_add_in_place(self, x: Float[Tensor, "*P D"], mixed: Float[Tensor, "*P M"]) -> bool:
        """Whether `feed_in_place` applies: not to NF4 or FP8 layers, experts, or float32 under autocast."""
        if self.experts is not None:
            return False
        layers: tuple[Any, ...] = self.attention.out, self.down
        return not x.requires_grad and all(
            isinstance(layer, nn.Linear)
            and layer.bias is None
            and layer.weight.dtype == x.dtype == mixed.dtype
            for layer in layers
        )

    def widened(self, x: Float[Tensor, "*P D"]) -> Float[Tensor, "*P F"]:
        """Hidden layer of the feed-forward layer, behind the norm."""
        return widened(self, self.ffn_norm(x))
