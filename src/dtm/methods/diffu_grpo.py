"""diffu-GRPO, the reinforcement learning of d1 (arXiv 2504.12216)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float, Int
from torch import Tensor

from dtm.config import IteratingConfig
from dtm.config.rules import AT_LEAST_ONE, BETWEEN_0_AND_1, NOT_NEGATIVE, SHARE_BELOW_1, check_fields
from dtm.masking import FullMask, Masking, Planned
from dtm.methods.advantages import ADVANTAGES, AdvantageName
from dtm.methods.base import Changes, Method
from dtm.methods.grpo import clipped_tokens
from dtm.methods.surrogates import token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffuGRPOConfig(IteratingConfig):
    """diffu-GRPO (d1): token ratios of a fully masked completion, clipped, with KL to π_0."""

    name: str = "diffu-grpo"
    updates: int = 12
    """μ, the number of updates per set of rollouts; 8 for Countdown and Sudoku."""
    epsilon: float = 0.5
    """ε, clip range of a ratio around 1."""
    beta: float = 0.04
    """β, weight of the KL to π_0; 0: no KL, and no π_0 to keep."""
    prompt_noise: float = 0.15
    """Probability that a prompt token is masked."""
    advantage: AdvantageName = "mean"
    """A: reward less the group's mean, its z-score, or less the mean of the others."""

    def __post_init__(self) -> None:
        check_fields(
            "method",
            self,
            updates=AT_LEAST_ONE,
            epsilon=BETWEEN_0_AND_1,
            beta=NOT_NEGATIVE,
            prompt_noise=SHARE_BELOW_1,
        )


@final
class DiffuGRPO(Method):
    r"""(1/Σ_i n_i) Σ_i Σ_{k≤n_i} [ −min(ρ A_i, clip(ρ, 1−ε, 1+ε) A_i) + β (e^d − d − 1) ].

    With everything masked, φ_k = log π(o_k | prompt) is read off one pass; ρ = e^{φ(θ) − φ(a)} and
    d = φ(0) − φ(θ). All tokens of a batch weigh alike, so that long completions weigh more.
    """

    Config = DiffuGRPOConfig
    config: DiffuGRPOConfig
    knobs: ClassVar[tuple[Changes, ...]] = ({"updates": 4}, {"epsilon": 0.2})

    @property
    def reads_base(self) -> bool:
        """Whether the loss needs π_0: for the KL, if β > 0."""
        return self.config.beta > 0

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i."""
        return ADVANTAGES[self.config.advantage](reward, group)

    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return masks of the whole completion and of some prompt tokens."""
        return Planned(FullMask(), end_id, self.config.prompt_noise)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return the sum over the tokens of these rows, divided by those of the batch."""
        score = token_scores(policy.log_pi(states), states)
        share = states.eligible.view(score.shape) / states.batch_length
        return clipped_tokens(
            policy, states, score, share, weights.credit, self.config.epsilon, self.config.beta
        )
