"""wd1 (arXiv 2507.08838): weighted likelihood in place of a policy ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.config import IteratingConfig
from dtm.config.method import Preset
from dtm.config.rules import AT_LEAST_ONE, POSITIVE, SHARE_BELOW_1, check_fields
from dtm.masking import FullMask, Masking, Planned
from dtm.methods.advantages import centred, softmax_credit
from dtm.methods.base import Changes, Method
from dtm.methods.surrogates import bounds
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class WD1Config(IteratingConfig):
    """wd1: likelihood weighted by softmax(A) − softmax(−A) of the group; no ratio, no old policy."""

    name: str = "wd1"
    preset: Preset = "fixed"
    """published: the loss is not divided by the length, so that the gradient's limit sets the step."""
    updates: int = 12
    """μ, the number of updates per set of rollouts; 8 for Sudoku."""
    psi: float = 1.0
    """ψ = 1/(λ + β), sharpness of the weights e^{±ψA}."""
    prompt_noise: float = 0.15
    """Probability that a prompt token is masked."""
    negatives: bool = True
    """Lower the likelihood of completions below the mean; false: use only the positive weights."""
    over: Literal["group", "buffer"] = "group"
    """Set over which the softmax is taken: the completions of a prompt, or the whole buffer."""

    def __post_init__(self) -> None:
        check_fields("method", self, updates=AT_LEAST_ONE, psi=POSITIVE, prompt_noise=SHARE_BELOW_1)


@final
class WD1(Method):
    r"""Mean over prompts of Σ_i (w⁻_i − w⁺_i) Φ_i / L, with w^± = softmax over the group of ±ψ A.

    Φ_i = Σ_{k≤n_i} log π_θ(o_ik | prompt) with everything masked. Only the student is evaluated.
    """

    Config = WD1Config
    config: WD1Config
    knobs: ClassVar[tuple[Changes, ...]] = ({"psi": 0.3}, {"psi": 3.0})

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Return K (w⁺ − w⁻)."""
        config = self.config
        over = group if config.over == "group" else torch.zeros_like(group)
        return softmax_credit(centred(reward, group), over, config.psi, config.negatives)

    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return masks of the whole completion and of some prompt tokens."""
        return Planned(FullMask(), end_id, self.config.prompt_noise)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return the loss, divided by the rows of the batch and, unless as published, by the length."""
        likelihood = bounds(policy.log_pi(states), states)
        length = 1 if self.config.preset == "published" else states.length
        value = -(weights.credit * likelihood).sum() / (states.batch_rows * length)
        return Loss(value, {"likelihood": likelihood.detach().sum() / states.batch_rows})
