"""The outer loop of a run as a policy: when phases end, how the learning rate moves, when to stop.

There are two, `Anneal` and `Iterate`; a method names the one it needs. They own all that differs between
them, so nothing else asks which of the two a run has. Policies hold no state; `Progress` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from dtm.config import RunConfig
from dtm.config.budget import MEASURED
from dtm.errors import require
from dtm.loop.meter import Reading
from dtm.loop.progress import Progress
from dtm.loop.replay import Replay
from dtm.masking import Masking
from dtm.methods.base import Method
from dtm.records import MaskedStates, Rollouts, Weights


@dataclass(frozen=True, slots=True)
class Work:
    """All that a run does up to its end if no phase ends early."""

    rollouts: int
    """Completions decoded, for buffers, refreshes and evaluations."""
    rows: int
    """Masked states of all updates."""

    def shared(self, processes: int) -> Work:
        """The part of one of several processes."""
        return Work(-(-self.rollouts // processes), -(-self.rows // processes))


class Loop(ABC):
    """The decisions of an outer loop."""

    own_fields: ClassVar[tuple[str, ...]]
    """Fields, or sections, of a configuration that this loop alone reads."""
    measures_absorbed: ClassVar[bool]
    """Whether phases have a tilt to absorb, which is measured on rollouts held aside."""
    saves_phases: ClassVar[bool]
    """Whether the end of each phase is worth a checkpoint."""

    def __init__(self, config: RunConfig, method: Method) -> None:
        self.config, self.method = config, method

    # ── sizes ────────────────────────────────────────────────────────────────────────────────────

    @property
    @abstractmethod
    def steps(self) -> int:
        """Optimiser steps after which a phase ends in any case."""

    @property
    @abstractmethod
    def prompts(self) -> int:
        """Prompts of a phase's buffer."""

    @property
    @abstractmethod
    def final(self) -> float:
        """The tilt (or iteration) at which the run ends; infinite with a budget, which then decides."""

    @property
    @abstractmethod
    def ema(self) -> float | None:
        """Decay of the student's moving average; None: no average."""

    @abstractmethod
    def work(self) -> Work:
        """Rollouts and rows of the whole run, for forecasts."""

    # ── a phase ──────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def begin(self, rollouts: Rollouts, tilt: float, optimizer: torch.optim.Optimizer) -> float:
        """Prepare the optimiser for a new phase and return its step h."""

    @abstractmethod
    def idle_reason(self, replay: Replay) -> str | None:
        """Why the buffer has nothing to learn from; None: it has."""

    @abstractmethod
    def draw(
        self, replay: Replay, masking: Masking, mask_id: int, update: int, generator: torch.Generator
    ) -> tuple[MaskedStates, Weights]:
        """A batch of masked states and the weights of its sequences; ``update`` counts a phase's steps."""

    @abstractmethod
    def refreshes(self, phase_step: int) -> bool:
        """Whether part of the buffer is renewed before this step."""

    def next_refresh(self, phase_step: int) -> int | None:
        """The step of a phase before which the buffer is renewed next; None: not in this phase."""
        later = range(phase_step + 1, self.steps)
        return next((step for step in later if self.refreshes(step)), None)

    @abstractmethod
    def reads_meter(self, phase_step: int) -> bool:
        """Whether the absorbed share is measured before this step."""

    @abstractmethod
    def reason_to_land(self, absorbed: float, stalled: bool) -> str | None:
        """Why a phase should end early; None: it goes on.

        ``absorbed`` is the share of the tilt that is surely absorbed; ``stalled``: it no longer rises.
        """

    @abstractmethod
    def phase_is_over(self, progress: Progress) -> bool:
        """Whether the phase has landed or taken all its steps."""

    @abstractmethod
    def lr_factor(self, phase_step: int, landing_from: int | None = None) -> float:
        """The learning rate as a fraction of its peak; step 0 is the first of a phase."""

    @abstractmethod
    def cause(self, ess: float, absorbed: Reading | None, on_buffer: float | None) -> str | None:
        """Why a phase has absorbed little, and the remedy; None: it has not, or that is not known."""

    def check_room(self, spent: float) -> None:  # noqa: B027
        """Warn if the first phase has spent a large share of the budget; by default nothing."""

    # ── between phases ───────────────────────────────────────────────────────────────────────────

    def is_to_be_measured(self, progress: Progress, spent: float) -> bool:
        """Whether to evaluate π_a between phases; ``spent`` is the share of the budget, 0 without one.

        The last π_a is evaluated, and others after so many phases or so much of the budget; none twice.
        """
        evaluations = progress.evaluations
        if evaluations and evaluations[-1]["tilt"] == progress.tilt:
            return False
        if spent >= 1 or self._has_arrived(progress):
            return True
        if self.config.budget is None or not evaluations:
            return progress.phase % self.config.evaluation.every == 0
        return spent >= progress.measured_at + MEASURED

    def reason_to_stop(self, progress: Progress, spent: float) -> str | None:
        """Why a run ends between phases; None: it goes on."""
        patience = self.config.evaluation.patience
        if spent >= 1:
            return f"spent its budget of {self.config.budget}"
        if self._has_arrived(progress):
            return self.arrived(progress)
        if has_plateaued([row["reward"] for row in progress.evaluations], patience):
            return f"held-out reward has not risen for {patience} evaluations"
        return None

    def _has_arrived(self, progress: Progress) -> bool:
        return progress.tilt >= self.final - 1e-9

    def discards_phase(self, progress: Progress) -> bool:
        """Whether a resumed run ends at the tilt it has reached, so that its unfinished phase is discarded.

        An end before that tilt is refused. So is one inside the unfinished phase, whose weights e^{hr} are
        those of the whole h. Tilts are told with all digits: a rounded one would be refused again.
        """
        reached, end = progress.tilt, self.final
        require(
            end >= reached - 1e-9,
            f"the run has reached {reached!r}: it can end there or later, not at {end!r}",
        )
        if progress.h is None:
            return False
        towards = reached + progress.h
        require(
            self._has_arrived(progress) or end >= towards - 1e-9,
            f"the run was stopped on its way from {reached!r} to {towards!r}, and cannot end at {end!r} "
            f"between the two: end it at {reached!r} or at {towards!r}",
        )
        return self._has_arrived(progress)

    # ── words ────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def arrived(self, progress: Progress) -> str:
        """How a run that has reached its end is described."""

    @abstractmethod
    def place(self, tilt: float) -> str:
        """Where a run stands."""

    @abstractmethod
    def reached(self, tilt: float) -> str:
        """How far a finished run came, for a model card."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Phases (or iterations) and the rollouts of each, for a dry run."""

    @abstractmethod
    def status(self, values: Mapping[str, Any], step: int) -> str:
        """The live line after a step."""

    @abstractmethod
    def closing(self, values: Mapping[str, Any]) -> str | None:
        """A line for a phase that has ended; None: not worth one."""


def has_plateaued(rewards: Sequence[float], patience: int | None) -> bool:
    """Whether the last ``patience`` evaluations brought no mean reward above the best one before."""
    if patience is None or len(rewards) <= patience:
        return False
    return max(rewards[-patience:]) <= max(rewards[:-patience])


def reading(share: float | None, error: float | None) -> str:
    """The absorbed share with its error; while the error is the larger, only that.

    >>> reading(0.64, 0.1), reading(0.021, 0.004), reading(0.05, 0.12)
    ('64% ± 10%', '2.1% ± 0.4%', 'not yet measurable')
    """
    if share is None or error is None or not error < abs(share):
        return "0%" if share == error == 0 else "not yet measurable"
    digits = 0 if error >= 0.01 else 1
    return f"{share:.{digits}%} ± {error:.{digits}%}"


def number(value: float | None, digits: int) -> str:
    """A number; a dash where it is not known yet, as after a resume in the middle of a phase."""
    return "–" if value is None else f"{value:.{digits}f}"
