"""The decoder's settings: order of reveals, blocks, tokens per step, and approximations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from dtm.config import DecodingConfig
from dtm.engine.orders import ORDERS, Order, Uniform
from dtm.errors import nearest, require
from dtm.models.denoiser import Denoiser


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """Settings of semi-autoregressive decoding [Algorithm 2]."""

    order: Order = field(default_factory=Uniform)
    """Rule that chooses the next masked position to reveal."""
    block: int | None = None
    """B, the block size of semi-autoregressive decoding; None is one block: any-order."""
    tokens_per_step: int = 1
    """Tokens revealed by one forward pass; 1 is exact, more treats them as independent."""
    temperature: float = 1.0
    """τ of the token draws; 1 samples the model's law, 0 takes the most likely token."""
    certainty: float | None = None
    """If set, also reveal every position whose most likely token has at least this probability. Each such
    token changes the sampled law by at most (1 − certainty) in total variation."""
    cache: Literal["none", "block", "prefix"] = "none"
    """block: the first pass of a block is over whole rows, the others over the block alone, against the
    cached keys and values of all other positions. An approximation; none is exact. prefix: keys and values
    of finished blocks are kept, which is exact where attention is block-causal; other models decode without a
    cache."""
    refresh: int = 1
    """With a cache: number of blocks between passes over whole rows. For the blocks in between, the first
    pass runs over the block and the one before it."""
    until_end: bool = False
    """End a completion after the first block with an end token; the rest becomes end tokens."""
    fp8: bool = False
    """Draw with a model whose linear layers are in FP8 (see `dtm.models.fp8`). An approximation."""

    def __post_init__(self) -> None:
        require(self.block is None or self.block >= 1, f"decoding.block must be at least 1, got {self.block}")
        require(
            self.tokens_per_step >= 1,
            f"decoding.tokens-per-step must be at least 1, got {self.tokens_per_step}",
        )
        require(self.temperature >= 0, f"decoding.temperature must not be negative, got {self.temperature:g}")
        require(self.refresh >= 1, f"decoding.refresh must be at least 1, got {self.refresh}")
        require(
            self.refresh == 1 or self.cache == "block",
            "decoding.refresh needs a cache: add --decoding.cache block",
        )
        require(
            self.certainty is None or 0.5 < self.certainty <= 1,
            f"decoding.certainty is a probability in (0.5, 1], got {self.certainty}",
        )

    @property
    def is_exact(self) -> bool:
        """Whether the sampled law is the model's own ρ."""
        return not self.approximations

    @property
    def approximations(self) -> list[str]:
        """Names of the settings that change the sampled law."""
        named = {
            "the order": not self.order.exact,
            f"{self.tokens_per_step} tokens per step": self.tokens_per_step > 1 and self.block != 1,
            f"temperature {self.temperature:g}": self.temperature != 1,
        }
        return [*(name for name, is_used in named.items() if is_used), *self.shortcuts]

    @property
    def shortcuts(self) -> list[str]:
        """Names of the approximations that save work; an audit compares with `without_shortcuts`."""
        named = {
            f"certainty {self.certainty}": self.certainty not in (None, 1.0),
            "the block cache": self.cache == "block",
            "early ends": self.until_end,
            "projections in eight bits": self.fp8,
        }
        return [name for name, is_used in named.items() if is_used]

    @property
    def without_shortcuts(self) -> Decoder:
        """Return the decoder without early ends, certainty, FP8 and inexact caches."""
        cache = "none" if self.cache == "block" else self.cache
        return replace(self, cache=cache, refresh=1, until_end=False, certainty=None, fp8=False)

    @property
    def chooses_before_drawing(self) -> bool:
        """Whether positions are chosen without the posterior; the head then runs only at these positions."""
        return not self.order.reads_posterior and self.certainty is None

    def require_model(self, model: Denoiser) -> None:
        """Raise an error for a model with other blocks or another precision than the decoder's."""
        self.require_blocks(model.attention_block)
        require(
            model.fp8 == self.fp8,
            f"decoding.fp8 is {self.fp8}, and the model given has fp8 {model.fp8}: take the one that "
            "`dtm.models.merging.for_decoding(model, decoder.fp8)` returns",
        )

    def require_blocks(self, attention_block: int | None) -> None:
        """Raise an error unless the decoder has the blocks of a block-causal model; None: full attention.

        Such a model was trained to write its own blocks left to right. With smaller decoding blocks, later
        positions of a model's block would stay masked, where training had revealed some of them; with larger
        ones, a model's block would start before the previous one is finished.
        """
        if attention_block is None:
            return
        require(
            self.block == attention_block,
            f"this model attends in blocks of {attention_block} (block-causal attention) and is decoded in "
            f"these; decoding.block is {self.block}. Pass --decoding.block {attention_block}.",
        )
        require(
            self.cache != "block",
            "decoding.cache block is for full attention. This model's attention is block-causal, so that the "
            "keys and values of finished blocks are exact: pass --decoding.cache prefix.",
        )


def quotas(positions: int, tokens_per_step: int) -> list[int]:
    """Return how many tokens each step reveals: as even as possible, larger numbers first.

    >>> quotas(7, 2)
    [2, 2, 2, 1]
    >>> quotas(10, 4)
    [4, 3, 3]
    """
    steps = -(-positions // tokens_per_step)
    share, extra = divmod(positions, steps)
    return [share + (step < extra) for step in range(steps)]


def build_decoder(config: DecodingConfig) -> Decoder:
    """Return the decoder that a configuration describes."""
    require(
        config.order in ORDERS, f"decoding.order: no order {config.order!r}. {nearest(config.order, ORDERS)}"
    )
    require(config.batch >= 1, f"decoding.batch must be at least 1, got {config.batch}")
    fields = {name: getattr(config, name) for name in Decoder.__dataclass_fields__ if name != "order"}
    return Decoder(order=ORDERS[config.order](), **fields)
