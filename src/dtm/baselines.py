"""The hyper-parameters of the baselines: one frozen record a method, every field with its symbol.

They stand apart from the objectives so that configurations and `--help` need no torch. The numbers are those
of the published runs; docs/baselines.md says where code and paper differ and what ours does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from dtm.errors import require

Preset = Literal["fixed", "published"]
AdvantageName = Literal["mean", "z-score", "loo"]


Rule = tuple[Callable[[Any], bool], str]
"""What a value must satisfy, and how that is said."""
AT_LEAST_ONE: Rule = (lambda value: value >= 1, "be at least 1")
POSITIVE: Rule = (lambda value: value > 0, "be positive")
NOT_NEGATIVE: Rule = (lambda value: value >= 0, "not be negative")
RULES: dict[str, Rule] = {
    **dict.fromkeys(("updates", "draws", "nodes", "merged"), AT_LEAST_ONE),
    **dict.fromkeys(("psi", "upper_beta"), POSITIVE),
    **dict.fromkeys(("beta", "sft"), NOT_NEGATIVE),
    "epsilon": (lambda value: 0 < value < 1, "lie in (0, 1)"),
    "mix": (lambda value: 0 <= value <= 1, "lie in [0, 1]"),
    "prompt_noise": (lambda value: 0 <= value < 1, "lie in [0, 1)"),
}
"""By the name of a field: it means the same in every method."""


def _check(method: str, settings: Any, **stricter: Rule) -> None:
    """Refuse a value under its own name."""
    for name, (holds, rule) in {**RULES, **stricter}.items():
        value = getattr(settings, name, None)
        flag = f"objective.{method}.{name.replace('_', '-')}"
        require(value is None or holds(value), f"{flag} must {rule}, got {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffuGRPOConfig:
    """diffu-GRPO (d1): token ratios of a fully masked completion, clipped, with KL to π_0."""

    updates: int = 12
    """μ, updates on one set of rollouts; 8 for Countdown and Sudoku."""
    epsilon: float = 0.5
    """ε, how far a ratio may leave 1 and still be rewarded for it."""
    beta: float = 0.04
    """β, weight of the KL to π_0; 0: no KL, and no π_0 to keep."""
    prompt_noise: float = 0.15
    """Chance that a prompt token is hidden."""
    advantage: AdvantageName = "mean"
    """A: reward less the group's mean, its z-score, or less the mean of the others."""

    def __post_init__(self) -> None:
        _check("diffu-grpo", self)


@dataclass(frozen=True, kw_only=True, slots=True)
class WD1Config:
    """wd1: likelihood weighted by softmax(A) − softmax(−A) of the group; no ratio, no old policy."""

    preset: Preset = "fixed"
    """published: the loss is not divided by the length, so that the gradient's limit sets the step."""
    updates: int = 12
    """μ, updates on one set of rollouts; 8 for Sudoku."""
    psi: float = 1.0
    """ψ = 1/(λ + β), sharpness of the weights e^{±ψA}."""
    prompt_noise: float = 0.15
    """Chance that a prompt token is hidden."""
    negatives: bool = True
    """Push completions below the mean down; false keeps the positive weights alone."""
    over: Literal["group", "buffer"] = "group"
    """What the softmax runs over: the completions of a prompt, or all."""

    def __post_init__(self) -> None:
        _check("wd1", self)


