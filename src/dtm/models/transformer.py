"""The native bidirectional transformer: pre-norm, rotary positions, gated feed-forward.

One implementation from half a million parameters on a laptop up to the shapes of LLaDA and Dream, which
need grouped-query heads, projection biases and tied weights.

Letters: B batch, L length, W positions computed, H heads, K key-value heads, E head width, D model width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dtm.errors import require
from dtm.models.cache import Kept, KeyValues, replaced
from dtm.models.denoiser import Denoiser
from dtm.models.recording import Recording


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


Rotation = tuple[Float[Tensor, "*rows W E"], Float[Tensor, "*rows W E"]]
"""Cosine and sine of the rotary angles: worked out once, shared by all blocks. Rows that look at different
positions have their own, with a dimension for the heads."""


def rotary(length: int, width: int, base: float, device: torch.device) -> Rotation:
    """The half-split rotary embedding, in float32; each frequency serves two channels."""
    frequency = base ** -(torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Float[Tensor, "B H W E"], rotation: Rotation) -> Float[Tensor, "B H W E"]:
    """Rotate each pair of channels (e, e + E/2) by its angle, in float32."""
    cosine, sine = rotation
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x * cosine + turned * sine).to(x.dtype)


COMPILATIONS = 64
"""Kinds of passes that torch.compile may prepare before it gives up; 8 by default."""


class Attention(nn.Module):
    """Full (not causal) attention; padded keys are never attended to."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads or config.heads
        head_width = config.width // config.heads
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
            projected.view(*x.shape[:2], heads, -1).transpose(1, 2)
            for projected, heads in zip(self._projected(x), counts, strict=True)
        )
        q, k = rotate(q, rotation), rotate(k, rotation)
        if kept is not None:
            k, v = replaced(kept, k, v)
        grouped = self.kv_heads != self.heads
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
        return mixed.transpose(1, 2).flatten(2)

    def _projected(self, x: Float[Tensor, "B W D"]) -> tuple[Tensor, ...]:
        """Queries, keys and values."""
        if self.qkv is None:
            return self.q(x), self.k(x), self.v(x)
        narrow = x.shape[-1] // self.heads * self.kv_heads
        return self.qkv(x).split((x.shape[-1], narrow, narrow), -1)


class Block(nn.Module):
    """x + out(attention(norm(x))), then x + down(silu(gate) · up).

    In two halves: positions meet in the first alone, so of the last block the second is needed only where
    states are asked for.
    """

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
        gate, up = self._branches(self.ffn_norm(x))
        return x + self.down(F.silu(gate) * up)

    def _branches(self, x: Float[Tensor, "*P D"]) -> tuple[Tensor, ...]:
        """The two branches of the feed-forward layer."""
        return (self.gate(x), self.up(x)) if self.gate_up is None else self.gate_up(x).chunk(2, -1)


