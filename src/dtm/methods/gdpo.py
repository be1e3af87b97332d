"""GDPO (arXiv 2510.08554): sequence ratios of evidence bounds by quadrature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from jaxtyping import Float, Int
from torch import Tensor

from dtm.config import IteratingConfig
from dtm.config.method import Preset
from dtm.config.rules import AT_LEAST_ONE, BETWEEN_0_AND_1, NOT_NEGATIVE, check_fields
from dtm.masking import Masking, Planned, Quadrature
from dtm.methods.advantages import ADVANTAGES, AdvantageName
from dtm.methods.base import Changes, Method
from dtm.methods.ratios import clipped, is_clipped, k3
from dtm.methods.surrogates import bounds, by_sequence
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class GDPOConfig(IteratingConfig):
    """GDPO: sequence ratios of evidence bounds by quadrature, clipped."""

    name: str = "gdpo"
    preset: Preset = "fixed"
    """published: what follows the end is scored too, and nominal nodes stand for the masked share."""
    updates: int = 12
    """μ, the number of updates per set of rollouts."""
    nodes: int = 3
    """N, nodes of the quadrature: masks per completion."""
    epsilon: float = 0.5
    """ε, clip range of a ratio around 1."""
    beta: float = 0.0
    """β, weight of the KL to π_0, of bounds per token; 0: none."""
    ratio: Literal["per-token", "sequence"] = "per-token"
    """exp of the difference of bounds per token (the code), or of the whole bounds, the term then divided
    by the length (the paper)."""
    advantage: AdvantageName = "mean"
    """A: reward less the group's mean, its z-score, or less the mean of the others."""

    def __post_init__(self) -> None:
        check_fields(
            "method",
            self,
            updates=AT_LEAST_ONE,
            nodes=AT_LEAST_ONE,
            epsilon=BETWEEN_0_AND_1,
            beta=NOT_NEGATIVE,
        )


@final
class GDPO(Method):
    r"""(1/N) Σ_i [ −min(ρ_i A_i, clip(ρ_i, 1−ε, 1+ε) A_i) + β (e^d − d − 1) ],  ρ_i = e^{(E_θ − E_a)/n_i}.

    E = Σ_j w_j (1/t_j) Σ_{S_j} log π is the evidence bound at the nodes of a quadrature (`Quadrature`), the
    same masks for all policies, and d = (E_0 − E_θ)/n_i. With ``ratio`` = "sequence", the paper's form,
    ρ_i = e^{E_θ − E_a} and its term is divided by n_i: hundreds of nats in an exponent.
    """

    Config = GDPOConfig
    config: GDPOConfig
    knobs: ClassVar[tuple[Changes, ...]] = ({"updates": 4}, {"epsilon": 0.2})

    @property
    def reads_base(self) -> bool:
        """Whether the loss needs π_0: for the KL, if β > 0."""
        return self.config.beta > 0

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i."""
        return ADVANTAGES[self.config.advantage](reward, group)

    @property
    def rows_per_rollout(self) -> int:
        """N."""
        return self.config.nodes

    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return a mask per node of the quadrature."""
        published = self.config.preset == "published"
        return Planned(Quadrature(self.config.nodes, published), None if published else end_id)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return the loss, summed over sequences, divided by those of the batch."""
        config = self.config
        length = by_sequence(states.row_length, states)[:, 0]
        bound = bounds(policy.log_pi(states), states)
        log_ratio = bound - bounds(policy.log_pi_a(states), states)
        by_token = config.ratio == "per-token"
        inside, outside = (length, 1) if by_token else (1, length)
        share = states.draws / states.batch_rows
        gain = clipped(log_ratio / inside, weights.credit, config.epsilon) / outside
        value = -share * gain.sum()
        cut = is_clipped(log_ratio / inside, weights.credit, config.epsilon)
        metrics = {"clipped": share * cut.sum()}
        if config.beta > 0:
            reference = bounds(policy.log_pi_0(states), states)
            divergence = share * k3((reference - bound) / length).sum()
            value, metrics["kl"] = value + config.beta * divergence, divergence.detach()
        return Loss(value, metrics)
