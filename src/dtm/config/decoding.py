"""How completions are drawn from π_a, compared with exact ones, and measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dtm.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodingConfig:
    """How rollouts are drawn from π_a, in training and in evaluation alike."""

    order: str = "uniform"
    """Which position is revealed next: uniform and max-probability are exact at one token per step,
    sampled-confidence is LLaDA's rule and biased."""
    block: int | None = None
    """B, the block size of semi-autoregressive decoding; none: any-order."""
    tokens_per_step: int = 1
    """Tokens revealed by one forward pass; 1 is exact."""
    temperature: float = 1.0
    """τ of the token draws; 1 samples the model's own law."""
    certainty: float | None = None
    """Also reveal every position whose likeliest token has at least this probability. Saves most
    forward passes; each such token moves the law by at most 1 − certainty in total variation."""
    cache: Literal["none", "block", "prefix"] = "none"
    """block: only the first pass of a block is over whole sequences; the others are over the block, against
    the keys and values that it left. A fraction of the operations, and an approximation: see audit. prefix:
    keys and values of finished blocks are kept, which is exact where attention is block-causal; other models
    decode without a cache."""
    refresh: int = 1
    """With a cache, blocks from one pass over whole sequences to the next: more is faster and less exact."""
    until_end: bool = False
    """Stop a completion after the block with its end token, and give its place in the batch to the next
    prompt; the rest is filled with end tokens."""
    fp8: bool = False
    """Decode with π_a's projections in eight bits (float8_e4m3fn, a scale for each output and each token):
    products at up to twice the rate on GPUs of compute capability 8.9 and newer, memory for the copies, and
    an approximation: see audit. Updates never use them."""
    batch: int = 256
    """Sequences decoded together."""
    ahead: bool = False
    """Draw the rollouts of the next refresh in a thread while the student trains; for loops that refresh. The
    same rollouts, since π_a does not change within a phase; needs memory for both at once."""

    def most_per_step(self, completion: int) -> int:
        """Most tokens that one step reveals; with certainty a whole block."""
        block = min(self.block or completion, completion)
        return block if self.certainty is not None else min(self.tokens_per_step, block)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditConfig:
    """Decoding again, with the same noise, without shortcuts: cache, until-end, certainty and fp8."""

    share: float = 0.02
    """Share of every collection of rollouts that is decoded twice to compare; 0: none."""
    agreement: float = 0.5
    """Least share of tokens, up to the end of a completion, that must be the same, give or take two standard
    errors. A single other token changes most of what follows it, so that this says little about the law."""
    shift: float | None = None
    """Largest change of the mean reward, in units of the reward and beyond twice its standard error; none:
    any. Past this limit or the one on agreement the rest of the run decodes exactly, and prints it."""

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, f"audit.share is a share in [0, 1], got {self.share:g}")
        require(0 <= self.agreement <= 1, f"audit.agreement is a share in [0, 1], got {self.agreement:g}")
        require(self.shift is None or self.shift >= 0, f"audit.shift must not be negative, got {self.shift}")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Measuring on held-out prompts, at the start and after each phase."""

    split: Literal["validation", "test"] = "validation"
    """Which prompts: choose settings by validation, and ask test once, at the end."""
    prompts: int = 64
    """Held-out prompts, the same at every evaluation."""
    completions: int = 8
    """Completions of each; diversity is measured within them."""
    temperature: float | None = None
    """τ of the token draws while measuring; none: that of the rollouts."""
    every: int = 1
    """Phases (or iterations) from one evaluation to the next; the last is always measured. With a budget: at
    the first phase end after each tenth of it."""
    patience: int | None = None
    """Stop when this many evaluations in a row have not raised the mean reward; none: go on to the end."""

    def __post_init__(self) -> None:
        for name in ("prompts", "completions", "every"):
            value = getattr(self, name)
            require(value >= 1, f"evaluation.{name} must be at least 1, got {value}")
        require(
            self.temperature is None or self.temperature >= 0,
            f"evaluation.temperature must not be negative, got {self.temperature}",
        )
        require(
            self.patience is None or self.patience >= 1,
            f"evaluation.patience must be at least 1, got {self.patience}",
        )
