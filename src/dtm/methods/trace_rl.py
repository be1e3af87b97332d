"""TraceRL (arXiv 2509.06949): the policy gradient at the states that the decoder went through."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from jaxtyping import Float, Int
from torch import Tensor

from dtm.baselines import TraceRLConfig
from dtm.methods.advantages import ADVANTAGES
from dtm.methods.baseline import Baseline
from dtm.methods.ratios import clipped, is_clipped, k3
from dtm.methods.surrogates import token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@final
@dataclass(frozen=True, slots=True)
class TraceRL(Baseline):
    r"""Mean over sequences, segments and their tokens of −min(ρ A, clip(ρ, 1−ε, 1+ε) A) + β (e^d − d − 1).

    S are the tokens that a segment of the decoding revealed (`TraceSegments`), ρ = π_θ/π_a and
    d = log π_a/π_θ: the KL is to the policy that drew the rollouts. Published, it is summed over S.
    """

    settings: TraceRLConfig = field(default_factory=TraceRLConfig)

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i."""
        return ADVANTAGES[self.settings.advantage](reward, group)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Means over tokens and segments, summed over sequences and divided by those of the batch."""
        settings = self.settings
        score = token_scores(policy.log_pi(states), states)
        scored = states.eligible.view(score.shape)
        count = scored.sum(-1, keepdim=True)
        segments = (count > 0).sum(1, keepdim=True).clamp(min=1)
        summed = scored / segments * states.draws / states.batch_rows
        share = summed / count.clamp(min=1)
        advantage = weights.credit[:, None, None].expand_as(score)
        log_ratio = score - token_scores(policy.log_pi_a(states), states)
        value = -(share * clipped(log_ratio, advantage, settings.epsilon)).sum()
        divergence = k3(-log_ratio)
        penalty = ((summed if settings.preset == "published" else share) * divergence).sum()
        metrics = {
            "clipped": (share * is_clipped(log_ratio, advantage, settings.epsilon)).sum(),
            "kl": (share * divergence.detach()).sum(),
        }
        return Loss(value + settings.beta * penalty, metrics)
