r"""Control variates c: the weight of π_a's own prediction in the target [eq. 17].

Any function of x_t leaves the minimiser and the whole population loss unchanged; only the variance changes.
All values here are c̄ = c / Z, in units of the buffer's mean weight. None may depend on the row's own x_1: a
row's own weight in its own c would shrink the step (docs/method.md, control variates).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from dtm.records import MaskedStates, Phase, Weights

ControlVariate = Callable[[MaskedStates, Weights, Phase], Float[Tensor, " B"]]
"""Function that returns c̄ per row of a batch, from x_t, the phase, and the *other* rollouts of the prompt."""


def zero(states: MaskedStates, weights: Weights, phase: Phase) -> Float[Tensor, " B"]:
    """c = 0: plain weighted likelihood. For ablations only; it drifts even with zero reward."""
    return torch.zeros_like(weights.log_weight)


def one(states: MaskedStates, weights: Weights, phase: Phase) -> Float[Tensor, " B"]:
    """c = 1, the paper's choice: c̄ = 1/Z. The target is a distribution as long as w ≥ 1.

    That is: r ≥ 0, and no prompt baseline. In float64, since w̄ − c̄ nearly cancels at small h.
    """
    return torch.full_like(weights.log_weight, -weights.log_z, dtype=torch.float64).exp()


def mean(states: MaskedStates, weights: Weights, phase: Phase) -> Float[Tensor, " B"]:
    """c = Z, the buffer's mean weight: c̄ = 1. Use it with the ratio guard only."""
    return torch.ones_like(weights.log_weight)


def leave_one_out(states: MaskedStates, weights: Weights, phase: Phase) -> Float[Tensor, " B"]:
    """c = the mean weight of the prompt's other completions; for groups of 16 and more."""
    return weights.peers


def adaptive(states: MaskedStates, weights: Weights, phase: Phase) -> Float[Tensor, " B"]:
    """c = the variance-minimising constant, in closed form from past batches (`losses.AdaptiveControl`)."""
    return torch.full_like(weights.log_weight, phase.control)


CONTROL_VARIATES: dict[str, ControlVariate] = {
    "zero": zero,
    "one": one,
    "mean": mean,
    "loo": leave_one_out,
    "adaptive": adaptive,
}
