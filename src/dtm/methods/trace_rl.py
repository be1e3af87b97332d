"""TraceRL (arXiv 2509.06949): the policy gradient at the states that the decoder went through."""

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
from dtm.methods.ratios import k3
from dtm.methods.surrogates import token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights

TRACE_STEPS = 64
"""Decoding steps assumed in estimates of time and memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceRLConfig(IteratingConfig):
    """TraceRL: token ratios at the decoder's own states, with KL to π_a."""

    name: str = "trace-rl"
    preset: Preset = "fixed"
    """published: the KL is summed over tokens, not averaged."""
    updates: int = 1
    """μ, the number of updates per set of rollouts."""
    merged: int = 8
    """Decoding steps per segment; each segment is a row."""
    epsilon: float = 0.2
    """ε, clip range of a ratio around 1."""
    beta: float = 0.01
    """β, weight of the KL to π_a, which drew the rollouts."""
    advantage: AdvantageName = "z-score"
    """A: as published the group's z-score."""

    def __post_init__(self) -> None:
        check_fields(
            "method",
            self,
            updates=AT_LEAST_ONE,
            merged=AT_LEAST_ONE,
            epsilon=BETWEEN_0_AND_1,
            beta=NOT_NEGATIVE,
        )


@final
class TraceRL(Method):
    r"""Mean over sequences, segments and their tokens of −min(ρ A, clip(ρ, 1−ε, 1+ε) A) + β (e^d − d − 1).

    S are the tokens that a segment of the decoding revealed (`TraceSegments`), ρ = π_θ/π_a and
    d = log π_a/π_θ: the KL is to the policy that drew the rollouts. Published, it is summed over S.
    """

    Config = TraceRLConfig
    config: TraceRLConfig
    knobs: ClassVar[tuple[Changes, ...]] = ({"updates": 4}, {"epsilon": 0.5})

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i."""
        return ADVANTAGES[self.config.advantage](reward, group)

    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return the states that the decoder went through."""
        return Planned(TraceSegments(self.config.merged), end_id)

    @property
    def rows_per_rollout(self) -> int:
        """Segments of a decoding of `TRACE_STEPS` steps; the actual number is not known in advance."""
        return max(1, TRACE_STEPS // self.config.merged)

    def scored_per_row(self, completion: int, decoding: DecodingConfig) -> int:
        """The tokens of a segment's steps."""
        return min(completion, self.config.merged * decoding.most_per_step(completion))

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return means over tokens and segments, summed over sequences and divided by those of the batch."""
        config = self.config
        score = token_scores(policy.log_pi(states), states)
        scored = states.eligible.view(score.shape)
        count = scored.sum(-1, keepdim=True)
        segments = (count > 0).sum(1, keepdim=True).clamp(min=1)
        summed = scored / segments * states.draws / states.batch_rows
        share = summed / count.clamp(min=1)
        old = token_scores(policy.log_pi_a(states), states)
        gain = clipped_tokens(policy, states, score, share, weights.credit, config.epsilon, old=old)
        divergence = k3(old - score)
        penalty = ((summed if config.preset == "published" else share) * divergence).sum()
        metrics = {**gain.metrics, "kl": (share * divergence.detach()).sum()}
        return Loss(gain.value + config.beta * penalty, metrics)
