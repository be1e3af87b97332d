"""The shape of a native transformer, from half a million parameters to those of LLaDA and Dream."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from dtm.errors import require
from dtm.models.linears import Linear, position_weights
from dtm.models.routing import Experts

LIMITS = {
    **{"layers": 1_000, "heads": 1_024, "kv_heads": 1_024, "head_width": 1 << 14},
    **{"width": 1 << 18, "ffn": 1 << 20, "vocab_size": 1 << 24, "embedding_size": 1 << 24},
}
"""Sizes far above those of published models: beyond them a file is damaged, and its model would hang."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """The shape of a native transformer."""

    vocab_size: int
    """Number of token ids, the mask included."""
    mask_id: int
    eos_id: int
    width: int = 96
    """D, the model width."""
    layers: int = 4
    heads: int = 4
    kv_heads: int | None = None
    """Key-value heads shared by groups of query heads; None: as many as heads."""
    head_width: int | None = None
    """Width of one head; None: width / heads."""
    ffn: int = 256
    """Width of the gated feed-forward layer."""
    experts: Experts | None = None
    """Mixture of experts in place of the feed-forward layer of some blocks; None: all blocks are dense."""
    rope_base: float = 10_000.0
    rope_width: int | None = None
    """Channels of a head that rotate, the first ones; None: all of them."""
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    """Biases on the query, key and value projections (Dream has them, LLaDA does not)."""
    qk_norm: bool = False
    """RMSNorm over each head of queries and keys, after the projection and before the rotation (Qwen3)."""
    fused_qkv: bool = False
    """One matrix for queries, keys and values (LLaDA2); adapters then change it as a whole."""
    tied: bool = False
    """Use the token embedding as the output head."""
    embedding_size: int | None = None
    """Rows of the embedding and the head, where they exceed the vocabulary; None: as many as tokens."""
    shift: int = 0
    """Offset of predictions: the state at position i predicts token i + shift (0 LLaDA, 1 Dream)."""
    attention_block: int | None = None
    """B of block-causal attention: a position attends to its own block and to earlier ones; 1 is causal.
    None: full attention."""
    block_origin: Literal["column", "token"] = "column"
    """Origin of the count of blocks. column: blocks are columns of a row, j // B, and a completion starts a
    block (A2D). token: they are counted from a row's first token, and a prompt may end inside one (SDAR)."""
    family: str = "native"
    """Family of checkpoints whose module names adapters and exports use, for example llada."""

    @property
    def rows(self) -> int:
        """Rows of the embedding and the head."""
        return self.embedding_size or self.vocab_size

    @property
    def head_size(self) -> int:
        """E, the width of one head."""
        return self.head_width or self.width // self.heads

    @property
    def rotated(self) -> int:
        """Channels of a head that rotate."""
        return self.rope_width or self.head_size

    @property
    def query_width(self) -> int:
        """H · E, the width of the queries and of the attention's result."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """K · E, the width of the keys and of the values."""
        return (self.kv_heads or self.heads) * self.head_size

    def linears(self) -> tuple[Linear, ...]:
        """Declare the linear layers of the blocks."""
        return _linears(self)

    def flops(self, computed: int | float, attended: int, scored: int | float) -> float:
        """Floating-point operations of a forward pass over ``computed`` positions.

        2 P + 4 · layers · L · H E per computed position, which attends to L = ``attended`` ones, and
        2 (P₂ + V D) per scored one, where P₂ are the weights of the last block's second half and P those of
        the other linear layers. A multiplication and its addition are two operations. Norms, nonlinearities
        and softmax are left out, a few percent. Under block-causal attention the length of a row is an upper
        bound of L: kernels that take a mask compute masked products too.
        """
        all_positions, scored_only = position_weights(self.linears(), self.layers)
        position = 2 * all_positions + 4 * self.layers * attended * self.query_width
        return float(computed * position + 2 * scored * (scored_only + self.rows * self.width))

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            require(value is None or 1 <= value <= limit, f"{name} must lie in 1 … {limit:,}, got {value}")
        require(0 < self.rope_base < math.inf, f"rope_base must be a positive number, got {self.rope_base}")
        require(0 <= self.norm_eps < 1, f"norm_eps must lie in [0, 1), got {self.norm_eps}")
        kv_heads = self.kv_heads or self.heads
        require(
            self.head_width is not None or self.width % self.heads == 0,
            f"model.width {self.width} must be a multiple of model.heads {self.heads}",
        )
        require(
            self.head_size > 0 and self.head_size % 2 == 0,
            f"rotary positions need an even head width, got {self.head_size}",
        )
        require(
            0 < self.rotated <= self.head_size and self.rotated % 2 == 0,
            f"rope_width must be even and at most the head width {self.head_size}, got {self.rope_width}",
        )
        require(
            self.experts is None or all(0 <= number < self.layers for number in self.experts.layers),
            f"experts are given for blocks that a model of {self.layers} layers does not have",
        )
        require(
            self.heads % kv_heads == 0,
            f"model.heads {self.heads} must be a multiple of model.kv_heads {kv_heads}",
        )
        require(
            0 <= self.mask_id < self.vocab_size,
            f"mask_id {self.mask_id} is outside the vocabulary of {self.vocab_size}",
        )
        require(
            self.rows >= self.vocab_size,
            f"embedding_size {self.embedding_size} is smaller than the vocabulary of {self.vocab_size}",
        )
        require(self.shift in (0, 1), f"shift is 0 or 1, got {self.shift}")
        require(
            self.attention_block is None or self.attention_block >= 1,
            f"attention_block must be at least 1, got {self.attention_block}",
        )


@functools.cache  # FLOPs are counted for every pass
def _linears(shape: TransformerConfig) -> tuple[Linear, ...]:
    return (*_attention(shape), *_dense(shape), *_experts(shape))


def _attention(shape: TransformerConfig) -> Iterator[Linear]:
    """Projections of the attention."""
    widths = {"q": shape.query_width, "k": shape.kv_width, "v": shape.kv_width}
    if shape.fused_qkv:
        widths = {"qkv": sum(widths.values())}
    for name, outputs in widths.items():
        yield Linear(
            name=name,
            path=f"blocks.*.attention.{name}",
            indices=(range(shape.layers),),
            inputs=shape.width,
            outputs=outputs,
            half="attend",
            bias=shape.qkv_bias,
            input="qkv",
        )
    yield Linear(
        name="out",
        path="blocks.*.attention.out",
        indices=(range(shape.layers),),
        inputs=shape.query_width,
        outputs=shape.width,
        half="feed",
    )


def _dense(shape: TransformerConfig) -> Iterator[Linear]:
    """Feed-forward layers of the dense blocks."""
    sparse = () if shape.experts is None else shape.experts.layers
    blocks = tuple(number for number in range(shape.layers) if number not in sparse)
    if blocks:
        yield from _gated("", "blocks.*.", blocks, shape.width, shape.ffn)


def _experts(shape: TransformerConfig) -> Iterator[Linear]:
    """Routers, experts and shared experts. Published adapters leave routers and routed experts alone."""
    experts = shape.experts
    if experts is None or not experts.layers:
        return
    yield Linear(
        name="router",
        path="blocks.*.experts.router",
        indices=(experts.layers,),
        inputs=shape.width,
        outputs=experts.count,
        half="feed",
        adaptable=False,
        exact=True,
    )
    for linear in _gated("expert_", "blocks.*.experts.", experts.layers, shape.width, experts.width):
        yield replace(linear, stacked=experts.count, active=experts.active, adaptable=False, input="")
    if experts.shared is not None:
        yield from _gated("shared_", "blocks.*.shared.", experts.layers, shape.width, experts.shared)


def _gated(prefix: str, path: str, blocks: tuple[int, ...], width: int, inner: int) -> Iterator[Linear]:
    """The three matrices of a gated feed-forward layer."""
    for name, inputs, outputs, shared in (
        ("gate", width, inner, "gate_up"),
        ("up", width, inner, "gate_up"),
        ("down", inner, width, ""),
    ):
        yield Linear(
            name=prefix + name,
            path=path + name,
            indices=(blocks,),
            inputs=inputs,
            outputs=outputs,
            half="feed",
            input=shared,
        )
