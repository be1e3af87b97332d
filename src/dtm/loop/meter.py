"""The progress meter of a phase, measured on rollouts that have not been trained on."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dtm import losses
from dtm.distributed import ALONE, Group
from dtm.masking import Masking
from dtm.models.policy import Policy
from dtm.records import Rollouts


@torch.no_grad()
def gained_on(
    policy: Policy,
    rollouts: Rollouts,
    log_weight: Float[Tensor, " N"],
    masking: Masking,
    generator: torch.Generator,
    *,
    together: int,
    masks: int = 4,
    group: Group = ALONE,
) -> tuple[float, float]:
    """Nats per sequence that the student has gained over π_a towards ρ_{1,a+h}, and its standard error.

    Rows of the training buffer flatter the student, which has seen them; fresh ones do not. The mean
    does not depend on the control variate c̄, so the c̄ with the least variance is used: the slope of
    the plain estimate (c̄ = 0) on what c̄ multiplies. The error is that of the gain alone; what is
    available has one of its own. Of a single prompt it is infinite. ``together`` rows share a forward pass;
    these passes are shared out in the ``group``, and their masks are drawn by all.
    """
    rows = torch.arange(len(rollouts), device=rollouts.tokens.device).repeat(masks)
    parts: list[Tensor] = []
    split = torch.split(rows, together)
    own = group.share(len(split))
    for number, part in enumerate(split):
        chosen = rollouts.select(part)
        states = masking.states(chosen, policy.student.mask_id, generator)
        if number not in own:
            continue
        log_pi, log_pi_a, x1, row = policy.log_pi(states), policy.log_pi_a(states), states.x1, states.row
        both = [
            losses.gained_kl(log_pi, log_pi_a, x1, log_weight[part][row], control) for control in (0.0, 1.0)
        ]
        shares = states.weight[:, None] * torch.stack(both, dim=1)
        parts.append(
            torch.zeros(len(part), 2, device=shares.device, dtype=shares.dtype).index_add(0, row, shares)
        )
    if group.size > 1:
        gathered = group.gather([part.cpu() for part in parts])
        parts = [part.to(rows.device) for parts in gathered for part in parts]
    plain, controlled = torch.cat(parts).view(masks, -1, 2).mean(0).double().unbind(1)
    multiplied = plain - controlled
    spread = multiplied - multiplied.mean()
    slope = (spread * plain).sum() / spread.square().sum().clamp(min=1e-12)
    estimate = plain - slope * multiplied
    # Completions of one prompt are not independent: the error is that of the sums over prompts.
    _, member = torch.unique(rollouts.group, return_inverse=True)
    residual = estimate - estimate.mean()
    by_prompt = torch.zeros(int(member.max()) + 1, dtype=residual.dtype, device=residual.device)
    error = by_prompt.index_add(0, member, residual).square().sum().sqrt() / len(estimate)
    return float(estimate.mean()), float(error) if len(by_prompt) > 1 else math.inf
