"""Settings of decoding, of its comparison with exact decoding, and of evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dtm.config.rules import AT_LEAST_ONE, NOT_NEGATIVE, SHARE, check_fields


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodingConfig:
    """Decoding of rollouts from π_a, in training and in evaluation."""

    order: str = "uniform"
    """Rule that chooses the next position to reveal. uniform and max-probability are exact at one token per
    step; sampled-confidence is LLaDA's rule and biased."""
    block: int | None = None
    """B, the block size of semi-autoregressive decoding, in tokens; none: any-order decoding."""
    tokens_per_step: int = 1
    """Tokens revealed by one forward pass; 1 is exact."""
    temperature: float = 1.0
    """τ, the sampling temperature; 1 samples the model's own law."""
    certainty: float | None = None
    """Also reveal every position whose most likely token has at least this probability. Saves most
    forward passes; each such token changes the law by at most 1 − certainty in total variation."""
    cache: Literal["none", "block", "prefix"] = "prefix"
    """Cache of keys and values. prefix: cache finished blocks, which is exact for block-causal attention;
    models with full attention decode without a cache. block: the first pass of a block runs over whole
    sequences and caches their keys and values, later passes run over the block only; fewer operations, but an
    approximation (see audit)."""
    refresh: int = 1
    """With the block cache: number of blocks between passes over whole sequences; more is faster and less
    exact."""
    until_end: bool = False
    """Stop a completion after the block with its end token, fill the rest with end tokens, and decode the
    next prompt in its place of the batch."""
    fp8: bool = False
    """Decode with π_a's projections in eight bits (float8_e4m3fn, a scale for each output and each token). On
    GPUs of compute capability 8.9 and newer, products are up to twice as fast. Needs memory for the copies;
    an approximation (see audit). Updates never use it."""
    batch: int = 256
    """Number of sequences decoded together."""
    ahead: bool = False
    """Draw the rollouts of the next refresh in a thread while the student trains; for loops that refresh the
    buffer. The rollouts are the same, since π_a does not change within a phase; needs memory for both."""

    def most_per_step(self, completion: int) -> int:
        """Largest number of tokens that one step reveals; with certainty, a whole block."""
        block = min(self.block or completion, completion)
        return block if self.certainty is not None else min(self.tokens_per_step, block)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditConfig:
    """Audit of decoding: decode again with the same noise, without cache, until-end, certainty and fp8."""

    share: float = 0.02
    """Share of rollouts that is also decoded exactly, to compare; 0: no audit."""
    agreement: float = 0.5
    """Lowest accepted share of equal tokens, up to the end of a completion, within two standard errors. One
    different token changes most tokens after it, so this says little about the law."""
    shift: float | None = None
    """Largest accepted change of the mean reward, in units of the reward, beyond two standard errors; none:
    no limit. Once this limit or that on agreement is exceeded, the run prints it and decodes exactly."""

    def __post_init__(self) -> None:
        check_fields("audit", self, share=SHARE, agreement=SHARE, shift=NOT_NEGATIVE)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Evaluation on held-out prompts, at the start and after each phase."""

    split: Literal["validation", "test"] = "validation"
    """Held-out prompts to measure on: validation to choose settings, test once, at the end."""
    prompts: int = 64
    """Number of held-out prompts, the same at every evaluation."""
    completions: int = 8
    """Completions per prompt; diversity is measured among them."""
    temperature: float | None = None
    """τ, the sampling temperature in evaluations; none: that of the rollouts."""
    every: int = 1
    """Number of phases (or iterations) between evaluations; the last is always measured. With a budget:
    evaluate at the first phase end after each tenth of it."""
    patience: int | None = None
    """Stop after this many evaluations in a row without a higher mean reward; none: never stop early."""

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("prompts", "completions", "every", "patience"), AT_LEAST_ONE)
        check_fields("evaluation", self, **counts, temperature=NOT_NEGATIVE)
