"""The c-DTM objective on a batch of masked states  [eqs. 16, 17; SAR: eq. 34]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dtm import tilting
from dtm.models.policy import Policy
from dtm.objectives.control_variates import ControlVariate, adaptive
from dtm.records import Loss, MaskedStates, Phase, Weights


@final
@dataclass(frozen=True, slots=True)
class CDTM:
    """Weighted cross-entropy towards T_c = (c π_a + (e^{hr} − c) 1{x_1}) / e^{hr}."""

    control_variate: ControlVariate = adaptive
    """c̄ for each row; the minimiser π_{a+h} does not depend on it."""
    guard: bool = True
    """Drop the advantage term where π_θ/π_a has left e^{±h·range(r)}, which π_{a+h}/π_a never does."""

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Mean over the batch of (L_row / k) Σ_S w̄ CE(T_c ‖ π_θ), divided by the length."""
        log_pi = policy.log_pi(states)
        log_pi_a = policy.log_pi_a(states)
        x1, row = states.x1, states.row
        scale = states.row_weight[row] / states.batch_rows
        log_weight = weights.log_weight[row]
        control = self.control_variate(states, weights, phase)[row]

        with torch.no_grad():
            log_ratio = (log_pi - log_pi_a).gather(-1, x1[:, None]).squeeze(-1)
            gain = tilting.advantage(log_weight, control)
            bound = phase.step * phase.reward_range
            keep = (
                tilting.within_ratio_bound(log_ratio, gain, bound)
                if self.guard
                else torch.ones_like(gain).bool()
            )
        position_loss = tilting.c_dtm_cross_entropy(log_pi, log_pi_a, x1, log_weight, control, keep)
        value = (scale * position_loss).sum() / states.length
        return Loss(value, self._metrics(log_pi.detach(), log_pi_a, states, weights, row, keep, control))

    @torch.no_grad()
    def _metrics(
        self,
        log_pi: Float[Tensor, "N V"],
        log_pi_a: Float[Tensor, "N V"],
        states: MaskedStates,
        weights: Weights,
        row: Tensor,
        keep: Tensor,
        control: Tensor,
    ) -> dict[str, Tensor]:
        """Contributions to batch means: nats gained, guard hits, and the two sums behind adaptive c."""
        x1, log_weight = states.x1, weights.log_weight[row]
        scale = states.row_weight[row] / states.batch_rows
        numerator, denominator = tilting.control_moments(log_pi.exp(), log_pi_a.exp(), x1, log_weight.exp())
        # The gradient of a row carries its weight L/k, so its variance carries the square.
        squared = states.row_weight[row].square() / states.batch_rows
        share = scale / states.length
        return {
            "gained": (scale * tilting.gained_kl(log_pi, log_pi_a, x1, log_weight)).sum(),
            "guarded": (share * ~keep).sum(),
            "control": (share * control).sum(),
            "control_numerator": (squared * numerator).sum(),
            "control_denominator": (squared * denominator).sum(),
        }
