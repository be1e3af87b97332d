"""d2 (arXiv 2509.21474), its StepMerge form: the likelihood of the decoder's trajectory from a few states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float, Int
from torch import Tensor

from dtm.config import DecodingConfig, IteratingConfig
from dtm.config.method import Preset
from dtm.config.rules import AT_LEAST_ONE, BETWEEN_0_AND_1, NOT_NEGATIVE, check_fields
from dtm.masking import Masking, Planned, TraceSegments
from dtm.methods.advantages import ADVANTAGES, AdvantageName
from dtm.methods.base import Changes, Method
from dtm.methods.grpo import clipped_tokens
from dtm.methods.surrogates import token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights

PUBLISHED_NOISE = 0.15
"""Probability that a prompt token is masked; a comment of the code says that this is off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class D2Config(IteratingConfig):
    """d2 (StepMerge): token ratios at N states of the decoder, clipped, with KL to π_0."""

    name: str = "d2"
    preset: Preset = "fixed"
    """published: 15 % of the prompt is hidden."""
    updates: int = 8
    """μ, the number of updates per set of rollouts; 12 for GSM8K and MATH."""
    segments: int = 16
    """N, equal parts of a decoding, each a row; 8 for GSM8K. With as many as there are steps, the likelihood
    of the trajectory is exact."""
    epsilon: float = 0.5
    """ε, clip range of a ratio around 1."""
    beta: float = 0.04
    """β, weight of the KL to π_0; 0: no KL, and no π_0 to keep."""
    advantage: AdvantageName = "mean"
    """A: reward less the group's mean, its z-score, or less the mean of the others."""

    def __post_init__(self) -> None:
        check_fields(
            "method",
            self,
            updates=AT_LEAST_ONE,
            segments=AT_LEAST_ONE,
            epsilon=BETWEEN_0_AND_1,
            beta=NOT_NEGATIVE,
        )


@final
class D2(Method):
    r"""(1/Σ_i n_i) Σ_i Σ_{k≤n_i} [ −min(ρ A_i, clip(ρ, 1−ε, 1+ε) A_i) + β (e^d − d − 1) ].

    diffu-GRPO's loss with φ_k = log π(o_k | x_s), where x_s is the state at the start of the segment in which
    the decoder revealed o_k (`TraceSegments`). N = 1 is diffu-GRPO's likelihood.
    """

    Config = D2Config
    config: D2Config
    knobs: ClassVar[tuple[Changes, ...]] = ({"updates": 4}, {"epsilon": 0.2})

    @property
    def reads_base(self) -> bool:
        """Whether the loss needs π_0: for the KL, if β > 0."""
        return self.config.beta > 0

    @property
    def rows_per_rollout(self) -> int:
        """Largest number of rows per rollout; a decoding may have fewer steps."""
        return self.config.segments

    def scored_per_row(self, completion: int, decoding: DecodingConfig) -> int:
        """A segment's share of the completion: the rows of a rollout score every token once."""
        steps = -(-completion // decoding.most_per_step(completion))
        return -(-completion // min(self.config.segments, steps))

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i."""
        return ADVANTAGES[self.config.advantage](reward, group)

    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return the states at the start of each segment."""
        noise = PUBLISHED_NOISE if self.config.preset == "published" else 0.0
        return Planned(TraceSegments(count=self.config.segments), end_id, noise)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return the sum over the tokens of these rows, divided by those of the batch."""
        config, score = self.config, token_scores(policy.log_pi(states), states)
        share = states.eligible.view(score.shape) * states.draws / states.batch_length
        return clipped_tokens(policy, states, score, share, weights.credit, config.epsilon, config.beta)
