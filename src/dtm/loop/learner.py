"""One update of the student, and how far updates have brought it.

    batch      rows of the buffer, masked, and their weights
    gradient   of the objective on them, in parts that fit one forward pass and add up
    update     both, then the gradient is clipped and followed, and the average moves along

When to update, and at which learning rate, is the trainer's to say.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dtm.config import RunConfig
from dtm.errors import DivergedError, require
from dtm.loop.build import records
from dtm.loop.meter import gained_on
from dtm.loop.progress import Progress
from dtm.loop.ranks import mean_over_ranks, own_stream
from dtm.loop.replay import Replay
from dtm.masking import Interpolant
from dtm.methods import Baseline, Objective
from dtm.models.policy import Policy
from dtm.random import seeded
from dtm.records import MaskedStates, Phase, Rollouts, Weights

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True, slots=True)
class Learner:
    """What every update of a run is made with; where the run stands is told with each."""

    config: RunConfig
    policy: Policy
    objective: Objective
    interpolant: Interpolant
    reward_range: float | None
    """max r − min r where it is known; None: that of the buffer."""
    accelerator: Accelerator

    def update(
        self, optimizer: torch.optim.Optimizer, replay: Replay, progress: Progress, lr: float
    ) -> tuple[dict[str, float], float]:
        """One step on freshly masked rows: the numbers of its loss, and the norm of its whole gradient."""
        states, weights = self.batch(replay, progress)
        totals = self.gradient(states, weights, self.phase(replay, progress), progress.step)
        norm = float(self.accelerator.clip_grad_norm_(self.policy.trained(), self.config.optimizer.clip_norm))
        require(
            math.isfinite(norm),
            f"the gradient at step {progress.step} is not finite. The weights before it are saved; "
            "start again with a smaller --optimizer.lr or --tilt.step.",
            DivergedError,
        )
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad()
        self.policy.track()
        return mean_over_ranks(self.accelerator, totals), norm

    def batch(self, replay: Replay, progress: Progress) -> tuple[MaskedStates, Weights]:
        """Masked states of rows of the buffer, or of whole groups for a baseline, and their weights."""
        size, mask_id = self.config.optimizer.batch, self.policy.student.mask_id
        generator = own_stream(self.accelerator, self.config.seed, "batch", progress.step)
        if isinstance(self.objective, Baseline):
            rollouts, weights = replay.draw_groups(size, self.objective.pairs, generator)
            return self.interpolant.states(rollouts, mask_id, generator, progress.phase_step), weights
        rollouts, weights, factor = replay.draw(size, self.config.replay.priority, generator)
        states = self.interpolant.states(rollouts, mask_id, generator)
        return replace(states, row_weight=states.row_weight * factor), weights

    def phase(self, replay: Replay, progress: Progress) -> Phase:
        """What the objective is told of the phase."""
        assert progress.h is not None
        reward = replay.rollouts.reward
        span = float(reward.max() - reward.min()) if self.reward_range is None else self.reward_range
        return Phase(progress.phase, progress.tilt, progress.h, span, progress.control)

    def gradient(self, states: MaskedStates, weights: Weights, phase: Phase, step: int) -> dict[str, Tensor]:
        """Leave the gradient of a batch at the student's weights; the sums of its numbers over the parts."""
        self.policy.student.train()
        totals: dict[str, Tensor] = {}
        size = self._sequences_together(states)
        if self._records and states.attention is None:
            with self.accelerator.autocast():
                self.policy.record(states.select(slice(size)).tokens.shape)
        for start in range(0, states.sequences, size):
            part = slice(start, start + size)
            with self.accelerator.autocast(), self._dropout(start, step):
                loss = self.objective.loss(self.policy, states.select(part), weights.select(part), phase)
            self.accelerator.backward(loss.value)
            for name, value in {"loss": loss.value.detach(), **loss.metrics}.items():
                totals[name] = totals[name] + value if name in totals else value
        self.policy.student.eval()
        return totals

    def absorbed(self, replay: Replay, fresh: Rollouts, step: int) -> tuple[float, float | None] | None:
        """The fraction of the phase's available KL gained so far, and its standard error.

        None where nothing is available, or groups of one leave it unknown; no error from a single prompt.
        """
        if not replay.available > 0:
            return None
        noise = own_stream(self.accelerator, self.config.seed, "meter", step)
        gained, error = self._gained(replay, fresh, noise)
        local = {"gained": gained, "error": error, "available": replay.available}
        means = mean_over_ranks(self.accelerator, local)
        ranks = self.accelerator.num_processes
        error = means["error"] / means["available"] / ranks**0.5
        return means["gained"] / means["available"], error if math.isfinite(error) else None

    def rehearse(self, replay: Replay) -> None:
        """The passes of an update and of the meter, of which nothing is kept: for kernels to be built."""
        if not isinstance(self.objective, Baseline):
            noise = own_stream(self.accelerator, self.config.seed, "warm-up")
            self._gained(replay, replay.rollouts, noise)
        states, weights = self.batch(replay, Progress())
        self.gradient(states, weights, Phase(0, 0.0, 1.0, reward_range=1.0), step=0)
        self.policy.student.zero_grad()

    def _gained(self, replay: Replay, fresh: Rollouts, noise: torch.Generator) -> tuple[float, float]:
        """Nats gained over π_a, and the standard error (see `dtm.loop.meter`)."""
        log_weight, together = replay.log_weight(fresh), self.config.optimizer.rows
        with self.accelerator.autocast():
            return gained_on(self.policy, fresh, log_weight, self.interpolant, noise, together=together)

    def _sequences_together(self, states: MaskedStates) -> int:
        """Sequences in one forward pass: those whose rows fit, and never half a pair."""
        unit = 2 if isinstance(self.objective, Baseline) and self.objective.pairs else 1
        return max(self.config.optimizer.rows // (states.draws * unit), 1) * unit

    @property
    def _records(self) -> bool:
        """Whether passes are recorded and replayed.

        Replays of one process know nothing of the others, and recomputed blocks cannot be recorded.
        """
        return (
            records(self.config, self.accelerator.device)
            and self.accelerator.num_processes == 1
            and not getattr(self.policy.student, "recompute", 0)
        )

    def _dropout(self, part: int, step: int) -> AbstractContextManager[None]:
        """The noise of the adapters' dropout, where there is any."""
        if not self.config.adapter.dropout:
            return nullcontext()
        rank, device = self.accelerator.process_index, self.accelerator.device
        return seeded(self.config.seed, f"dropout {part}", step, rank, device)
