"""The c-DTM objective on a batch of masked states  [eqs. 16, 17; SAR: eq. 34]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dtm import losses
from dtm.methods.control_variates import ControlVariate, adaptive
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights

HELD = 2**26
"""Logits, of four bytes each: 530 positions over a vocabulary of 126,464. A micro-batch of 24 rows scores 396
on average in blocks of 32; in parts it would meet the head twice."""


@final
@dataclass(frozen=True, slots=True)
class CDTM:
    """Weighted cross-entropy towards T_c = (c π_a + (e^{hr} − c) 1{x_1}) / e^{hr}."""

    control_variate: ControlVariate = adaptive
    """c̄ for each row; the minimiser π_{a+h} does not depend on it."""
    guard: bool = True
    """Drop the advantage term where π_θ/π_a has left e^{±h·range(r)}, which π_{a+h}/π_a never does."""

    held: int = HELD
    """Logits of one model that are held at a time; more positions are taken in parts, whose distributions
    are worked out again in the backward pass. Changes memory, never the loss."""

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Mean over the batch of (L_row / k) Σ_S w̄ CE(T_c ‖ π_θ), divided by the length."""
        row = states.row
        control = self.control_variate(states, weights, phase)
        scored = _Scored(
            policy.rows(states),
            policy.rows_a(states),
            states.x1,
            states.row_weight[row],
            weights.log_weight[row],
            control[row],
        )
        size = max(1, self.held // policy.student.vocab_size)
        if len(row) <= size:
            return self._part(policy, scored, states, phase)
        parts = [
            checkpoint(
                self._part,
                policy,
                scored.select(slice(start, start + size)),
                states,
                phase,
                use_reentrant=False,
            )
            for start in range(0, len(row), size)
        ]
        metrics = {
            name: torch.stack([part.metrics[name] for part in parts]).sum() for name in parts[0].metrics
        }
        return Loss(torch.stack([part.value for part in parts]).sum(), metrics)

    def _part(self, policy: Policy, scored: _Scored, states: MaskedStates, phase: Phase) -> Loss:
        """What some of the scored positions contribute."""
        log_pi = policy.student.log_pi(scored.student)
        with torch.no_grad():
            log_pi_a = policy.teacher.log_pi(scored.teacher)
            x1 = scored.x1[:, None]
            log_ratio = (log_pi.gather(-1, x1) - log_pi_a.gather(-1, x1)).squeeze(-1)
            gain = losses.advantage(scored.log_weight, scored.control)
            bound = phase.step * phase.reward_range
            keep = (
                losses.within_ratio_bound(log_ratio, gain, bound)
                if self.guard
                else torch.ones_like(gain).bool()
            )
        position_loss = losses.c_dtm_cross_entropy(
            log_pi, log_pi_a, scored.x1, scored.log_weight, scored.control, keep
        )
        value = (scored.row_weight / states.batch_rows * position_loss).sum() / states.length
        return Loss(value, _metrics(log_pi.detach(), log_pi_a, scored, states, keep))


@dataclass(frozen=True, slots=True)
class _Scored:
    """The scored positions: hidden states of student and π_a, and what the loss needs to know of each."""

    student: Float[Tensor, "N D"]
    teacher: Float[Tensor, "N D"]
    x1: Int[Tensor, " N"]
    row_weight: Float[Tensor, " N"]
    log_weight: Float[Tensor, " N"]
    control: Float[Tensor, " N"]

    def select(self, part: slice) -> _Scored:
        """Some of the positions."""
        return _Scored(*(getattr(self, name)[part] for name in self.__slots__))


@torch.no_grad()
def _metrics(
    log_pi: Float[Tensor, "N V"],
    log_pi_a: Float[Tensor, "N V"],
    scored: _Scored,
    states: MaskedStates,
    keep: Bool[Tensor, " N"],
) -> dict[str, Tensor]:
    """Contributions to batch means: nats gained, guard hits, and the two sums behind adaptive c."""
    scale = scored.row_weight / states.batch_rows
    weight = scored.log_weight.exp()
    numerator, denominator = losses.control_moments(log_pi.exp(), log_pi_a.exp(), scored.x1, weight)
    # The gradient of a row carries its weight L/k, so its variance carries the square.
    squared = scored.row_weight.square() / states.batch_rows
    share = scale / states.length
    return {
        "gained": (scale * losses.gained_kl(log_pi, log_pi_a, scored.x1, scored.log_weight)).sum(),
        "guarded": (share * ~keep).sum(),
        "control": (share * scored.control).sum(),
        "control_numerator": (squared * numerator).sum(),
        "control_denominator": (squared * denominator).sum(),
    }
