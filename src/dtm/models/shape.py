"""The shape of a native transformer, from half a million parameters to those of LLaDA and Dream."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from dtm.errors import require
from dtm.models.linears import Linear, position_weights

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
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    """Biases on the query, key and value projections (Dream has them, LLaDA does not)."""
    qk_norm: bool = False
    """RMSNorm over each head of queries and keys, after the projection and before the rotation (Qwen3)."""
    tied: bool = False
    """Use the token embedding as the output head."""
    embedding_size: int | None = None
    """Rows of the embedding and the head, where they exceed the vocabulary; None: as many as tokens."""
    shift: int = 0
    """Offset of predictions: the state at position i predicts token i + shift (0 LLaDA, 1 Dream)."""
    attention_block: int | None = None
    """B of block-causal attention: a position attends to its own block and to earlier ones; 1 is causal.
    Blocks are columns of a row, j // B. None: full attention."""
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
    width, queries, keys, ffn = shape.width, shape.query_width, shape.kv_width, shape.ffn
    blocks, bias = (range(shape.layers),), shape.qkv_bias

    def attention(name: str, outputs: int) -> Linear:
        path = f"blocks.*.attention.{name}"
        return Linear(
            name=name, path=path, indices=blocks, inputs=width, outputs=outputs, half="attend", bias=bias,
            input="qkv",
        )  # fmt: skip

    def feed(name: str, path: str, inputs: int, outputs: int, shared: str = "") -> Linear:
        return Linear(
            name=name, path=path, indices=blocks, inputs=inputs, outputs=outputs, half="feed", input=shared
        )

    return (
        attention("q", queries),
        attention("k", keys),
        attention("v", keys),
        feed("out", "blocks.*.attention.out", queries, width),
        feed("gate", "blocks.*.gate", width, ffn, "gate_up"),
        feed("up", "blocks.*.up", width, ffn, "gate_up"),
        feed("down", "blocks.*.down", ffn, width),
    )
