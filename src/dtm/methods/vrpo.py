"""VRPO, the preference optimisation of LLaDA 1.5 (arXiv 2505.19223), on pairs from each group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from dtm.baselines import VRPOConfig
from dtm.methods.advantages import best_and_worst
from dtm.methods.baseline import Baseline
from dtm.methods.surrogates import by_sequence, elbo, token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@final
@dataclass(frozen=True, slots=True)
class VRPO(Baseline):
    r"""Mean over pairs of −log σ(β [ΔB(y_w) − ΔB(y_l)]) − λ B_θ(y_w)/n_w,  ΔB = B_θ − B_0.

    B is the evidence bound from n_t masks, the same for π_θ and π_0: masking noise nearly cancels in ΔB. y_w
    and y_l are the best and the worst completion of a prompt; a prompt whose rewards are all equal has no
    pair. λ is ``sft``.
    """

    settings: VRPOConfig = field(default_factory=VRPOConfig)
    pairs: ClassVar[bool] = True

    @property
    def reads_base(self) -> bool:
        """The reference of the preference."""
        return True

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """+1 for y_w, −1 for y_l."""
        return best_and_worst(reward, group)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Rows come in pairs, in either order: the credits tell which is which."""
        settings = self.settings
        weight = by_sequence(states.row_weight, states)
        length = by_sequence(states.row_length, states)[:, 0]
        bound = elbo(token_scores(policy.log_pi(states), states), weight)
        gain = bound - elbo(token_scores(policy.log_pi_0(states), states), weight)
        if settings.per_token:
            gain = gain / length
        margin = (weights.credit * gain).view(-1, 2).sum(1)
        pairs = states.batch_rows / states.draws / 2
        likelihood = (bound / length)[weights.credit > 0]
        value = -F.logsigmoid(settings.beta * margin).sum() - settings.sft * likelihood.sum()
        metrics = {"margin": margin.detach().sum() / pairs, "preferred": (margin > 0).sum() / pairs}
        return Loss(value / pairs, metrics)
