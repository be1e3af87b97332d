r"""Measure the absorbed share of a phase: how much of h the student has learned (`dtm.tilts.absorbed_share`).

It needs ℓ = log ρ_θ/ρ_a of held-out rollouts: on rows of the training buffer the share would be too high.
Along the order in which the decoder revealed a rollout, ℓ is a sum over its steps:

    ℓ = Σ_s ℓ_s,   ℓ_s = Σ_{i revealed at s} log π_θ(x_1^i | x_s) − log π_a(x_1^i | x_s).

A few steps of each rollout are drawn, more often those with a token of low probability under π_a: at the
others both models agree. Rollouts, steps and the passes of π_a are the same for all readings of a phase. So
an untrained student reads exactly 0, and the difference of two readings has a smaller error than each.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dtm import tilts
from dtm.distributed import ALONE, Group
from dtm.masking import choose_steps, visited
from dtm.methods.advantages import tied
from dtm.models.denoiser import Denoiser
from dtm.models.policy import Policy
from dtm.records import Rollouts

STATES = 2
"""Decoding steps drawn per rollout."""
FEWEST = 4
"""Fewest prompts with different rewards for which the error of a reading is known."""
PATIENCE = 3
"""Number of readings without a rise after which a phase ends."""

Reading = tuple[float, float]
"""The absorbed share and its standard error."""


@final
class Meter:
    """Held-out rollouts of π_a of one phase, and the student's log-ratios on them at each reading."""

    def __init__(self, rollouts: Rollouts, h: float, generator: torch.Generator) -> None:
        # Prompts whose completions all have the same reward do not change a reading.
        self.rollouts, self.h = rollouts.select(~tied(rollouts.reward, rollouts.group)), h
        self.step, self.weight = choose_steps(self.rollouts, STATES, generator)
        self.before: Float[Tensor, " N"] | None = None
        """The estimate of log ρ_a."""
        self.ratios: list[Float[Tensor, " N"]] = []
        """ℓ at each reading."""

    def read(self, policy: Policy, together: int, group: Group = ALONE) -> Reading | None:
        """Measure the model that becomes the next π_a; None if rewards do not differ within any prompt.

        ``together`` rows share a forward pass; the processes of ``group`` share the passes. π_a runs with an
        unmerged adapter like the student, so that both have the same rounding.
        """
        if not len(self.rollouts):
            return None
        if self.before is None:
            with policy.gathered(policy.teacher):
                self.before = self._log_prob(policy.teacher, together, group)
        with policy.gathered(policy.successor):
            self.ratios.append(self._log_prob(policy.successor, together, group) - self.before)
        return self._share(self.ratios[-1])

    @property
    def surely_absorbed(self) -> float:
        """Lower of the last two readings, each minus its standard error; −∞ before the second reading.

        One reading is not enough: the first updates of a phase can overshoot its tilt and fall back.
        """
        if len(self.ratios) < 2:
            return -math.inf
        return min(share - error for share, error in map(self._share, self.ratios[-2:]))

    @property
    def has_stalled(self) -> bool:
        """Return whether the share is above 0 and has stopped rising, within the error of the rise."""
        if len(self.ratios) <= PATIENCE:
            return False
        latest = self.ratios[-1]
        (share, error), (rise, rise_error) = (
            self._share(latest),
            self._share(latest - self.ratios[-1 - PATIENCE]),
        )
        return share > 2 * error and rise <= rise_error

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that `restored` needs besides the arguments of the phase."""
        saved = self.rollouts.tensors()
        if self.before is not None:
            saved |= {"before": self.before, "ratios": torch.stack(self.ratios)}
        return saved

    @classmethod
    def restored(cls, state: dict[str, Tensor], tilt: float, h: float, generator: torch.Generator) -> Meter:
        """Return the meter of a saved `state`; ``generator`` is the one that the meter was made with."""
        rollouts = {name: tensor for name, tensor in state.items() if name not in ("before", "ratios")}
        meter = cls(Rollouts(**rollouts, tilt=tilt), h, generator)
        if "before" in state:
            meter.before, meter.ratios = state["before"], list(state["ratios"])
        return meter

    def _share(self, log_ratio: Float[Tensor, " N"]) -> Reading:
        """Return the share and its error, infinite with few prompts. On the CPU, for a fixed sum order."""
        reward, group = self.rollouts.reward.cpu(), self.rollouts.group.cpu()
        share, error = tilts.absorbed_share(log_ratio.cpu(), reward, group, self.h)
        return share, error if len(torch.unique(group)) >= FEWEST else math.inf

    @torch.no_grad()
    def _log_prob(self, model: Denoiser, together: int, group: Group) -> Float[Tensor, " N"]:
        """Estimate each rollout's log-probability along the order in which it was revealed.

        The states of a rollout share a pass, so its sum does not depend on the number of processes.
        """
        found = torch.zeros(len(self.rollouts), dtype=torch.float64, device=self.step.device)
        row = torch.arange(len(self.rollouts), device=self.step.device).repeat_interleave(self.step.shape[1])
        step, weight = self.step.flatten(), self.weight.flatten()
        rows = max(1, together // STATES) * STATES
        parts = torch.split(torch.arange(len(row), device=row.device), rows)
        own = group.share(len(parts))
        for part in parts[own.start : own.stop]:
            states = visited(self.rollouts.select(row[part]), step[part], model.mask_id)
            hidden = model(states.tokens, states.attention, states.scored, head=False)
            log_prob = model.log_prob(hidden, states.x1).double()
            found.index_add_(0, row[part][states.row], weight[part][states.row] * log_prob)
        return found if group.size == 1 else sum(group.gather(found.cpu()), torch.zeros(())).to(found.device)
