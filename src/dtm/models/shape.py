"""The shape of a native transformer, from half a million parameters to those of LLaDA and Dream."""

from __future__ import annotations

from dataclasses import dataclass

from dtm.errors import require


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
    ffn: int = 256
    """Width of the gated feed-forward layer."""
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    """Biases on the query, key and value projections (Dream has them, LLaDA does not)."""
    tied: bool = False
    """Use the token embedding as the output head."""
    embedding_size: int | None = None
    """Rows of the embedding and the head, where they exceed the vocabulary; None: as many as tokens."""
    shift: int = 0
    """How many positions before a token the state that predicts it lies: 0 LLaDA, 1 Dream."""
    family: str = "native"
    """Whose module names adapters and exports use: native, llada or dream."""

    @property
    def rows(self) -> int:
        """Rows of the embedding and the head."""
        return self.embedding_size or self.vocab_size

    def __post_init__(self) -> None:
        kv_heads = self.kv_heads or self.heads
        require(
            self.width % self.heads == 0,
            f"model.width {self.width} must be a multiple of model.heads {self.heads}",
        )
        require(
            (self.width // self.heads) % 2 == 0,
            f"rotary positions need an even head width, got {self.width // self.heads}",
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
