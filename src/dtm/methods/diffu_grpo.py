"""diffu-GRPO, the reinforcement learning of d1 (arXiv 2504.12216)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from jaxtyping import Float, Int
from torch import Tensor

from dtm.baselines import DiffuGRPOConfig
from dtm.methods.advantages import ADVANTAGES
from dtm.methods.baseline import Baseline
from dtm.methods.grpo import clipped_tokens
from dtm.methods.surrogates import token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@final
@dataclass(frozen=True, slots=True)
class DiffuGRPO(Baseline):
    r"""(1/Σ_i n_i) Σ_i Σ_{k≤n_i} [ −min(ρ A_i, clip(ρ, 1−ε, 1+ε) A_i) + β (e^d − d − 1) ].

    With everything masked, φ_k = log π(o_k | prompt) is read off one pass; ρ = e^{φ(θ) − φ(a)} and
    d = φ(0) − φ(θ). All tokens of a batch weigh alike, so that long completions weigh more.
    """

    settings: DiffuGRPOConfig = field(default_factory=DiffuGRPOConfig)

    @property
    def reads_base(self) -> bool:
        """For the KL."""
        return self.settings.beta > 0

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i."""
        return ADVANTAGES[self.settings.advantage](reward, group)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Sums over the tokens of these rows, divided by those of the batch."""
        score = token_scores(policy.log_pi(states), states)
        share = states.eligible.view(score.shape) / states.batch_length
        return clipped_tokens(
            policy, states, score, share, weights.credit, self.settings.epsilon, self.settings.beta
        )