@functools.cache
def compiled(half: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """One half of a block, fused by torch.compile; all blocks, models and batch sizes share it."""
    return torch.compile(half, dynamic=True)


class Transformer(Denoiser):
    """A stack of blocks between a token embedding and a head."""

    recompute: int = 0
    """Blocks, from the first on, of which the input alone is kept and the rest is worked out again in the
    backward pass: a third more arithmetic for a fraction of the memory (see `dtm.models.memory`)."""
    recording: Recording | None = None
    """Passes over batches of one shape, to be replayed; see `record`."""

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.vocab_size, self.mask_id, self.eos_id = config.vocab_size, config.mask_id, config.eos_id
        self.shift = config.shift
        self.embedding = nn.Embedding(config.rows, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.unembedding = None if config.tied else nn.Linear(config.width, config.rows, bias=False)
        if generator is not None:
            self._initialise(generator)

    def hidden(
        self,
        tokens: Int[Tensor, "B W"],
        attention: Bool[Tensor, "B L"] | None = None,
        cache: KeyValues | None = None,
        start: Int[Tensor, " B"] | None = None,
        at: Int[Tensor, " N"] | None = None,
    ) -> Float[Tensor, "B W D"] | Float[Tensor, "N D"]:
        """Final hidden states; rotary positions are relative, so left padding shifts nothing.

        With a ``cache`` the keys and values are written into it. With ``start`` too, ``tokens`` are windows
        that begin there: their keys and values are replaced, and those of other positions are the cache's.
        ``at`` asks for the states of some positions alone, as indices into the flattened tokens.
        """
        if self.recording is not None and attention is None and cache is None and self.recording.fits(tokens):
            x, mixed = self.recording(tokens)
        else:
            x, mixed = self._trunk(tokens, attention, cache, start)
        if at is not None:
            x, mixed = (every.flatten(0, 1).index_select(0, at) for every in (x, mixed))
        last = len(self.blocks) - 1
        states: Tensor = self.norm(self._run(last, self._half(Block.feed), self.blocks[last], x, mixed))
        return states

    def hidden_at(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None, rows: Int[Tensor, " N"]
    ) -> Float[Tensor, "N D"]:
        """Final hidden states at flat positions; of other positions the last half block is left out."""
        return self.hidden(tokens, attention, at=rows)

    def _trunk(
        self,
        tokens: Int[Tensor, "B W"],
        attention: Bool[Tensor, "B L"] | None = None,
        cache: KeyValues | None = None,
        start: Int[Tensor, " B"] | None = None,
    ) -> tuple[Float[Tensor, "B W D"], Float[Tensor, "B W D"]]:
        """The input of the last block, and what its attention mixes."""
        mask = None if attention is None else attention[:, None, None, :]
        length = tokens.shape[1] if cache is None else cache.length
        head_width = self.config.width // self.config.heads
        rotation = rotary(length, head_width, self.config.rope_base, tokens.device)
        where = None
        if start is not None:
            where = start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
            rotation = (rotation[0][where].unsqueeze(1), rotation[1][where].unsqueeze(1))
        attend, feed = self._half(Block.attend), self._half(Block.feed)

        def half(block: Block, x: Tensor, kept: Kept | None) -> Tensor:
            return attend(block, x, rotation, mask, kept)

        def whole(block: Block, x: Tensor, kept: Kept | None) -> Tensor:
            return feed(block, x, half(block, x, kept))

        kept: list[Kept | None] = [None] * len(self.blocks)
        if cache is not None:
            kept = [(*layer, cache.rows, where) for layer in cache.layers]
        x, last = self.embedding(tokens), len(self.blocks) - 1
        for number in range(last):
            x = self._run(number, whole, self.blocks[number], x, kept[number])
        return x, self._run(last, half, self.blocks[last], x, kept[last])

    def _run(self, number: int, part: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """Part of a block, worked out again in the backward pass if the block is one of those that are."""
        if number < self.recompute and torch.is_grad_enabled():
            return checkpoint(part, *inputs, use_reentrant=False)
        return part(*inputs)

    def new_cache(self, rows: int, length: int) -> KeyValues:
        """Room for the keys and values of so many rows, in the precision that they will come in."""
        weight = self.embedding.weight
        kind = weight.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        heads, head_width = self.config.kv_heads or self.config.heads, self.config.width // self.config.heads

        def room() -> Tensor:
            return torch.zeros(rows, length, heads, head_width, dtype=dtype, device=weight.device)

        return KeyValues(tuple((room(), room()) for _ in self.blocks))

    def compile_blocks(self) -> None:
        """Let torch.compile fuse the halves of the blocks from now on.

        Training, rollouts, passes over windows, with and without adapters and padding: each is compiled once.
        """
        torch._dynamo.config.recompile_limit = COMPILATIONS
        self.compiled = True

    def _half(self, half: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return compiled(half) if self.compiled else half

    def record(self, shape: torch.Size) -> None:
        """Replay passes over batches of this shape from now on, in the present precision; needs CUDA.

        Takes the memory of such a pass for good, so it is for small models.
        """
        self.recording = None
        weights = nn.ModuleList([self.embedding, *self.blocks])
        self.recording = Recording(self._trunk, weights, shape)

    def head(self, rows: Float[Tensor, "N D"]) -> Float[Tensor, "N W"]:
        """Logits of chosen hidden states."""
        return F.linear(rows, self.embedding.weight if self.unembedding is None else self.unembedding.weight)

    @torch.no_grad()
    def logits(
        self,
        input_ids: Int[Tensor, "B L"],
        attention_mask: Bool[Tensor, "B L"] | Int[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L W"]:
        """The head as the checkpoint has it, at every position: for inspection, not for training.

        Neither the shift nor the exclusion of the mask token is applied, so the numbers are those of the
        model's own reference code.
        """
        attention = None if attention_mask is None else attention_mask.bool()
        states = self.hidden(input_ids, attention)
        return self.head(states.flatten(0, 1)).view(*input_ids.shape, -1)

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Normal weights of deviation 0.02; projections into the residual stream are scaled down."""
        residual = 0.02 / (2 * self.config.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deviation = residual if name.endswith(("out.weight", "down.weight")) else 0.02
                parameter.normal_(0.0, deviation, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
