"""UniGRPO, the reinforcement learning of MMaDA (arXiv 2505.15809)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from jaxtyping import Float, Int
from torch import Tensor

from dtm.baselines import UniGRPOConfig
from dtm.methods.advantages import ADVANTAGES
from dtm.methods.baseline import Baseline
from dtm.methods.grpo import clipped_tokens
from dtm.methods.surrogates import token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@final
@dataclass(frozen=True, slots=True)
class UniGRPO(Baseline):
    r"""(1/N) Σ_i (1/|S_i|) Σ_{k∈S_i} [ −min(ρ A_i, clip(ρ, 1−ε, 1+ε) A_i) + β (e^d − d − 1) ].

    ρ = π_θ/π_a and d = log π_0/π_θ at the masked positions S_i, whose number rises over the updates
    (`RisingRatio`). Each completion weighs alike; |S_i| is the number of masked positions, not n_i.
    """

    settings: UniGRPOConfig = field(default_factory=UniGRPOConfig)

    @property
    def reads_base(self) -> bool:
        """For the KL."""
        return self.settings.beta > 0

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i."""
        return ADVANTAGES[self.settings.advantage](reward, group)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Means over the masked positions of each row, summed and divided by the rows of the batch."""
        score = token_scores(policy.log_pi(states), states)
        scored = states.eligible.view(score.shape)
        share = scored / scored.sum(-1, keepdim=True).clamp(min=1) / states.batch_rows
        return clipped_tokens(
            policy, states, score, share, weights.credit, self.settings.epsilon, self.settings.beta
        )
