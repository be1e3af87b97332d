"""The native transformer: pre-norm, rotary positions, gated feed-forward, full or block-causal attention.

One implementation for all families, from half a million parameters up to LLaDA2 and SDAR: grouped-query
heads, biases, norms of queries and keys, tied weights and mixtures of experts are settings of its shape.

Letters: B batch, L length, W positions computed, N positions requested, D model width, M width of attention.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dtm.models.block import RESIDUAL, Block, rotary
from dtm.models.cache import Kept, KeyValues
from dtm.models.denoiser import Denoiser, fused, predictors
from dtm.models.experts import exclude_from_compilation
from dtm.models.linears import Linear
from dtm.models.recording import Recording
from dtm.models.shape import TransformerConfig
from dtm.models.visibility import (
    Origin,
    Visible,
    block_causal,
    doubled,
    doubled_predictors,
    first_tokens,
)

COMPILATIONS = 64
"""Limit of recompilations of one function by torch.compile; torch's default is 8."""


class Transformer(Denoiser):
    """A stack of blocks between a token embedding and a head."""

    recompute: int = 0
    """Number of blocks, from the first, that are recomputed in the backward pass (activation checkpointing):
    a third more arithmetic for a fraction of the memory (see `dtm.capacity.memory`)."""
    adds_in_place: bool = False
    """Whether products are added to the residual stream in place where possible, which saves memory traffic.
    Set by `merging`: merged models need no gradients, and differ by rounding anyway."""
    recording: Recording | None = None
    """CUDA graph of the pass over batches of one shape, without the last half block; see `record`."""

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.vocab_size, self.mask_id, self.eos_id = config.vocab_size, config.mask_id, config.eos_id
        self.shift, self.family, self.attention_block = config.shift, config.family, config.attention_block
        self.block_origin = config.block_origin
        self.embedding = nn.Embedding(config.rows, config.width)
        self.blocks = nn.ModuleList(Block(config, number) for number in range(config.layers))
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
        that begin there: their keys and values are replaced, and those of other positions are read from it.
        ``at`` requests the states of some positions only, as indices into the flattened tokens.
        """
        if self.recording is not None and attention is None and cache is None and self.recording.fits(tokens):
            x, mixed = self.recording(tokens)
        else:
            x, mixed = self._trunk(tokens, attention, cache, start)
        return self._finish(x, mixed, at)

    def hidden_at(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None, at: Int[Tensor, " N"]
    ) -> Float[Tensor, "N D"]:
        """Final hidden states at flat positions; the last half block runs at these only."""
        return self.hidden(tokens, attention, at=at)

    def hidden_doubled(
        self,
        tokens: Int[Tensor, "B L"],
        clean: Int[Tensor, "B L"],
        attention: Bool[Tensor, "B L"] | None,
        at: Int[Tensor, " N"],
    ) -> Float[Tensor, "N D"]:
        """Final hidden states that predict flat positions of x_t, each given the clean blocks before its own.

        One pass over rows of 2 L positions, x_t and then x_1 (see `visibility.doubled`).
        """
        block, length = self.attention_block, tokens.shape[1]
        if block is None:
            return super().hidden_doubled(tokens, clean, attention, at)
        rows = predictors(at, attention, tokens.shape, self.shift)
        x, mixed = self._trunk(torch.cat([tokens, clean], dim=1), attention, halves=2)
        return self._finish(x, mixed, doubled_predictors(at, rows, length, block, self._origin(attention)))

    def fill(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None, cache: KeyValues
    ) -> None:
        """Write the keys and values of whole rows into the cache, and return no states."""
        self._trunk(tokens, attention, cache)

    def _trunk(
        self,
        tokens: Int[Tensor, "B W"],
        attention: Bool[Tensor, "B L"] | None = None,
        cache: KeyValues | None = None,
        start: Int[Tensor, " B"] | None = None,
        halves: int = 1,
    ) -> tuple[Float[Tensor, "B W D"], Float[Tensor, "B W M"]]:
        """Run all blocks but the last half: the input of the last block, and the result of its attention.

        With two ``halves`` the rows are those of the doubled pass.
        """
        length = tokens.shape[1] // halves if cache is None else cache.length
        rotation = rotary(length, self.config.rotated, self.config.rope_base, tokens.device)
        where = None
        if start is not None:
            where = start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
            rotation = (rotation[0][where], rotation[1][where])
        elif halves == 2:
            rotation = (torch.cat([rotation[0]] * 2), torch.cat([rotation[1]] * 2))
        mask = self._visible(attention, length, where, halves, tokens.device)
        # Not local functions: the tests' type checks would wrap new ones in every pass.
        attended, through = (partial(part, rotation, mask) for part in (self._attend, self._through))
        kept: list[Kept | None] = [None] * len(self.blocks)
        if cache is not None:
            kept = [(*layer, cache.rows, where) for layer in cache.layers]
        x, last = self.embedding(tokens), len(self.blocks) - 1
        for number in range(last):
            x = self._run(number, through, x, kept[number])
        return x, self._run(last, attended, x, kept[last])

    def _finish(
        self, x: Float[Tensor, "B W D"], mixed: Float[Tensor, "B W M"], at: Int[Tensor, " N"] | None
    ) -> Float[Tensor, "B W D"] | Float[Tensor, "N D"]:
        """Run the last half block and the norm, at all positions or at some flat ones."""
        if at is not None:
            x, mixed = (every.flatten(0, 1).index_select(0, at) for every in (x, mixed))
        last = len(self.blocks) - 1
        states: Tensor = self.norm(self._run(last, self._feed, x, mixed))
        return states

    def _visible(
        self,
        attention: Bool[Tensor, "B L"] | None,
        length: int,
        where: Int[Tensor, "B W"] | None,
        halves: int,
        device: torch.device,
    ) -> Visible:
        """Return which keys the positions of a pass attend to; all blocks share it."""
        block = self.attention_block
        if block is None:
            return None if attention is None else attention[:, None, None, :]
        origin = self._origin(attention)
        if halves == 2:
            return doubled(attention, length, block, device, origin)
        if block == 1 and attention is None and where is None:
            return "causal"
        whole = torch.arange(length, device=device)[None]
        return block_causal(attention, whole if where is None else where, length, block, origin)

    def _origin(self, attention: Bool[Tensor, "B L"] | None) -> Origin:
        """Return the column from which the blocks of each row are counted."""
        return first_tokens(attention) if self.block_origin == "token" else 0

    def _run(self, number: int, part: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """Run a part of a block, with activation checkpointing if the block is one to recompute."""
        block = self.blocks[number]
        if number < self.recompute and torch.is_grad_enabled():
            return checkpoint(block, part, *inputs, use_reentrant=False)
        return block(part, *inputs)

    def new_cache(self, rows: int, length: int) -> KeyValues:
        """Allocate a cache of keys and values for ``rows`` rows, in the precision of the passes."""
        weight = self.embedding.weight
        kind = weight.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        heads, head_width = self.config.kv_heads or self.config.heads, self.config.head_size

        def empty() -> Tensor:
            return torch.zeros(rows, length, heads, head_width, dtype=dtype, device=weight.device)

        return KeyValues(tuple((empty(), empty()) for _ in self.blocks))

    def compile_blocks(self) -> None:
        """Compile the halves of the blocks with torch.compile from now on.

        Each kind of pass is compiled separately: training, rollouts, passes over windows, with and without
        adapters and padding. The second half is compiled once more for the rows of the last block.
        """
        exclude_from_compilation()
        torch._dynamo.config.recompile_limit = COMPILATIONS
        self.compiled = True

    def _attend(
        self, rotation: tuple[Tensor, Tensor], mask: Visible, block: Block, x: Tensor, kept: Kept | None
    ) -> Tensor:
        """Run the first half of a block."""
        return self._prepared(Block.attend)(block, x, rotation, mask, kept)

    def _through(
        self, rotation: tuple[Tensor, Tensor], mask: Visible, block: Block, x: Tensor, kept: Kept | None
    ) -> Tensor:
        """Run a whole block."""
        return self._feed(block, x, self._attend(rotation, mask, block, x, kept))

    def _feed(self, block: Block, x: Tensor, mixed: Tensor) -> Tensor:
        """Run the second half of a block."""
        if self.adds_in_place and block.can_add_in_place(x, mixed):
            return block.feed_in_place(x, mixed, self._prepared(Block.widened))
        return self._prepared(Block.feed)(block, x, mixed)

    def _prepared(self, half: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return fused(half) if self.compiled else half

    def record(self, shape: torch.Size) -> None:
        """Record a CUDA graph of the pass over batches of this shape, and replay it from now on.

        The graph uses the current precision. The last half block is not recorded, because its positions
        differ from pass to pass. The graph keeps the memory of one pass, so this is for small models.
        """
        self.recording = None
        last: Any = self.blocks[-1]
        weights = nn.ModuleList([self.embedding, *self.blocks[:-1], *last.attend_modules()])
        self.recording = Recording(self._trunk, weights, shape)

    def linears(self) -> tuple[Linear, ...]:
        """Linear layers of the blocks, as the configuration declares them."""
        return self.config.linears()

    def flops(self, computed: int, attended: int, scored: int) -> int:
        """Floating-point operations of a forward pass; see `TransformerConfig.flops`."""
        return int(self.config.flops(computed, attended, scored))

    def head(self, rows: Float[Tensor, "N D"]) -> Float[Tensor, "N W"]:
        """Logits of chosen hidden states."""
        return F.linear(rows, self.embedding.weight if self.unembedding is None else self.unembedding.weight)

    @torch.no_grad()
    def logits(
        self,
        input_ids: Int[Tensor, "B L"],
        attention_mask: Bool[Tensor, "B L"] | Int[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L W"]:
        """Logits at every position, for inspection, not for training.

        Neither the shift nor the exclusion of the mask token is applied, so they equal those of the model's
        own reference code.
        """
        attention = None if attention_mask is None else attention_mask.bool()
        states = self.hidden(input_ids, attention)
        return self.head(states.flatten(0, 1)).view(*input_ids.shape, -1)

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Draw normal weights of deviation 0.02, smaller in layers that write into the residual stream."""
        small = 0.02 / (2 * self.config.layers) ** 0.5
        residual = tuple(f"{name}.weight" for name in RESIDUAL)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                deviation = small if name.endswith(residual) else 0.02
                parameter.normal_(0.0, deviation, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
