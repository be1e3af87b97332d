"""Settings of the denoiser, of the pretraining of its base π_0, and of adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dtm.config.rules import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SHARE_BELOW_1,
    check_fields,
)
from dtm.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The denoiser: the source of its weights, or the shape of a model to train from scratch."""

    base: str | None = None
    """Folder or packaged name of the pretrained base π_0; none: the recipe's latest `dtm pretrain`."""
    mask_token: str | None = None
    """Mask token of the base, by id or text, if its files do not name it; none: the stored one."""
    attention: Literal["stored", "full", "block"] = "stored"
    """Attention of the base, if its files do not name it: full, or causal between blocks of model.block
    tokens; stored: as in its files, and an error if neither they nor the family state it."""
    block: int | None = None
    """Tokens per block of block attention; none: as stored."""
    width: int = 96
    """Width of the model (hidden size)."""
    layers: int = 4
    """Number of transformer blocks."""
    heads: int = 4
    """Number of attention heads."""
    ffn: int = 256
    """Width of the gated feed-forward layers."""
    nf4: bool = False
    """Keep the base's projections in four bits (NF4); requires adapters and bitsandbytes."""
    recompute: int | Literal["auto", "all", "none"] = "none"
    """Blocks recomputed in the backward pass (activation checkpointing): a number, none, or all, which takes
    a third more time and the least memory; auto: the fewest that fit the free memory."""

    def __post_init__(self) -> None:
        sizes = dict.fromkeys(("width", "layers", "heads", "ffn", "block"), AT_LEAST_ONE)
        check_fields("model", self, **sizes)
        require(
            (self.attention == "block") == (self.block is not None),
            "model.attention block and model.block belong together: --model.attention block --model.block B",
        )
        require(self.mask_token != "", "model.mask-token is empty: give the id or the text of a token")
        require(
            isinstance(self.recompute, str) or self.recompute >= 0,
            f"model.recompute is auto, all, none or a number of blocks, got {self.recompute}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterConfig:
    """LoRA: train small adapters over a frozen base instead of all weights."""

    rank: int | None = None
    """r, the rank of the adapters; none: train all weights."""
    alpha: float = 64.0
    """α, the scale of the adapters: their output is multiplied by α / r."""
    dropout: float = 0.0
    """Dropout rate on the adapters' input, only in training steps."""
    targets: str = "all"
    """Adapted projections: names separated by commas, all (seven), or published (the four of public code)."""
    merge: bool = False
    """Merge π_a's adapter into copies of the weights, for rollouts, evaluations and updates. Fewer products,
    but constant memory for the copies, and merged weights are rounded to the precision of the base."""

    def __post_init__(self) -> None:
        check_fields("adapter", self, rank=AT_LEAST_ONE, alpha=POSITIVE, dropout=SHARE_BELOW_1)


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainConfig:
    """Pretraining of the base π_0 on the task's own examples with the evidence bound (`dtm pretrain`)."""

    steps: int = 4000
    """Number of optimiser steps."""
    batch: int = 256
    """Sequences per step."""
    micro_batch: int | None = None
    """Sequences per forward pass; changes memory, never the gradient. None: as many as fit."""
    block: int | Literal["decoding", "any-order"] = "any-order"
    """Block size of the masks, in tokens; decoding: that of the decoder."""
    settle: float = 0.0
    """Last share of the steps, whose masks follow the decoder's blocks for any value of block. Any-order
    masks teach a base to plan; these teach the states that decoding in blocks visits."""
    after_end: bool = True
    """In these last steps, also train on blocks after the end of a sequence."""
    mask_skew: float = 1.0
    """Skew of the masks. 1: every number of masks is equally likely. 2: the masked share is the larger of two
    uniform draws, and so on: more training states have most of the answer masked."""
    lr: float = 2e-3
    """Peak learning rate; it rises over the first 2 % of the steps, then falls as a cosine."""
    hold: float = 0.0
    """Share of the steps at the peak learning rate, after the warm-up."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    held_out: int = 1024
    """Number of held-out sequences on which the bound is measured."""

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("steps", "batch", "micro_batch", "held_out", "mask_skew"), AT_LEAST_ONE)
        check_fields("pretrain", self, **counts, settle=SHARE, lr=POSITIVE, weight_decay=NOT_NEGATIVE)
        require(0 <= self.hold <= 0.9, f"pretrain.hold must lie in [0, 0.9], got {self.hold:g}")
