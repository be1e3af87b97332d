"""UniGRPO, the reinforcement learning of MMaDA (arXiv 2505.15809)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float, Int
from torch import Tensor

from dtm.config import IteratingConfig
from dtm.config.rules import AT_LEAST_ONE, BETWEEN_0_AND_1, NOT_NEGATIVE, check_fields
from dtm.masking import Masking, Planned, RisingRatio
from dtm.methods.advantages import ADVANTAGES, AdvantageName
from dtm.methods.base import Changes, Method
from dtm.methods.grpo import clipped_tokens
from dtm.methods.surrogates import token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class UniGRPOConfig(IteratingConfig):
    """UniGRPO (MMaDA): token ratios at masked positions, more of them masked with every update."""

    name: str = "unigrpo"
    updates: int = 4
    """μ, the number of updates per set of rollouts, over which the masks fill up."""
    epsilon: float = 0.5
    """ε, clip range of a ratio around 1; not published, d1's."""
    beta: float = 0.04
    """β, weight of the KL to π_0; not published, d1's."""
    advantage: AdvantageName = "z-score"
    """A: as published the group's z-score."""

    def __post_init__(self) -> None:
        check_fields("method", self, updates=AT_LEAST_ONE, epsilon=BETWEEN_0_AND_1, beta=NOT_NEGATIVE)


@final
class UniGRPO(Method):
    r"""(1/N) Σ_i (1/|S_i|) Σ_{k∈S_i} [ −min(ρ A_i, clip(ρ, 1−ε, 1+ε) A_i) + β (e^d − d − 1) ].

    ρ = π_θ/π_a and d = log π_0/π_θ at the masked positions S_i, whose number rises over the updates
    (`RisingRatio`). Each completion weighs alike; |S_i| is the number of masked positions, not n_i.
    """

    Config = UniGRPOConfig
    config: UniGRPOConfig
    knobs: ClassVar[tuple[Changes, ...]] = ({"updates": 8}, {"epsilon": 0.2})

    @property
    def reads_base(self) -> bool:
        """Whether the loss needs π_0: for the KL, if β > 0."""
        return self.config.beta > 0

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i."""
        return ADVANTAGES[self.config.advantage](reward, group)

    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return masks whose share rises over the updates of an iteration."""
        return Planned(RisingRatio(self.config.updates), end_id)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return means over the masked positions of each row, summed and divided by the rows of the batch."""
        score = token_scores(policy.log_pi(states), states)
        scored = states.eligible.view(score.shape)
        share = scored / scored.sum(-1, keepdim=True).clamp(min=1) / states.batch_rows
        return clipped_tokens(
            policy, states, score, share, weights.credit, self.config.epsilon, self.config.beta
        )
