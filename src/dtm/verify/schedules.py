r"""Unmasking schedules α(t) and their hazards λ(t) = α'(t) / (1 − α(t)).

A position is still masked at time t with probability 1 − α(t); λ(t) dt is the chance that a masked
position is revealed in [t, t + dt]. The objective in mask-count form (C) does not depend on α at
all (docs/method.md, section 2); schedules exist to state the paper's form (A) and to check that they agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Curve = Callable[[Float[Tensor, " T"]], Float[Tensor, " T"]]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A smooth increasing α with α(0) = 0 and α(1) = 1, and its derivative."""

    alpha: Curve
    slope: Curve

    def hazard(self, t: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        r"""λ(t) = α'(t) / (1 − α(t))."""
        return self.slope(t) / (1 - self.alpha(t))


SCHEDULES: dict[str, Schedule] = {
    "linear": Schedule(lambda t: t, torch.ones_like),
    "quadratic": Schedule(lambda t: t**2, lambda t: 2 * t),
    "sine": Schedule(
        lambda t: torch.sin(torch.pi * t / 2) ** 2,
        lambda t: torch.pi / 2 * torch.sin(torch.pi * t),
    ),
    "cubic": Schedule(lambda t: 1 - (1 - t) ** 3, lambda t: 3 * (1 - t) ** 2),
}
"""The four schedules on which the three forms of the objective are shown to agree."""
