"""Attention for passes over a part of what is kept: windows, and some of the rows. Triton, so GPUs alone.

    windows      a few queries read all keys of their row: as fast as memory, in one program a head and row
    some rows    a number of them that changes with every round

Kernels of scaled_dot_product_attention are made for hundreds of queries, and the fastest of them prepare
themselves for every new shape, for longer than many passes take. This one is compiled once.

Letters: B batch, L length, W positions asked for, H heads, K key-value heads, E head width.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

SMALL: dict[str, Any] = {"M": 32, "N": 32, "num_warps": 2, "num_stages": 4}
LARGE: dict[str, Any] = {"M": 128, "N": 64, "num_warps": 8, "num_stages": 2}
"""Queries of a program and keys that it reads at a time; at a head width of 128 within 99 KiB a program."""


def serves(q: Float[Tensor, "B W H E"]) -> bool:
    """Whether the kernel is made for it: numbers of 16 bits on a GPU, and heads of a usual width."""
    return q.is_cuda and q.element_size() == 2 and q.shape[-1] in (16, 32, 64, 128)


def part_attention(
    q: Float[Tensor, "B W H E"],
    k: Float[Tensor, "B L K E"],
    v: Float[Tensor, "B L K E"],
    mask: Bool[Tensor, "B L"] | None,
) -> Float[Tensor, "B W H E"]:
    """Softmax(q kᵀ / √E) v over the real keys of each row, of which there must be one. No gradients."""
    rows, queries, heads, width = q.shape
    mixed = torch.empty((rows, queries, heads, width), dtype=q.dtype, device=q.device)
    size = SMALL if queries <= 64 else LARGE
    _mix[(heads, rows, triton.cdiv(queries, size["M"]))](
        q,
        k,
        v,
        k if mask is None else mask,
        mixed,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        0 if mask is None else mask.stride(0),
        queries,
        k.shape[1],
        heads,
        heads // k.shape[2],
        MASKED=mask is not None,
        E=width,
        **size,
    )
    return mixed


@triton.jit
def _mix(
    q,
    k,
    v,
    mask,
    mixed,
    q_row,
    q_position,
    q_head,
    k_row,
    k_position,
    k_head,
    v_row,
    v_position,
    v_head,
    mask_row,
    queries,
    length,
    heads,
    group,
    MASKED: tl.constexpr,
    E: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """M queries of a head of a row: one pass over its keys and values with a running softmax in base 2."""
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    asked, channel, near = tl.program_id(2) * M + tl.arange(0, M), tl.arange(0, E), tl.arange(0, N)
    q += row * q_row + head * q_head
    k += row * k_row + head // group * k_head
    v += row * v_row + head // group * v_head
    is_asked = asked[:, None] < queries
    query = tl.load(q + asked[:, None] * q_position + channel[None, :], mask=is_asked, other=0.0)
    scale = E**-0.5 * 1.4426950408889634  # log2(e)
    # Finite, or a tile of padding alone before the first real key would make 0 / 0.
    peak = tl.full([M], -1e30, tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = tl.zeros([M, E], tl.float32)
    for start in range(0, length, N):
        position = start + near
        real = position < length
        inside = real[:, None]
        if MASKED:
            real &= tl.load(mask + row * mask_row + position, mask=real, other=0) != 0
        key = tl.load(k + position[:, None] * k_position + channel[None, :], mask=inside, other=0.0)
        value = tl.load(v + position[:, None] * v_position + channel[None, :], mask=inside, other=0.0)
        score = tl.where(real[None, :], tl.dot(query, tl.trans(key)) * scale, -1e30)
        higher = tl.maximum(peak, tl.max(score, 1))
        weight, fade = tl.exp2(score - higher[:, None]), tl.exp2(peak - higher)
        total = total * fade + tl.sum(weight, 1)
        sums = tl.dot(weight.to(value.dtype), value, sums * fade[:, None])
        peak = higher
    place = ((row * queries + asked[:, None]) * heads + head) * E + channel[None, :]
    tl.store(mixed + place, (sums / total[:, None]).to(mixed.dtype.element_ty), mask=is_asked)
