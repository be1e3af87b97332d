"""Training [Algorithm 1]: phases of rollouts and updates, until the loop says that a run is over.

while not finished:
    open a phase:   fill the buffer from π_a (`Sampling`), choose h
    step:           one update of the student (`Learner`); refresh part of the buffer every few steps
    close a phase:  π_a ← student (or its average), evaluate

The loop (`Anneal` or `Iterate`) decides how long a phase is, how the learning rate moves and when to stop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dtm.capacity.peak import forget_peak, peak_memory
from dtm.config.budget import Budget, cooling_factor
from dtm.errors import DivergedError, RewardError, require
from dtm.evaluation.reveals import mean_divergence
from dtm.loop.assembly import Assembly
from dtm.loop.learner import Learner
from dtm.loop.ledger import Ledger
from dtm.loop.meter import Meter, Reading
from dtm.loop.progress import Progress
from dtm.loop.replay import Replay
from dtm.loop.sampling import Sampling
from dtm.loop.state import pack, unpack
from dtm.random import stream
from dtm.records import Cost
from dtm.runs.checkpoint import load_latest, save_checkpoint, saved_on
from dtm.runs.events import Callback, Callbacks, Event
from dtm.runs.interrupts import Interrupted

SAVE_EVERY = 50
"""Steps between checkpoints where the configuration does not say."""
RECENT = 8
"""Latest evaluations that a checkpoint holds; metrics.jsonl has all."""


class Trainer:
    """One run. A checkpoint holds its state: `policy`, `optimizer`, `replay`, `meter` and `progress`."""

    def __init__(
        self,
        assembly: Assembly,
        *,
        callbacks: Sequence[Callback] = (),
        checkpoints: Path | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """``between`` is called at safe points and may raise `Interrupted` to stop."""
        self.group = assembly.group
        self.config, self.loop, self.device = assembly.config, assembly.loop, assembly.placement.device
        self.method, self.placement = assembly.method, assembly.placement
        self.callbacks, self.checkpoints, self.between = Callbacks(callbacks), checkpoints, between
        self.budget = None if self.config.budget is None else Budget.parse(self.config.budget)
        self.policy = assembly.new_policy()
        policy, masking, span = self.policy, assembly.masking, assembly.reward_range
        self.learner = Learner(
            self.config, policy, self.method, self.loop, masking, span, self.placement, self.group
        )
        self.optimizer = self.learner.new_optimizer()
        self.sampling = Sampling(assembly, policy, between)
        self.ledger = Ledger([policy.student, policy.teacher, policy.average, policy.base])
        self.progress = Progress()
        self.replay: Replay | None = None
        self.meter: Meter | None = None
        self._clock = time.perf_counter()

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────

    def run(self) -> Progress:
        """Train until the loop, a plateau, or the budget ends the run.

        A signal, a failing reward, a gradient that is not finite or a failed write stops it earlier; the last
        step is saved.
        """
        self._clock = time.perf_counter() - self.progress.seconds
        forget_peak(self.device)
        every = self.config.checkpoint.every or SAVE_EVERY
        timed = self.budget is not None and self.budget.unit == "seconds"
        try:
            with saved_on(self.save, Interrupted, RewardError, DivergedError):
                if timed and self.placement.compiles:  # else cached kernels would save a run time
                    self.learner.rehearse(self.sampling.rehearse())
                while not (self.progress.h is None and self._is_finished()):
                    self.group.together(self._check)
                    before = self.progress.step
                    self._advance()
                    closed = self.progress.h is None and self.loop.saves_phases
                    stepped = self.progress.step > before
                    if closed or (stepped and self.progress.step % every == 0):
                        self.save()
        finally:
            self.sampling.drop_ahead()
        self.save()
        self._emit("stopped", reason=self.progress.finished, tilt=self.progress.tilt)
        self.group.together(self.callbacks.check)
        return self.progress

    def save(self) -> None:
        """Write a checkpoint of the current step."""
        self.progress.seconds = time.perf_counter() - self._clock
        self.progress.peak_memory = max(self.progress.peak_memory, peak_memory(self.device))
        if self.checkpoints is not None:
            folder, step, phase = self.checkpoints, self.progress.step, self.progress.phase
            checkpoint = pack(self.policy, self.optimizer, self.replay, self.meter, self.progress)
            save_checkpoint(folder, step, checkpoint, self.config.checkpoint.keep, phase, self.group)

    def resume(self, checkpoints: Path) -> None:
        """Continue from the newest whole checkpoint in the folder."""
        parts = load_latest(checkpoints, self.group), self.policy, self.optimizer, self.device
        self.replay, self.meter, self.progress = unpack(*parts, self.learner.hold, self._meter_noise)
        if self.loop.discards_phase(self.progress):
            self.policy.revert()
            self.optimizer.state.clear()
            self.replay = self.meter = None
            self.progress.discard_phase()
        self._emit("resumed", phase=self.progress.phase, tilt=self.progress.tilt)

    def _advance(self) -> None:
        """Take one optimiser step, with the opening, refreshing or closing around it; charge the budget."""
        progress = self.progress
        with self.ledger:
            replay = self.open_phase() if self.replay is None else self.replay
            idle = self.loop.idle_reason(replay) if progress.phase_step == 0 else None
            if idle is not None:
                self._close_phase(replay, idle)
                return
            # After a stop between a phase's last step and its closing, only the closing is left to do.
            if not self._phase_has_ended():
                if self.loop.refreshes(progress.phase_step):
                    self._refresh(replay)
                begins = progress.phase_step == 0 or self.loop.refreshes(progress.phase_step)
                if begins and progress.landing is None:
                    self._draw_ahead()
                due = self.loop.reads_meter(progress.phase_step) and progress.read_at != progress.phase_step
                if progress.landing is None and due:
                    self._read_meter()
                    progress.read_at = progress.phase_step
                self.step(replay)
            if self._phase_has_ended():
                reason = "budget spent" if self._spent_share() >= 1 else progress.landing or "step limit"
                self._close_phase(replay, reason)

    def _refresh(self, replay: Replay) -> None:
        """Replace part of the buffer by new rollouts of π_a."""
        prompts, progress = self.config.replay.refresh_prompts, self.progress
        fresh = self.sampling.collect("refresh", prompts, replay.next_group, progress, self._emit)
        replay.refresh(self.learner.with_log_ratio(fresh, "refresh log-ratio", progress.step))

    def _draw_ahead(self) -> None:
        """Begin to draw the rollouts of the phase's next refresh, if there is one."""
        now = self.progress.phase_step
        following = self.loop.next_refresh(now)
        if following is not None:
            self.sampling.draw_ahead(self.config.replay.refresh_prompts, following - now, self.progress)

    def _phase_has_ended(self) -> bool:
        return self.loop.phase_is_over(self.progress) or self._spent_share() >= 1

    def _spent_share(self) -> float:
        """The share of the budget that is spent; 0 without one."""
        return 0.0 if self.budget is None else self.budget.share(self.progress.spent)

    # ── phases ───────────────────────────────────────────────────────────────────────────────────

    def open_phase(self) -> Replay:
        """Fill the buffer from π_a, keep held-out rollouts for the meter, and begin a phase."""
        progress, prompts = self.progress, self.loop.prompts
        measured = self.loop.measures_absorbed and self.config.replay.completions > 1
        aside = self.config.replay.held_out_prompts if measured else 0
        drawn = self.sampling.collect("rebuild", prompts + aside, 0, progress, self._emit)
        rollouts = drawn.select(drawn.group < prompts)
        nothing = f"the reward gave None for all completions of the {prompts} prompts of the buffer"
        require(len(rollouts) > 0, nothing, RewardError)
        h = self.loop.begin(rollouts, progress.tilt, self.optimizer)
        replay = self.learner.hold(self.learner.with_log_ratio(rollouts, "log-ratio", progress.phase), h)
        if self.loop.measures_absorbed:
            replay.check_weights()
            self.meter = Meter(drawn.select(drawn.group >= prompts), h, self._meter_noise(progress.phase))
        self.replay = replay
        progress.begin_phase(h, self.method.new_control())
        return replay

    def step(self, replay: Replay) -> None:
        """Run one update, charge the budget, emit an event."""
        progress, config = self.progress, self.config
        lr = config.optimizer.lr * self.loop.lr_factor(progress.phase_step, progress.landing_from)
        lr *= cooling_factor(self._spent_share())
        metrics, norm = self.learner.update(self.optimizer, replay, progress, lr)
        if "control_numerator" in metrics:
            progress.control.update(metrics.pop("control_numerator"), metrics.pop("control_denominator"))
        row = {**progress.place(), "phase_step": progress.phase_step, **metrics}
        progress.step += 1
        progress.phase_step += 1
        progress.spend(self._cost())
        share = {"absorbed": progress.absorbed, "absorbed_error": progress.absorbed_error}
        self._emit("step", **row, **share, ess=replay.ess, grad_norm=norm, lr=lr)

    def _cost(self) -> Cost:
        """Return the cost since the last call: passes of all processes, seconds of the first."""
        costs = self.group.gather(self.ledger.take() + self.sampling.cost())
        return sum((replace(cost, seconds=0.0) for cost in costs[1:]), costs[0])

    def _read_meter(self) -> Reading | None:
        """Measure how much of the phase's tilt is absorbed, and end the phase if that is enough."""
        progress = self.progress
        found = None if self.meter is None else self.learner.read(self.meter)
        if found is not None and self.meter is not None:
            share, error = found
            progress.absorbed, progress.absorbed_error = share, error if math.isfinite(error) else None
            reason = self.loop.reason_to_land(self.meter.surely_absorbed, self.meter.has_stalled)
            if reason is not None and progress.landing is None:
                progress.landing, progress.landing_from = reason, progress.phase_step
        return found

    def _absorbed_on(self, replay: Replay) -> float | None:
        """The share that is absorbed on as many rollouts of the buffer as the meter holds."""
        groups = torch.unique(replay.rollouts.group)[-self.config.replay.held_out_prompts :]
        rollouts = replay.rollouts.select(torch.isin(replay.rollouts.group, groups))
        found = self.learner.read(Meter(rollouts, replay.h, self._meter_noise(self.progress.phase)))
        return None if found is None else found[0]

    def _meter_noise(self, phase: int) -> torch.Generator:
        """The generator of a meter's choices, the same whenever it is made in a phase."""
        return stream(self.config.seed, "meter", phase, self.device)

    def _close_phase(self, replay: Replay, reason: str) -> None:
        """Measure the absorbed tilt, emit an event, and promote the student to π_a."""
        progress, found, on_buffer = self.progress, None, None
        self.sampling.drop_ahead()
        if progress.phase_step > 0 and self._spent_share() < 1:
            found = self._read_meter()
            if self.loop.cause(replay.ess, found, None) is not None:
                on_buffer = self._absorbed_on(replay)
        progress.spend(self._cost())
        self._emit(
            "phase",
            **progress.place(),
            steps=progress.phase_step,
            ess=replay.ess,
            absorbed=progress.absorbed,
            absorbed_error=progress.absorbed_error,
            cause=self.loop.cause(replay.ess, found, on_buffer),
            reward=float(replay.rollouts.reward.mean()),
            reason=reason,
            peak_memory=max(progress.peak_memory, peak_memory(self.device)),
        )
        if progress.phase == 0 and progress.phase_step > 0:
            self.loop.check_room(self._spent_share())
        self.policy.promote()
        self.replay = self.meter = None
        progress.end_phase()
        if self.loop.saves_phases:  # shorter phases are too short to judge decoding by
            progress.audited = {}

    # ── between phases, and before the first ─────────────────────────────────────────────────────

    def _is_finished(self) -> bool:
        """Evaluate the π_a just reached if it is due, and decide whether to stop."""
        progress, spent = self.progress, self._spent_share()
        if self.loop.is_to_be_measured(progress, spent):
            self._evaluate()
        progress.finished = self.loop.reason_to_stop(progress, spent)
        return progress.finished is not None

    def _evaluate(self) -> None:
        """Measure π_a on the held-out prompts."""
        result, progress = self.sampling.evaluate(), self.progress
        row = {"tilt": progress.tilt, **result.measures}
        if result.best is not None:
            row["best"] = result.best
        progress.measured(row, recent=max(RECENT, self.config.evaluation.patience or 0))
        progress.measured_at = self._spent_share()
        apart = mean_divergence(result.replays)
        self._emit("evaluation", **row, **({} if apart is None else {"kl_to_base": apart}))
        drawn = {"prompts": result.prompts, "completions": result.completions, "rewards": result.rewards}
        self._emit("samples", tilt=progress.tilt, **drawn, replays=result.replays)

    def _emit(self, kind: Any, **values: Any) -> None:
        seconds = round(time.perf_counter() - self._clock, 3)
        row = {**values, **self.progress.spent, "seconds": seconds}
        self.callbacks(Event(kind, self.progress.step, row))

    def _check(self) -> None:
        """Raise the error of a failed callback, or `Interrupted` after a signal, at a safe point."""
        self.callbacks.check()
        self.between()
