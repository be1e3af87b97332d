"""VRPO, the preference optimisation of LLaDA 1.5 (arXiv 2505.19223), on pairs from each group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from dtm.config import IteratingConfig
from dtm.config.rules import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, check_fields
from dtm.masking import Masking, Planned, UniformCount
from dtm.methods.advantages import best_and_worst
from dtm.methods.base import Changes, Method
from dtm.methods.surrogates import bounds, by_sequence
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class VRPOConfig(IteratingConfig):
    """VRPO (LLaDA 1.5): DPO on evidence bounds, here on the best and the worst completion of a prompt."""

    name: str = "vrpo"
    updates: int = 4
    """μ, the number of updates per set of rollouts; the published run had fixed pairs."""
    draws: int = 8
    """n_t, masks per completion, the same for π_θ and π_0."""
    beta: float = 0.2
    """β, sharpness of the preference."""
    sft: float = 0.05
    """Weight of the evidence bound of the better completion, in nats per token."""
    per_token: bool = False
    """Divide each bound by the completion's length: at 256 tokens the sum saturates the sigmoid."""

    def __post_init__(self) -> None:
        check_fields(
            "method", self, updates=AT_LEAST_ONE, draws=AT_LEAST_ONE, beta=POSITIVE, sft=NOT_NEGATIVE
        )


@final
class VRPO(Method):
    r"""Mean over pairs of −log σ(β [ΔB(y_w) − ΔB(y_l)]) − λ B_θ(y_w)/n_w,  ΔB = B_θ − B_0.

    B is the evidence bound from n_t masks, the same for π_θ and π_0: masking noise nearly cancels in ΔB. y_w
    and y_l are the best and the worst completion of a prompt; a prompt whose rewards are all equal has no
    pair. λ is ``sft``.
    """

    Config = VRPOConfig
    config: VRPOConfig
    knobs: ClassVar[tuple[Changes, ...]] = ({"beta": 0.05}, {"beta": 1.0})
    pairs: ClassVar[bool] = True

    @property
    def reads_base(self) -> bool:
        """True: π_0 is the reference of the preference."""
        return True

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Return +1 for y_w, −1 for y_l, 0 for others."""
        return best_and_worst(reward, group)

    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return masks of a uniform number of positions, the same for π_θ and π_0."""
        return Planned(UniformCount(self.config.draws), end_id)

    @property
    def rows_per_rollout(self) -> int:
        """n_t."""
        return self.config.draws

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return the mean loss of the pairs; the sign of the credits marks the better completion."""
        config = self.config
        length = by_sequence(states.row_length, states)[:, 0]
        bound = bounds(policy.log_pi(states), states)
        gain = bound - bounds(policy.log_pi_0(states), states)
        if config.per_token:
            gain = gain / length
        margin = (weights.credit * gain).view(-1, 2).sum(1)
        pairs = states.batch_rows / states.draws / 2
        likelihood = (bound / length)[weights.credit > 0]
        value = -F.logsigmoid(config.beta * margin).sum() - config.sft * likelihood.sum()
        metrics = {"margin": margin.detach().sum() / pairs, "preferred": (margin > 0).sum() / pairs}
        return Loss(value / pairs, metrics)
