"""wd1 (arXiv 2507.08838): weighted likelihood in place of a policy ratio."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.baselines import WD1Config
from dtm.methods.advantages import centred, softmax_credit
from dtm.methods.baseline import Baseline
from dtm.methods.surrogates import by_sequence, elbo, token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@final
@dataclass(frozen=True, slots=True)
class WD1(Baseline):
    r"""Mean over prompts of Σ_i (w⁻_i − w⁺_i) Φ_i / L, with w^± = softmax over the group of ±ψ A.

    Φ_i = Σ_{k≤n_i} log π_θ(o_ik | prompt) with everything masked. Only the student is asked.
    """

    settings: WD1Config = field(default_factory=WD1Config)

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """K (w⁺ − w⁻)."""
        settings = self.settings
        over = group if settings.over == "group" else torch.zeros_like(group)
        return softmax_credit(centred(reward, group), over, settings.psi, settings.negatives)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Divided by the rows of the batch and, unless as published, by the length."""
        score = token_scores(policy.log_pi(states), states)
        likelihood = elbo(score, by_sequence(states.row_weight, states))
        length = 1 if self.settings.preset == "published" else states.length
        value = -(weights.credit * likelihood).sum() / (states.batch_rows * length)
        return Loss(value, {"likelihood": likelihood.detach().sum() / states.batch_rows})
