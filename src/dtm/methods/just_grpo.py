"""JustGRPO (arXiv 2601.15165): the policy gradient of decoding left to right, whose likelihood is exact."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float, Int
from torch import Tensor

from dtm.config import DecodingConfig, IteratingConfig
from dtm.config.method import Preset
from dtm.config.rules import AT_LEAST_ONE, BETWEEN_0_AND_1, check_fields
from dtm.errors import DtmWarning
from dtm.masking import LeftToRight, Masking, Planned
from dtm.methods.advantages import ADVANTAGES, AdvantageName
from dtm.methods.base import Changes, Method
from dtm.methods.grpo import clipped_tokens
from dtm.methods.surrogates import by_sequence, token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class JustGRPOConfig(IteratingConfig):
    """JustGRPO: token ratios of decoding from left to right. Set --decoding.block 1 to draw such rollouts."""

    name: str = "just-grpo"
    preset: Preset = "fixed"
    """published: ratios are 1 by construction, what follows the end is scored, and completions without an
    advantage are left out of the mean."""
    updates: int = 1
    """μ, the number of updates per set of rollouts."""
    positions: int = 32
    """Positions of a completion scored per update, evenly spaced, each with its own row; the gradient stays
    unbiased. Published: all (256)."""
    epsilon: float = 0.2
    """ε, clip range of a ratio around 1."""
    advantage: AdvantageName = "z-score"
    """A: as published the group's z-score."""

    def __post_init__(self) -> None:
        check_fields("method", self, updates=AT_LEAST_ONE, positions=AT_LEAST_ONE, epsilon=BETWEEN_0_AND_1)


@final
class JustGRPO(Method):
    r"""−(1/(N L)) Σ_i Σ_{t≤n_i} min(ρ A_i, clip(ρ, 1−ε, 1+ε) A_i),  ρ = π_θ/π_a of o_t given o_{<t}.

    Σ_t log π_θ(o_t | o_{<t}) is the log-probability of decoding from left to right, one token per step, at
    temperature 1. The sum over t is estimated from evenly spaced positions (`LeftToRight`). Dividing by the
    common length L keeps the gradient that of E[r].
    """

    Config = JustGRPOConfig
    config: JustGRPOConfig
    knobs: ClassVar[tuple[Changes, ...]] = ({"updates": 4}, {"advantage": "loo"})

    @property
    def published(self) -> bool:
        """Whether the loss is that of the released code."""
        return self.config.preset == "published"

    @property
    def rows_per_rollout(self) -> int:
        """Largest number of rows per rollout; shorter completions have fewer."""
        return self.config.positions

    def scored_per_row(self, completion: int, decoding: DecodingConfig) -> int:
        """One."""
        return 1

    def check_decoding(self, decoding: DecodingConfig) -> None:
        """Warn if rollouts are not drawn left to right at temperature 1: the gradient is then biased.

        Not an error: a comparison has one decoder for all methods, and a block-causal model its own blocks.
        """
        wanted = {"block": 1, "temperature": 1.0}
        other = {name: value for name, value in wanted.items() if getattr(decoding, name) != value}
        if other:
            found = ", ".join(f"decoding.{name} is {getattr(decoding, name)}" for name in other)
            flags = " ".join(f"--decoding.{name} {value:g}" for name, value in other.items())
            notice = (
                f"{self.config.name} takes the likelihood of decoding left to right at temperature 1, and "
                f"{found}: its gradient is not that of the reward. To draw rollouts so, add {flags} (a "
                "block-causal model keeps its own block)"
            )
            warnings.warn(notice, DtmWarning, stacklevel=2)

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i; published, over the share of rollouts that have one, so that the mean is over these."""
        credit = ADVANTAGES[self.config.advantage](reward, group)
        if not self.published:
            return credit
        return credit / (credit != 0).to(credit.dtype).mean().clamp(min=1 / len(credit))

    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return the states of decoding from left to right."""
        return Planned(LeftToRight(self.config.positions), None if self.published else end_id)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return the loss, summed over sequences, divided by those of the batch and by the length."""
        score = token_scores(policy.log_pi(states), states)
        share = by_sequence(states.row_weight[:, None] * states.eligible, states)
        share = share / (states.batch_rows * states.length)
        # With one update per iteration the student is π_a, so its own scores replace a pass of π_a.
        on_policy = self.published or self.config.updates == 1
        old = score.detach() if on_policy else None
        return clipped_tokens(policy, states, score, share, weights.credit, self.config.epsilon, old=old)
