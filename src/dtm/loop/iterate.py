"""The iterating loop of policy-gradient methods: rollouts of π_a, μ updates on them, π_a ← π_θ, repeat.

An iteration is a phase: `Progress.tilt` counts iterations, the optimiser keeps its moments, the learning rate
is constant, the buffer is not renewed within, and there is no tilt to absorb.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch

from dtm.config import RunConfig
from dtm.errors import require
from dtm.loop.base import Loop, Work, number
from dtm.loop.meter import Reading
from dtm.loop.progress import Progress
from dtm.loop.replay import Replay
from dtm.masking import Masking
from dtm.methods.base import Method
from dtm.records import MaskedStates, Rollouts, Weights


@final
class Iterate(Loop):
    """Iterations: draw the rollouts of one batch, then take the method's number of updates on them."""

    own_fields: ClassVar[tuple[str, ...]] = ("iterate",)
    measures_absorbed: ClassVar[bool] = False
    saves_phases: ClassVar[bool] = False

    def __init__(self, config: RunConfig, method: Method) -> None:
        super().__init__(config, method)
        name, seen, batch = config.method.name, self.completions_seen, config.optimizer.batch
        require(
            config.replay.completions > 1,
            f"{name} compares the completions of a prompt, and there is only one per prompt: add "
            "--replay.completions 6, or more",
        )
        require(
            seen <= batch,
            f"an update of {name} takes {seen} completions of a prompt, and optimizer.batch holds {batch}: "
            f"raise it to {seen} or a multiple",
        )

    @property
    def completions_seen(self) -> int:
        """Completions per prompt in an update: all, or the best and the worst."""
        return 2 if self.method.pairs else self.config.replay.completions

    @property
    def steps(self) -> int:
        """μ."""
        return self.method.updates

    @property
    def prompts(self) -> int:
        """Prompts per iteration: as many as fit a batch, so that every update uses all rollouts."""
        return self.config.optimizer.batch // self.completions_seen

    @property
    def final(self) -> float:
        """iterate.iterations."""
        return float(self.config.iterate.iterations) if self.config.budget is None else math.inf

    @property
    def ema(self) -> float | None:
        """None."""
        return None

    def work(self) -> Work:
        """One buffer and μ updates per iteration."""
        count, evaluation = self.config.iterate.iterations, self.config.evaluation
        evaluations = math.ceil(count / evaluation.every) + 1
        rows = self.steps * self.prompts * self.completions_seen * self.method.rows_per_rollout
        return Work(
            count * self.config.replay.completions * self.prompts
            + evaluations * evaluation.prompts * evaluation.completions,
            count * rows,
        )

    def begin(self, rollouts: Rollouts, tilt: float, optimizer: torch.optim.Optimizer) -> float:
        """Return 1: one iteration."""
        return 1.0

    def idle_reason(self, replay: Replay) -> str | None:
        """Return the reason if no completion has credit."""
        idle = not bool(replay.weights.credit.any())
        return "no reward differs within a group: nothing to learn" if idle else None

    def draw(
        self, replay: Replay, masking: Masking, mask_id: int, update: int, generator: torch.Generator
    ) -> tuple[MaskedStates, Weights]:
        """Draw whole groups; for pairs only the rollouts with credit."""
        rollouts, weights = replay.draw_groups(self.config.optimizer.batch, self.method.pairs, generator)
        return masking.states(rollouts, mask_id, generator, update), weights

    def refreshes(self, phase_step: int) -> bool:
        """Never."""
        return False

    def reads_meter(self, phase_step: int) -> bool:
        """Never."""
        return False

    def reason_to_land(self, absorbed: float, stalled: bool) -> str | None:
        """Return None; at the end of a budget the trainer lowers the rate (`budget.cooling_factor`)."""
        return None

    def phase_is_over(self, progress: Progress) -> bool:
        """Return whether all μ updates are taken."""
        return progress.phase_step >= self.steps

    def lr_factor(self, phase_step: int, landing_from: int | None = None) -> float:
        """Constant."""
        return 1.0

    def cause(self, ess: float, absorbed: Reading | None, on_buffer: float | None) -> str | None:
        """Return None: there is no tilt to absorb."""
        return None

    def arrived(self, progress: Progress) -> str:
        """Describe the end of a run that has done all iterations."""
        return f"finished {progress.phase} iterations"

    def place(self, tilt: float) -> str:
        """Iterations done."""
        return f"after {tilt:.0f} iterations"

    def reached(self, tilt: float) -> str:
        """Iterations done."""
        return f"iterations: {tilt:g}"

    def describe(self) -> dict[str, str]:
        """Describe the iterations and their rollouts."""
        budget, seen = self.config.budget, self.completions_seen
        count = (
            f"{self.config.iterate.iterations}"
            if budget is None
            else f"as many as a budget of {budget} allows"
        )
        drawn = f"{self.prompts} prompts × {self.config.replay.completions} completions"
        return {
            "iterations": f"{count}, each of {self.steps} updates",
            "rollouts per iteration": f"{drawn}, {seen} of each in an update",
        }

    def status(self, values: Mapping[str, Any], step: int) -> str:
        """Format iteration, reward and loss."""
        return (
            f"iteration {values['phase'] + 1}  step {step}  reward {number(values['reward'], 3)}  "
            f"loss {values['loss']:.4f}"
        )

    def closing(self, values: Mapping[str, Any]) -> str | None:
        """Return None: there are too many iterations to print each."""
        return None