@dataclass(frozen=True, kw_only=True, slots=True)
class UniGRPOConfig:
    """UniGRPO (MMaDA): token ratios at masked positions, more of them masked with every update."""

    updates: int = 4
    """μ, updates on one set of rollouts, over which the masks fill up."""
    epsilon: float = 0.5
    """ε, how far a ratio may leave 1; not published, d1's."""
    beta: float = 0.04
    """β, weight of the KL to π_0; not published, d1's."""
    advantage: AdvantageName = "z-score"
    """A: as published the group's z-score."""

    def __post_init__(self) -> None:
        _check("unigrpo", self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SPGConfig:
    """SPG: raise a lower estimate of the likelihood of good completions, lower an upper one of bad ones."""

    preset: Preset = "fixed"
    """published: blocks are chosen as in the code, early ones too often."""
    updates: int = 4
    """μ, updates on one set of rollouts, without ratios."""
    draws: int = 2
    """m, masks of each completion."""
    negative: Literal["mix", "eubo", "elbo", "zero"] = "mix"
    """The estimate where A < 0; zero: such completions are left out."""
    upper_beta: float = 1.5
    """β_u of the upper estimate; published: 1 (Sudoku) to 2 (Countdown with eubo)."""
    mix: float = 0.5
    """ω, the share of the upper estimate in mix."""
    masks: Literal["block", "random", "all"] = "block"
    """A partly masked block of the decoder's size, a uniform number of positions, or everything."""
    scored: Literal["masked", "active"] = "masked"
    """With blocks: all masked positions, as published, or those of the chosen block, which gives a bound."""
    prompt_noise: float = 0.15
    """Chance that a token of the prompt or of an earlier block is hidden."""
    advantage: AdvantageName = "mean"
    """A: reward less the group's mean, its z-score, or less the mean of the others."""

    def __post_init__(self) -> None:
        _check("spg", self)


@dataclass(frozen=True, kw_only=True, slots=True)
class VRPOConfig:
    """VRPO (LLaDA 1.5): DPO on evidence bounds, here on the best and the worst completion of a prompt."""

    updates: int = 4
    """μ, updates on one set of rollouts; the published run had fixed pairs."""
    draws: int = 8
    """n_t, masks of each completion, the same for π_θ and π_0."""
    beta: float = 0.2
    """β, sharpness of the preference."""
    sft: float = 0.05
    """Weight of the evidence bound of the better completion, in nats per token."""
    per_token: bool = False
    """Divide each bound by the completion's length: at 256 tokens the sum saturates the sigmoid."""

    def __post_init__(self) -> None:
        _check("vrpo", self, beta=POSITIVE)


@dataclass(frozen=True, kw_only=True, slots=True)
class GDPOConfig:
    """GDPO: sequence ratios of evidence bounds by quadrature, clipped."""

    preset: Preset = "fixed"
    """published: what follows the end is scored too, and nominal nodes stand for the masked share."""
    updates: int = 12
    """μ, updates on one set of rollouts."""
    nodes: int = 3
    """N, nodes of the quadrature: masks of each completion."""
    epsilon: float = 0.5
    """ε, how far a ratio may leave 1."""
    beta: float = 0.0
    """β, weight of the KL to π_0, of bounds per token; 0: none."""
    ratio: Literal["per-token", "sequence"] = "per-token"
    """exp of the difference of bounds per token (the code), or of the whole bounds, the term then divided
    by the length (the paper)."""
    advantage: AdvantageName = "mean"
    """A: reward less the group's mean, its z-score, or less the mean of the others."""

    def __post_init__(self) -> None:
        _check("gdpo", self)


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRLConfig:
    """TraceRL: token ratios at the decoder's own states, with KL to π_a."""

    preset: Preset = "fixed"
    """published: the KL is summed over tokens, not averaged."""
    updates: int = 1
    """μ, updates on one set of rollouts."""
    merged: int = 8
    """Decoding steps in a segment; each segment is a row."""
    epsilon: float = 0.2
    """ε, how far a ratio may leave 1."""
    beta: float = 0.01
    """β, weight of the KL to π_a, which drew the rollouts."""
    advantage: AdvantageName = "z-score"
    """A: as published the group's z-score."""

    def __post_init__(self) -> None:
        _check("trace-rl", self)


BaselineConfig = (
    DiffuGRPOConfig | WD1Config | UniGRPOConfig | SPGConfig | VRPOConfig | GDPOConfig | TraceRLConfig
)
