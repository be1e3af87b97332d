"""DMPO (arXiv 2510.08233): cross-entropy to the tilted base, by importance weights within each group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.config import DecodingConfig, IteratingConfig
from dtm.config.method import Preset
from dtm.config.rules import AT_LEAST_ONE, POSITIVE, check_fields
from dtm.masking import Coupled, Masking, MaskPlan, Planned
from dtm.methods.advantages import group_weights
from dtm.methods.base import Changes, Method
from dtm.methods.surrogates import bounds
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights

Centring = Literal["unbiased", "mean", "negative", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DMPOConfig(IteratingConfig):
    """DMPO: likelihood weighted towards π_0 e^{r/α}, with rollouts of π_a reweighted to that law."""

    name: str = "dmpo"
    preset: Preset = "fixed"
    """published: negative centring, Bernoulli masks, and what follows the end is scored."""
    updates: int = 8
    """μ, the number of updates per set of rollouts."""
    alpha: float = 0.04
    """α: the target is π_0 e^{r/α}, in every iteration; 1/α is DTM's final tilt A."""
    eta: float = 1.0
    """η, exponent of the importance weights; below 1 a step goes part of the way, with less variance."""
    draws: int = 2
    """Pairs of complementary masks per completion, in updates and for the stored π_0/π_a."""
    centring: Centring | None = None
    """Centring b, subtracted from the weights w⁺: unbiased (the group's weights of π_θ/π_a, which leaves the
    target stationary, for another pass), their mean, negative (the weights of −r: the target is not
    stationary), or none. None: unbiased; published: negative."""

    def __post_init__(self) -> None:
        check_fields("method", self, updates=AT_LEAST_ONE, alpha=POSITIVE, eta=POSITIVE, draws=AT_LEAST_ONE)


@final
class DMPO(Method):
    r"""−(1/N) Σ_i K (w⁺_i − b_i) ELBO_i / L,  w⁺ = softmax over the group of η (ℓ + r/α),  ℓ = log π_0/π_a.

    ℓ is the difference of two evidence bounds under common masks, measured once when the rollouts are drawn.
    The centring b is 1/K, 0, softmax of η (ℓ − r/α), or softmax of log π_θ/π_a under the update's masks.
    K is the size of the group. With exact ℓ and b unbiased or 0 the minimiser is DTM's π_A at A = 1/α.
    """

    Config = DMPOConfig
    config: DMPOConfig
    knobs: ClassVar[tuple[Changes, ...]] = ({"alpha": 0.1}, {"eta": 0.5})

    @property
    def centring(self) -> Centring:
        """The configured centring, or that of the preset."""
        return self.config.centring or ("negative" if self.config.preset == "published" else "unbiased")

    @property
    def reads_base(self) -> bool:
        """For ℓ."""
        return True

    @property
    def ratio_plan(self) -> MaskPlan:
        """Coupled masks, which estimate the evidence bound without bias."""
        return Coupled(self.config.draws)

    @property
    def scores_first(self) -> bool:
        """Whether the centring depends on the student."""
        return self.centring == "unbiased"

    @property
    def rows_per_rollout(self) -> int:
        """Rows per rollout: two masks per pair."""
        return 2 * self.config.draws

    def scored_per_row(self, completion: int, decoding: DecodingConfig) -> int:
        """Scored positions per row: half of the completion, since a pair scores each position once."""
        return (completion + 1) // 2

    def credit(
        self,
        reward: Float[Tensor, " N"],
        group: Int[Tensor, " N"],
        log_ratio: Float[Tensor, " N"] | None = None,
    ) -> Float[Tensor, " N"]:
        """K (w⁺ − b); unbiased centring starts from b = 1/K, which it is at π_θ = π_a."""
        base = torch.zeros_like(reward).double() if log_ratio is None else log_ratio.double()
        tilt = reward.double() / self.config.alpha
        weight = group_weights(self.config.eta * (base + tilt), group)
        if self.centring == "negative":
            weight = weight - group_weights(self.config.eta * (base - tilt), group)
        elif self.centring != "none":
            weight = weight - 1
        return weight.to(reward.dtype)

    def score(self, policy: Policy, states: MaskedStates) -> Float[Tensor, " S"]:
        """Return log π_θ/π_a of each sequence, under the masks of the update."""
        return bounds(policy.log_pi(states), states) - bounds(policy.log_pi_a(states), states)

    def reweigh(self, weights: Weights, score: Float[Tensor, " S"]) -> Weights:
        """Replace the 1 subtracted in `credit` by K b."""
        centre = group_weights(score, weights.group) - 1
        return replace(weights, credit=weights.credit - centre.to(weights.credit.dtype))

    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return pairs of complementary masks."""
        published = self.config.preset == "published"
        plan = Coupled(self.config.draws, law="bernoulli" if published else "count")
        return Planned(plan, None if published else end_id)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return the loss in nats per token, divided by the sequences of the batch."""
        likelihood, share = bounds(policy.log_pi(states), states), states.draws / states.batch_rows
        value = -share * (weights.credit * likelihood).sum() / states.length
        return Loss(value, {"likelihood": share * likelihood.detach().sum()})
