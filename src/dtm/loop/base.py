"""Interface of the outer loop: when phases end, the learning-rate schedule, and when to stop.

There are two implementations, `Anneal` and `Iterate`; a method names the one it needs. No other code depends
on which of the two a run has. Loops hold no state; `Progress` does.
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
    """The work of a whole run, if no phase ends early."""

    rollouts: int
    """Completions decoded, for buffers, refreshes and evaluations."""
    rows: int
    """Masked states of all updates."""

    def shared(self, processes: int) -> Work:
        """Return the work of one of several processes."""
        return Work(-(-self.rollouts // processes), -(-self.rows // processes))


class Loop(ABC):
    """The decisions of an outer loop."""

    own_fields: ClassVar[tuple[str, ...]]
    """Fields or sections of a configuration that only this loop reads."""
    measures_absorbed: ClassVar[bool]
    """Whether the absorbed share of each phase is measured on held-out rollouts."""
    saves_phases: ClassVar[bool]
    """Whether to write a checkpoint at the end of each phase."""

    def __init__(self, config: RunConfig, method: Method) -> None:
        self.config, self.method = config, method

    # ── sizes ────────────────────────────────────────────────────────────────────────────────────

    @property
    @abstractmethod
    def steps(self) -> int:
        """Largest number of optimiser steps of a phase."""

    @property
    @abstractmethod
    def prompts(self) -> int:
        """Number of prompts in a phase's buffer."""

    @property
    @abstractmethod
    def final(self) -> float:
        """Tilt (or iteration) at which the run ends; infinite with a budget."""

    @property
    @abstractmethod
    def ema(self) -> float | None:
        """Decay of the student's moving average; None: no average."""

    @abstractmethod
    def work(self) -> Work:
        """Rollouts and rows of the whole run, for estimates of its time."""

    # ── a phase ──────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def begin(self, rollouts: Rollouts, tilt: float, optimizer: torch.optim.Optimizer) -> float:
        """Prepare the optimiser for a new phase and return its step h."""

    @abstractmethod
    def idle_reason(self, replay: Replay) -> str | None:
        """Return the reason if the buffer has no learning signal; else None."""

    @abstractmethod
    def draw(
        self, replay: Replay, masking: Masking, mask_id: int, update: int, generator: torch.Generator
    ) -> tuple[MaskedStates, Weights]:
        """Draw a batch of masked states and its sequences' weights; ``update`` counts a phase's steps."""

    @abstractmethod
    def refreshes(self, phase_step: int) -> bool:
        """Return whether to refresh part of the buffer before this step."""

    def next_refresh(self, phase_step: int) -> int | None:
        """The step of a phase before which the buffer is renewed next; None: not in this phase."""
        later = range(phase_step + 1, self.steps)
        return next((step for step in later if self.refreshes(step)), None)

    @abstractmethod
    def reads_meter(self, phase_step: int) -> bool:
        """Return whether to measure the absorbed share before this step."""

    @abstractmethod
    def reason_to_land(self, absorbed: float, stalled: bool) -> str | None:
        """Return the reason to end a phase early, or None.

        ``absorbed`` is the share of the tilt that is surely absorbed; ``stalled``: it stopped rising.
        """

    @abstractmethod
    def phase_is_over(self, progress: Progress) -> bool:
        """Return whether the phase has landed or taken all its steps."""

    @abstractmethod
    def lr_factor(self, phase_step: int, landing_from: int | None = None) -> float:
        """Return the learning rate as a fraction of its peak; step 0 is the first of a phase."""

    @abstractmethod
    def cause(self, ess: float, absorbed: Reading | None, on_buffer: float | None) -> str | None:
        """Return the cause of a low absorbed share, and the remedy; None if it is not low, or unknown."""

    def check_room(self, spent: float) -> None:  # noqa: B027
        """Warn if the first phase has spent a large share of the budget; by default nothing."""

    # ── between phases ───────────────────────────────────────────────────────────────────────────

    def is_to_be_measured(self, progress: Progress, spent: float) -> bool:
        """Return whether to evaluate π_a between phases; ``spent`` is the share of the budget, or 0.

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
        """Return the reason to end the run between phases; None to continue."""
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
        """Return whether a resumed run ends at the tilt it has reached, and drops its unfinished phase.

        An end before that tilt is an error. So is one inside the unfinished phase, whose weights e^{hr} are
        those of the whole h. Messages show tilts with all digits: a rounded one would be an error again.
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
        """Describe the end of a run that has reached its last tilt or iteration."""

    @abstractmethod
    def place(self, tilt: float) -> str:
        """Describe the current tilt or iteration."""

    @abstractmethod
    def reached(self, tilt: float) -> str:
        """Describe the tilt or iterations that a finished run reached, for a model card."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Describe the phases (or iterations) and the rollouts of each, for a dry run."""

    @abstractmethod
    def status(self, values: Mapping[str, Any], step: int) -> str:
        """Format the live line after a step."""

    @abstractmethod
    def closing(self, values: Mapping[str, Any]) -> str | None:
        """Format a line for a phase that has ended; None: print no line."""


def has_plateaued(rewards: Sequence[float], patience: int | None) -> bool:
    """Return whether the last ``patience`` evaluations have no mean reward above the best one before."""
    if patience is None or len(rewards) <= patience:
        return False
    return max(rewards[-patience:]) <= max(rewards[:-patience])


def reading(share: float | None, error: float | None) -> str:
    """Format the absorbed share with its error; "not yet measurable" while the error is larger.

    >>> reading(0.64, 0.1), reading(0.021, 0.004), reading(0.05, 0.12)
    ('64% ± 10%', '2.1% ± 0.4%', 'not yet measurable')
    """
    if share is None or error is None or not error < abs(share):
        return "0%" if share == error == 0 else "not yet measurable"
    digits = 0 if error >= 0.01 else 1
    return f"{share:.{digits}%} ± {error:.{digits}%}"


def number(value: float | None, digits: int) -> str:
    """Format a number; a dash if it is not known yet, as after a resume in the middle of a phase."""
    return "–" if value is None else f"{value:.{digits}f}"
