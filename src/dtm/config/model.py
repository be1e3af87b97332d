"""The denoiser: its base π_0, how that is pretrained, and the adapters over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dtm.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The denoiser: where its weights come from, or the shape to train from scratch."""

    base: str | None = None
    """Folder or packaged name of the pretrained base π_0; none: the recipe's latest `dtm pretrain`."""
    mask_token: str | None = None
    """Mask token of the base, by id or text, where its files do not state it; none: as stored."""
    attention: Literal["stored", "full", "block"] = "stored"
    """Attention of the base, where its files do not state it: full, or causal between blocks of model.block
    tokens; stored: as its files say, else full."""
    block: int | None = None
    """Tokens of a block of block attention; none: as stored."""
    width: int = 96
    """Model width."""
    layers: int = 4
    """Transformer blocks."""
    heads: int = 4
    """Attention heads."""
    ffn: int = 256
    """Width of the gated feed-forward layers."""
    nf4: bool = False
    """Keep the base's projections in four bits; needs adapters, and bitsandbytes."""
    recompute: int | Literal["auto", "all", "none"] = "none"
    """Blocks recomputed in the backward pass, by activation checkpointing. A third more time, less memory;
    auto: as few as fit the memory that is free."""

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "ffn"):
            value = getattr(self, name)
            require(value >= 1, f"model.{name} must be at least 1, got {value}")
        require(
            (self.attention == "block") == (self.block is not None),
            "model.attention block and model.block belong together: --model.attention block --model.block B",
        )
        require(self.block is None or self.block >= 1, f"model.block must be at least 1, got {self.block}")
        require(self.mask_token != "", "model.mask-token is empty: give the id or the text of a token")
        require(
            isinstance(self.recompute, str) or self.recompute >= 0,
            f"model.recompute is auto, all, none or a number of blocks, got {self.recompute}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterConfig:
    """LoRA: train small adapters over a frozen base instead of all weights."""

    rank: int | None = None
    """r; none: train all weights."""
    alpha: float = 64.0
    """α; the update is scaled by α / r."""
    dropout: float = 0.0
    """Dropout on the adapters' input, in training steps alone."""
    targets: str = "all"
    """Projections by name with commas between, or all seven, or published: the four of public code."""
    merge: bool = False
    """Run π_a, in rollouts, evaluations and updates, with its adapter added into copies of the weights: fewer
    products, memory for the copies all the time, and a sum rounded to the precision of the base."""

    def __post_init__(self) -> None:
        require(self.rank is None or self.rank >= 1, f"adapter.rank must be at least 1, got {self.rank}")
        require(self.alpha > 0, f"adapter.alpha must be positive, got {self.alpha:g}")
        require(0 <= self.dropout < 1, f"adapter.dropout must lie in [0, 1), got {self.dropout:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainConfig:
    """Training the base π_0 on the task's own examples with the evidence bound (`dtm pretrain`)."""

    steps: int = 4000
    """Optimiser steps."""
    batch: int = 256
    """Sequences in a step."""
    micro_batch: int | None = None
    """Sequences in one forward pass; changes memory, never the gradient. None: as many as fit."""
    block: int | Literal["decoding", "any-order"] = "any-order"
    """Block size of the masks; decoding: the decoder's."""
    settle: float = 0.0
    """Share of last steps with masks in the decoder's blocks, whatever block says. Any-order masks teach a
    base to plan; these teach the states that decoding in blocks visits."""
    after_end: bool = True
    """Train also on blocks after a sequence's end, in these last steps."""
    lr: float = 2e-3
    """Peak learning rate; warms up over the first 2 % of the steps, then falls as a cosine."""
    hold: float = 0.0
    """Share of all steps, right after the warm-up, at the peak learning rate."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    held_out: int = 1024
    """Held-out sequences on which the bound is reported."""

    def __post_init__(self) -> None:
        require(self.steps >= 1, f"pretrain.steps must be at least 1, got {self.steps}")
        require(0 <= self.settle <= 1, f"pretrain.settle must lie in [0, 1], got {self.settle:g}")
        require(self.lr > 0, f"pretrain.lr must be positive, got {self.lr:g}")
        require(0 <= self.hold <= 0.9, f"pretrain.hold is a share in [0, 0.9], got {self.hold:g}")
        require(
            self.weight_decay >= 0, f"pretrain.weight-decay must not be negative, got {self.weight_decay:g}"
        )
        require(self.batch >= 1, f"pretrain.batch must be at least 1, got {self.batch}")
        require(
            self.micro_batch is None or self.micro_batch >= 1,
            f"pretrain.micro-batch must be at least 1, got {self.micro_batch}",
        )
        require(self.held_out >= 1, f"pretrain.held-out must be at least 1, got {self.held_out}")
