"""DTM training [Algorithm 1]: tilt by h, train until enough is absorbed, promote, repeat up to A.

while a < A (or until the budget is spent):
    open a phase:   rebuild the buffer from π_a (`Sampling`), choose h, fresh optimiser
    step:           one update of the student (`Learner`); refresh part of the buffer now and then
    close a phase:  π_a ← student (or its average), a ← a + h, evaluate

A baseline's iteration is a phase too: a counts iterations, the optimiser goes on, the buffer is not renewed
within, and nothing is absorbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from dtm.capacity.peak import forget_peak, peak_memory
from dtm.capacity.preflight import recomputed_blocks
from dtm.config import RunConfig
from dtm.config.budget import Budget, cooling_factor
from dtm.engine.collect import Collector
from dtm.errors import DivergedError, RewardError, require
from dtm.loop.annealing import (
    begins_to_cool,
    choose_step,
    final_tilt,
    is_to_be_measured,
    lr_factor,
    next_step,
    phase_is_over,
    phase_prompts,
    phase_steps,
    reason_to_stop,
)
from dtm.loop.build import build_device, build_lora, compiles, precision
from dtm.loop.learner import Learner
from dtm.loop.ledger import Ledger
from dtm.loop.progress import Progress
from dtm.loop.ranks import gather_all, global_log_z, start_accelerator
from dtm.loop.replay import Replay, prompt_offset
from dtm.loop.sampling import Sampling
from dtm.loop.state import pack, unpack
from dtm.masking import Interpolant
from dtm.methods import Baseline, Objective
from dtm.models.denoiser import Denoiser
from dtm.models.policy import Policy
from dtm.models.transformer import Transformer
from dtm.random import stream
from dtm.records import Rollouts
from dtm.runs.checkpoint import load_latest, save_checkpoint
from dtm.runs.events import Callback, Event
from dtm.runs.interrupts import Interrupted


class Trainer:
    """One run. Its whole state is `policy`, `optimizer`, `replay` and `progress`: a checkpoint's contents."""

    def __init__(
        self,
        config: RunConfig,
        base: Denoiser,
        collector: Collector,
        objective: Objective,
        interpolant: Interpolant,
        reward_range: float | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoints: Path | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        device = build_device(config)
        self.accelerator = start_accelerator(device, precision(config, device))
        self.device = self.accelerator.device
        self.config, self.collector = config, collector
        self.callbacks, self.checkpoints, self.between = callbacks, checkpoints, between
        self.budget = None if config.budget is None else Budget.parse(config.budget)
        self.baseline = objective if isinstance(objective, Baseline) else None
        require(
            (self.baseline is None) == (config.objective.baseline is None),
            f"the objective is {type(objective).__name__}, but objective.name is {config.objective.name}: "
            "the name decides whether the run anneals, so name the baseline there too",
        )
        if isinstance(base, Transformer):
            loaded = sum(parameter.nbytes for parameter in base.parameters())
            base.recompute = recomputed_blocks(config, collector.task, base.config, loaded)
        self.policy = Policy(
            base.to(self.device),
            config.optimizer.ema if self.baseline is None else None,
            lora=build_lora(config),
            merge=config.adapter.merge,
            keep_base=self.baseline is not None and self.baseline.reads_base,
            generator=stream(config.seed, "adapters"),
        )
        if compiles(config, self.device):
            self.policy.compile()
        self.policy.forward = self.accelerator.prepare(self.policy.student)
        self.learner = Learner(config, self.policy, objective, interpolant, reward_range, self.accelerator)
        self.sampling = Sampling(config, collector, self.policy, self.accelerator, between)
        self.ledger = Ledger([self.policy.student, self.policy.teacher, self.policy.base])
        self.optimizer = torch.optim.AdamW(
            self.policy.trained(),
            lr=config.optimizer.lr,
            betas=config.optimizer.betas,
            weight_decay=config.optimizer.weight_decay,
            fused=self.device.type == "cuda",
        )
        self.progress = Progress()
        self.replay: Replay | None = None
        self._clock = time.perf_counter()

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────

    def run(self) -> Progress:
        """Anneal until A, a plateau, or the end of the budget.

        A signal, a failing reward or a gradient that is not finite stops it earlier, and what the last
        step has reached is saved.
        """
        self._clock = time.perf_counter() - self.progress.seconds
        forget_peak(self.device)
        try:
            timed = self.budget is not None and self.budget.unit == "seconds"
            if timed and compiles(self.config, self.device):
                self._warm_up()
            while not (self.progress.h is None and self._is_finished()):
                self.between()
                self._advance()
                closed = self.progress.h is None and self.baseline is None  # iterations are too short to save
                if closed or self.progress.step % self.config.checkpoint.every == 0:
                    self.save()
        except (Interrupted, RewardError, DivergedError):
            self.save()
            raise
        if self.baseline is not None:
            self.save()
        self._look()
        self._emit("stopped", reason=self.progress.finished, tilt=self.progress.tilt)
        return self.progress

    def save(self) -> None:
        """Write a checkpoint of the current step."""
        self._look()
        if self.checkpoints is not None and self.accelerator.is_main_process:
            checkpoint = pack(self.policy, self.optimizer, self.replay, self.progress)
            step, phase = self.progress.step, self.progress.phase
            save_checkpoint(self.checkpoints, step, checkpoint, self.config.checkpoint.keep, phase)

    def _look(self) -> None:
        """Note what the clock and the machine say."""
        self.progress.seconds = time.perf_counter() - self._clock
        self.progress.peak_memory = max(self.progress.peak_memory, peak_memory(self.device))

    def resume(self, checkpoints: Path) -> None:
        """Continue from the newest whole checkpoint in the folder."""
        checkpoint = load_latest(checkpoints)
        self.replay, self.progress = unpack(checkpoint, self.policy, self.optimizer, self.device, self._hold)
        self._emit("resumed", phase=self.progress.phase, tilt=self.progress.tilt)

    def _advance(self) -> None:
        """One optimiser step, with the opening, refreshing or closing around it, all on the account."""
        progress, config = self.progress, self.config
        with self.ledger:
            replay = self.open_phase() if self.replay is None else self.replay
            if progress.phase_step == 0 and self._is_idle(replay):
                where = "in the buffer" if self.baseline is None else "within a group"
                if self.baseline is not None and self.baseline.pairs and self.accelerator.num_processes > 1:
                    where += " of one of the processes"
                self._close_phase(replay, f"no reward differs {where}: nothing to learn")
                return
            # After a stop between a phase's last step and its closing, only the closing is left to do.
            if not self._phase_has_ended():
                due = progress.phase_step > 0 and progress.phase_step % config.replay.refresh_every == 0
                if due and self.baseline is None:
                    replay.refresh(self._measure("refresh", config.replay.refresh_prompts, replay))
                if progress.cooling_from is None and begins_to_cool(
                    config, progress.phase_step, progress.surely_absorbed
                ):
                    progress.cooling_from = progress.phase_step
                self.step(replay)
            if self._phase_has_ended():
                early = progress.phase_step < phase_steps(config)
                reason = "absorbed enough" if early else "step limit"
                self._close_phase(replay, "budget spent" if self._spent_share() >= 1 else reason)

    def _phase_has_ended(self) -> bool:
        progress = self.progress
        over = phase_is_over(self.config, progress.phase_step, progress.cooling_from)
        return over or self._spent_share() >= 1

    def _spent_share(self) -> float:
        """How much of the budget is spent; 0 without one."""
        return 0.0 if self.budget is None else self.budget.share(self.progress.spent)

    # ── phases ───────────────────────────────────────────────────────────────────────────────────

    def open_phase(self) -> Replay:
        """Rebuild the whole buffer from π_a and begin a tilt by h, with a fresh optimiser.

        A baseline begins an iteration, with the optimiser it has.
        """
        progress, config = self.progress, self.config
        rollouts = self.sampling.collect("rebuild", phase_prompts(config), 0, progress, self._emit)
        wanted = 1.0
        if self.baseline is None:
            offset = prompt_offset(rollouts, config.objective.prompt_baseline)
            wanted = choose_step(config.tilt, gather_all(rollouts.reward - offset))
            self.optimizer.state.clear()
        h = next_step(progress.tilt, final_tilt(config), wanted)
        self.replay = self._hold(rollouts, h)
        progress.begin_phase(h)
        return self.replay

    def step(self, replay: Replay) -> None:
        """One update, on the account and told."""
        progress, config = self.progress, self.config
        lr = config.optimizer.lr * lr_factor(config, progress.phase_step, progress.cooling_from)
        lr *= cooling_factor(self._spent_share())
        numbers, norm = self.learner.update(self.optimizer, replay, progress, lr)
        progress.remember_control(
            numbers.pop("control_numerator", 0.0),
            numbers.pop("control_denominator", 0.0),
            config.objective.control_memory,
        )
        row = {**progress.place(), "phase_step": progress.phase_step, **numbers}
        progress.step += 1
        progress.phase_step += 1
        progress.spend(self.ledger.take() + self.sampling.cost())
        self._emit("step", **row, absorbed=progress.absorbed, ess=replay.ess, grad_norm=norm, lr=lr)

    def _measure(self, purpose: str, prompts: int, replay: Replay) -> Rollouts:
        """How much the phase has absorbed, on rollouts not trained on; these are handed on."""
        progress = self.progress
        fresh = self.sampling.collect(purpose, prompts, replay.next_group, progress, self._emit)
        absorbed = self.learner.absorbed(replay, fresh, progress.step)
        if absorbed is not None:
            progress.absorbed, progress.absorbed_error = absorbed
        return fresh

    def _close_phase(self, replay: Replay, reason: str) -> None:
        """Measure what was absorbed, tell of it, and promote the student to π_{a+h}."""
        progress = self.progress
        if progress.phase_step > 0 and self.baseline is None and self._spent_share() < 1:
            self._measure("closing", self.config.replay.closing_prompts, replay)
        progress.spend(self.ledger.take() + self.sampling.cost())
        self._emit(
            "phase",
            **progress.place(),
            steps=progress.phase_step,
            ess=replay.ess,
            absorbed=progress.absorbed,
            absorbed_error=progress.absorbed_error,
            available=replay.available,
            reward=float(replay.rollouts.reward.mean()),
            reason=reason,
        )
        self.policy.promote()
        self.replay = None
        progress.end_phase()
        if self.baseline is None:  # an iteration of a baseline is too short to judge by
            progress.audited = {}

    def _hold(self, rollouts: Rollouts, h: float) -> Replay:
        """A buffer for a tilt by h, with a baseline's credits."""
        credit = None if self.baseline is None else self.baseline.credit
        return Replay(rollouts, h, self.config.objective.prompt_baseline, global_log_z, credit)

    def _is_idle(self, replay: Replay) -> bool:
        """Whether the buffer has nothing to say: rewards that are equal, everywhere or within each group."""
        if self.baseline is None:
            return len(torch.unique(gather_all(replay.rollouts.reward))) == 1
        useful = gather_all(replay.weights.credit.any().float()[None])  # of each process
        return not bool(useful.all() if self.baseline.pairs else useful.any())

    # ── between phases, and before the first ─────────────────────────────────────────────────────

    def _is_finished(self) -> bool:
        """Measure the π_a just reached, and decide whether to go on."""
        progress, spent = self.progress, self._spent_share()
        if is_to_be_measured(self.config, progress, spent):
            self._evaluate()
        progress.finished = reason_to_stop(self.config, progress, spent)
        return progress.finished is not None

    def _evaluate(self) -> None:
        """Measure π_a on the held-out prompts."""
        result, progress = self.sampling.evaluate(), self.progress
        row = {"tilt": progress.tilt, **result.measures}
        if result.best is not None:
            row["best"] = result.best
        progress.evaluations.append(row)
        progress.measured_at = self._spent_share()
        self._emit("evaluation", **row)
        drawn = {"prompts": result.prompts, "completions": result.completions, "rewards": result.rewards}
        self._emit("samples", tilt=progress.tilt, **drawn)

    def _warm_up(self) -> None:
        """Let torch.compile build its kernels before the clock runs: passes of which nothing is kept.

        Kernels that an earlier run has left in torch's cache would otherwise be a head start.
        """
        replay = self._hold(self.sampling.rehearse(), 1.0)
        if self.baseline is None or not self._is_idle(replay):
            self.learner.rehearse(replay)

    def _emit(self, kind: Any, **values: Any) -> None:
        if self.accelerator.is_main_process:
            seconds = round(time.perf_counter() - self._clock, 3)
            row = {**values, **self.progress.spent, "seconds": seconds}
            for callback in self.callbacks:
                callback(Event(kind, self.progress.step, row))
