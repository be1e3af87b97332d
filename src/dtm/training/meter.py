"""The progress meter of a phase, measured on rollouts that have not been trained on."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dtm import tilting
from dtm.interpolants import Interpolant
from dtm.models.policy import Policy
from dtm.records import Rollouts

ROWS = 256
"""Masked states in one forward pass of the meter."""


@torch.no_grad()
def gained_on(
    policy: Policy,
    rollouts: Rollouts,
    log_weight: Float[Tensor, " N"],
    interpolant: Interpolant,
    generator: torch.Generator,
    masks: int = 4,
) -> tuple[float, float]:
    """Nats per sequence that the student has gained over π_a towards ρ_{1,a+h}, and its standard error.

    Rows of the training buffer flatter the student, which has seen them; fresh ones do not.
    """
    rows = torch.arange(len(rollouts), device=rollouts.tokens.device).repeat(masks)
    gains: list[Tensor] = []
    for part in torch.split(rows, ROWS):
        chosen = rollouts.select(part)
        states = interpolant.states(chosen, policy.student.mask_id, generator)
        log_pi = policy.log_pi(states)
        log_pi_a = policy.log_pi_a(states)
        row = states.eligible.nonzero()[:, 0]
        gain = tilting.gained_kl(log_pi, log_pi_a, states.clean[states.eligible], log_weight[part][row])
        gains.append(
            torch.zeros(len(part), device=gain.device).index_add(0, row, states.row_weight[row] * gain)
        )
    by_rollout = torch.cat(gains).view(masks, -1).mean(0)
    return float(by_rollout.mean()), float(by_rollout.std() / len(by_rollout) ** 0.5)
