"""SPG, the sandwiched policy gradient (arXiv 2510.09541)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.config import IteratingConfig
from dtm.config.method import Preset
from dtm.config.rules import AT_LEAST_ONE, POSITIVE, SHARE, SHARE_BELOW_1, check_fields
from dtm.masking import ActiveBlock, FullMask, Masking, MaskPlan, Planned, UniformCount
from dtm.methods.advantages import ADVANTAGES, AdvantageName, group_weights
from dtm.methods.base import Changes, Method
from dtm.methods.surrogates import bounds, by_sequence, elbo, eubo, mixture, token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class SPGConfig(IteratingConfig):
    """SPG: raise a lower estimate of the likelihood of good completions, lower an upper one of bad ones."""

    name: str = "spg"
    preset: Preset = "fixed"
    """published: blocks are chosen as in the code, early ones too often."""
    updates: int = 4
    """μ, the number of updates per set of rollouts, without ratios."""
    draws: int = 2
    """m, masks per completion."""
    negative: Literal["mix", "eubo", "elbo", "zero"] = "mix"
    """Estimate of the likelihood for A < 0; zero: drop these completions."""
    upper_beta: float = 1.5
    """β_u of the upper estimate; published: 1 (Sudoku) to 2 (Countdown with eubo)."""
    mix: float = 0.5
    """ω, the share of the upper estimate in mix."""
    masks: Literal["block", "random", "all"] = "block"
    """Masks: in one block of the decoder's size, of a uniform number of positions, or of everything."""
    scored: Literal["masked", "active"] = "masked"
    """Scored positions with blocks: all masked ones, as published, or those of the chosen block, a bound."""
    prompt_noise: float = 0.15
    """Probability that a token of the prompt or of an earlier block is masked."""
    advantage: AdvantageName = "mean"
    """A: reward less the group's mean, its z-score, or less the mean of the others."""
    self_normalise: bool = False
    """StableDRL: weigh completions by the group's softmax of log π_θ/π_a, for another pass per update."""
    cap: float = 5.0
    """With self-normalise: upper limit on ratios π_θ/π_a."""
    ratio: Literal["per-token", "sequence"] = "per-token"
    """With self-normalise: the mean log-ratio of the scored tokens, as published, or of the whole bounds."""

    def __post_init__(self) -> None:
        check_fields(
            "method",
            self,
            updates=AT_LEAST_ONE,
            draws=AT_LEAST_ONE,
            upper_beta=POSITIVE,
            mix=SHARE,
            prompt_noise=SHARE_BELOW_1,
            cap=POSITIVE,
        )


@final
class SPG(Method):
    r"""−(1/Σ_i n_i) Σ_i A_i E_i: E_i = ELBO where A_i > 0, and where A_i < 0 the EUBO or a mixture with it.

    Both from m masks per completion (`surrogates`). A plain policy gradient: no ratio, no clip, no KL,
    and from the second update on off-policy. Whether the upper one is a bound: docs/decisions.md.
    With ``self_normalise`` A_i counts K w_i times, w = softmax over the group of min(log π_θ/π_a, log C): a
    convex combination of the A_i ∇E_i, whatever the ratios (StableDRL, arXiv 2603.06743).
    """

    Config = SPGConfig
    config: SPGConfig
    knobs: ClassVar[tuple[Changes, ...]] = ({"draws": 4}, {"upper_beta": 1.0})

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i."""
        return ADVANTAGES[self.config.advantage](reward, group)

    @property
    def scores_first(self) -> bool:
        """True with self-normalise, for the ratios of whole groups."""
        return self.config.self_normalise

    def score(self, policy: Policy, states: MaskedStates) -> Float[Tensor, " S"]:
        """Return log π_θ/π_a per sequence, per scored token or of whole bounds, with the same masks."""
        new, old = policy.log_pi(states), policy.log_pi_a(states)
        if self.config.ratio == "sequence":
            return bounds(new, states) - bounds(old, states)
        change = token_scores(new, states) - token_scores(old, states)
        count = by_sequence(states.eligible, states).sum((1, 2)).clamp(min=1)
        return change.sum((1, 2)) / count

    def reweigh(self, weights: Weights, score: Float[Tensor, " S"]) -> Weights:
        """Return the weights with A_i times K w_i, which is 1 at π_θ = π_a."""
        factor = group_weights(score.clamp(max=math.log(self.config.cap)), weights.group)
        return replace(weights, credit=weights.credit * factor.to(weights.credit.dtype))

    @property
    def rows_per_rollout(self) -> int:
        """Rows per rollout: m, or 1 if everything is masked."""
        return 1 if self.config.masks == "all" else self.config.draws

    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return masks in one block; without blocks in the decoder, of a uniform number of positions."""
        return Planned(self._plan(block), end_id, self.config.prompt_noise)

    def _plan(self, block: int | None) -> MaskPlan:
        config = self.config
        if config.masks == "all":
            return FullMask()
        if config.masks == "random" or block is None:
            return UniformCount(config.draws)
        return ActiveBlock(block, config.draws, config.scored, biased=config.preset == "published")

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return the loss in nats per token of the batch."""
        score = token_scores(policy.log_pi(states), states)
        weight, scored = by_sequence(states.row_weight, states), states.eligible.view(score.shape)
        length = by_sequence(states.row_length, states)[:, 0]
        lower = elbo(score, weight)
        upper = eubo(score, scored, weight, length, self.config.upper_beta)
        tokens = states.batch_length / states.draws
        estimate = torch.where(weights.credit > 0, lower, self._below(lower, upper))
        value = -(weights.credit * estimate).sum() / tokens
        metrics = {"lower": lower.detach().sum() / tokens, "upper": upper.detach().sum() / tokens}
        return Loss(value, metrics)

    def _below(self, lower: Float[Tensor, " S"], upper: Float[Tensor, " S"]) -> Float[Tensor, " S"]:
        """Return the estimate for completions with negative advantage."""
        choices = {
            "mix": mixture(lower, upper, self.config.mix),
            "eubo": upper,
            "elbo": lower,
            "zero": torch.zeros_like(lower),
        }
        return choices[self.config.negative]
