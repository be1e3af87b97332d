"""GDPO (arXiv 2510.08554): sequence ratios of evidence bounds by quadrature."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from jaxtyping import Float, Int
from torch import Tensor

from dtm.baselines import GDPOConfig
from dtm.methods.advantages import ADVANTAGES
from dtm.methods.baseline import Baseline
from dtm.methods.ratios import clipped, is_clipped, k3
from dtm.methods.surrogates import by_sequence, elbo, token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@final
@dataclass(frozen=True, slots=True)
class GDPO(Baseline):
    r"""(1/N) Σ_i [ −min(ρ_i A_i, clip(ρ_i, 1−ε, 1+ε) A_i) + β (e^d − d − 1) ],  ρ_i = e^{(E_θ − E_a)/n_i}.

    E = Σ_j w_j (1/t_j) Σ_{S_j} log π is the evidence bound at the nodes of a quadrature (`Quadrature`), the
    same masks for all policies, and d = (E_0 − E_θ)/n_i. With ``ratio`` = "sequence", the paper's form,
    ρ_i = e^{E_θ − E_a} and its term is divided by n_i: hundreds of nats in an exponent.
    """

    settings: GDPOConfig = field(default_factory=GDPOConfig)

    @property
    def reads_base(self) -> bool:
        """For the KL."""
        return self.settings.beta > 0

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i."""
        return ADVANTAGES[self.settings.advantage](reward, group)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Summed over sequences, divided by those of the batch."""
        settings = self.settings
        weight = by_sequence(states.row_weight, states)
        length = by_sequence(states.row_length, states)[:, 0]
        bound = elbo(token_scores(policy.log_pi(states), states), weight)
        log_ratio = bound - elbo(token_scores(policy.log_pi_a(states), states), weight)
        by_token = settings.ratio == "per-token"
        inside, outside = (length, 1) if by_token else (1, length)
        share = states.draws / states.batch_rows
        gain = clipped(log_ratio / inside, weights.credit, settings.epsilon) / outside
        value = -share * gain.sum()
        cut = is_clipped(log_ratio / inside, weights.credit, settings.epsilon)
        metrics = {"clipped": share * cut.sum()}
        if settings.beta > 0:
            reference = elbo(token_scores(policy.log_pi_0(states), states), weight)
            divergence = share * k3((reference - bound) / length).sum()
            value, metrics["kl"] = value + settings.beta * divergence, divergence.detach()
        return Loss(value, metrics)
