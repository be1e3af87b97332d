"""ESPO (arXiv 2512.03759): sequence ratios of evidence bounds under coupled masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float, Int
from torch import Tensor

from dtm.config import DecodingConfig, IteratingConfig
from dtm.config.method import Preset
from dtm.config.rules import AT_LEAST_ONE, NOT_NEGATIVE, SHARE_BELOW_1, check_fields
from dtm.masking import Coupled, Masking, Planned
from dtm.methods.advantages import ADVANTAGES, AdvantageName
from dtm.methods.base import Changes, Method
from dtm.methods.ratios import clipped, is_clipped, k2
from dtm.methods.surrogates import bounds, by_sequence
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class ESPOConfig(IteratingConfig):
    """ESPO: sequence ratios of evidence bounds per token under coupled masks, clipped, with k2 to π_0."""

    name: str = "espo"
    preset: Preset = "fixed"
    """published: what follows the end is scored too, and lengths are those of the whole completion."""
    updates: int = 8
    """μ, the number of updates per set of rollouts."""
    draws: int = 2
    """n_mc, pairs of complementary masks per completion."""
    epsilon: float = 0.2
    """ε, clip range of a ratio around 1; published for Countdown: 0."""
    beta: float = 1e-3
    """β, weight of the k2 divergence from π_0; 0: none. Published: 1e-2 for Sudoku, 3e-3 for Countdown."""
    advantage: AdvantageName = "loo"
    """A: reward less the mean of the others, as published, the group's mean, or its z-score."""

    def __post_init__(self) -> None:
        check_fields(
            "method",
            self,
            updates=AT_LEAST_ONE,
            draws=AT_LEAST_ONE,
            epsilon=SHARE_BELOW_1,
            beta=NOT_NEGATIVE,
        )


@final
class ESPO(Method):
    r"""(1/N) Σ_i [ −min(ρ_i A_i, clip(ρ_i, 1−ε, 1+ε) A_i) + β ½ (S_θ − S_0)² / n_i ].

    ρ_i = e^{(S_θ − S_a)/n_i}; S is the evidence bound from n_mc pairs of coupled masks (`Coupled`), the same
    for all policies.
    """

    Config = ESPOConfig
    config: ESPOConfig
    knobs: ClassVar[tuple[Changes, ...]] = ({"updates": 4}, {"beta": 1e-2})

    @property
    def reads_base(self) -> bool:
        """Whether the loss needs π_0: for the divergence, if β > 0."""
        return self.config.beta > 0

    @property
    def rows_per_rollout(self) -> int:
        """Rows per rollout: two masks per pair."""
        return 2 * self.config.draws

    def scored_per_row(self, completion: int, decoding: DecodingConfig) -> int:
        """Scored positions per row: half of the completion, since a pair scores each position once."""
        return (completion + 1) // 2

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i."""
        return ADVANTAGES[self.config.advantage](reward, group)

    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return pairs of complementary masks."""
        return Planned(Coupled(self.config.draws), None if self.config.preset == "published" else end_id)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return the loss, summed over sequences, divided by those of the batch."""
        config, share = self.config, states.draws / states.batch_rows
        length = by_sequence(states.row_length, states)[:, 0]
        bound = bounds(policy.log_pi(states), states)
        log_ratio = (bound - bounds(policy.log_pi_a(states), states)) / length
        value = -share * clipped(log_ratio, weights.credit, config.epsilon).sum()
        metrics = {"clipped": share * is_clipped(log_ratio, weights.credit, config.epsilon).sum()}
        if config.beta > 0:
            divergence = share * (k2(bound - bounds(policy.log_pi_0(states), states)) / length).sum()
            value, metrics["kl"] = value + config.beta * divergence, divergence.detach()
        return Loss(value, metrics)
