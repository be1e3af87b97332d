"""SPG, the sandwiched policy gradient (arXiv 2510.09541)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.baselines import SPGConfig
from dtm.methods.advantages import ADVANTAGES
from dtm.methods.baseline import Baseline
from dtm.methods.surrogates import by_sequence, elbo, eubo, mixture, token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@final
@dataclass(frozen=True, slots=True)
class SPG(Baseline):
    r"""−(1/Σ_i n_i) Σ_i A_i E_i: E_i = ELBO where A_i > 0, and where A_i < 0 the EUBO or a mixture with it.

    Both from m masks of each completion (`surrogates`). A plain policy gradient: no ratio, no clip, no KL,
    and from the second update on off-policy. Whether the upper one is a bound: docs/decisions.md.
    """

    settings: SPGConfig = field(default_factory=SPGConfig)

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i."""
        return ADVANTAGES[self.settings.advantage](reward, group)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """In nats per token of the batch."""
        score = token_scores(policy.log_pi(states), states)
        weight, scored = by_sequence(states.row_weight, states), states.eligible.view(score.shape)
        length = by_sequence(states.row_length, states)[:, 0]
        lower = elbo(score, weight)
        upper = eubo(score, scored, weight, length, self.settings.upper_beta)
        tokens = states.batch_length / states.draws
        estimate = torch.where(weights.credit > 0, lower, self._below(lower, upper))
        value = -(weights.credit * estimate).sum() / tokens
        metrics = {"lower": lower.detach().sum() / tokens, "upper": upper.detach().sum() / tokens}
        return Loss(value, metrics)

    def _below(self, lower: Float[Tensor, " S"], upper: Float[Tensor, " S"]) -> Float[Tensor, " S"]:
        """What is lowered for a completion below the mean."""
        choices = {
            "mix": mixture(lower, upper, self.settings.mix),
            "eubo": upper,
            "elbo": lower,
            "zero": torch.zeros_like(lower),
        }
        return choices[self.settings.negative]
