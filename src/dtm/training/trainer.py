"""DTM training [Algorithm 1]: tilt by h, train until enough is absorbed, promote, repeat up to A.

while a < A (or until the budget is spent):
    open a phase:   rebuild the buffer from π_a, choose h, fresh optimiser
    step:           draw rows, mask them, loss, update; refresh part of the buffer now and then
    close a phase:  π_a ← student (or its average), a ← a + h, evaluate

A baseline's iteration is a phase too: a counts iterations, the optimiser goes on, the buffer is not renewed
within, and nothing is absorbed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dtm.errors import DivergedError, RewardError, require
from dtm.evaluation.evaluate import evaluate
from dtm.interpolants import Interpolant
from dtm.models.denoiser import Denoiser
from dtm.models.policy import Policy
from dtm.models.transformer import Transformer
from dtm.objectives import Baseline, Objective
from dtm.random import seeded, stream
from dtm.records import MaskedStates, Phase, Prompts, Rollouts, Weights
from dtm.training.annealing import (
    begins_to_cool,
    choose_step,
    final_tilt,
    has_plateaued,
    lr_factor,
    next_step,
    phase_is_over,
    phase_steps,
)
from dtm.training.audit import Tally, audit
from dtm.training.budget import MEASURED, Budget, cooling_factor
from dtm.training.build import build_device, build_lora, compiles, precision, records
from dtm.training.checkpoint import load_latest, save_checkpoint
from dtm.training.config import RunConfig
from dtm.training.events import Callback, Event
from dtm.training.interrupts import Interrupted
from dtm.training.ledger import Ledger
from dtm.training.memory import forget_peak, peak_memory
from dtm.training.meter import gained_on
from dtm.training.preflight import recomputed_blocks
from dtm.training.progress import Progress
from dtm.training.ranks import gather_all, global_log_z, mean_over_ranks, start_accelerator
from dtm.training.replay import Replay, prompt_offset
from dtm.training.rollouts import Collected, Collector, prompts_in_order
from dtm.training.state import pack, unpack


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
    ) -> None:
        device = build_device(config)
        self.accelerator = start_accelerator(device, precision(config, device))
        self.device, self.rank = self.accelerator.device, self.accelerator.process_index
        self.config, self.collector, self.callbacks = config, collector, callbacks
        self.objective, self.interpolant, self.reward_range = objective, interpolant, reward_range
        self.checkpoints = checkpoints
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
            keep_base=self.baseline is not None and self.baseline.reads_base,
            generator=stream(config.seed, "adapters"),
        )
        if compiles(config, self.device):
            self.policy.compile()
        # Replays of one process know nothing of the others, and recomputed blocks cannot be recorded.
        self._is_to_record = (
            records(config, self.device)
            and self.accelerator.num_processes == 1
            and not getattr(base, "recompute", 0)
        )
        self.policy.forward = self.accelerator.prepare(self.policy.student)
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
            if (
                self.budget is not None
                and self.budget.unit == "seconds"
                and compiles(self.config, self.device)
            ):
                self._warm_up()
            while not (self.progress.h is None and self._is_finished()):
                self.collector.between()
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
        self.replay, self.progress = unpack(
            checkpoint,
            self.policy,
            self.optimizer,
            self.device,
            self._hold,
        )
        self._emit("resumed", phase=self.progress.phase, tilt=self.progress.tilt)

    def _advance(self) -> None:
        """One optimiser step, with the opening, refreshing or closing around it, all on the account."""
        progress, config = self.progress, self.config
        with self.ledger:
            replay = self._open_phase() if self.replay is None else self.replay
            if progress.phase_step == 0 and self._is_idle(replay):
                where = "in the buffer" if self.baseline is None else "within a group"
                self._close_phase(replay, f"no reward differs {where}: nothing to learn")
                return
            # After a stop between a phase's last step and its closing, only the closing is left to do.
            if not self._phase_has_ended():
                due = progress.phase_step > 0 and progress.phase_step % config.replay.refresh_every == 0
                if due and self.baseline is None:
                    self._refresh(replay)
                if progress.cooling_from is None and begins_to_cool(
                    config, progress.phase_step, progress.surely_absorbed
                ):
                    progress.cooling_from = progress.phase_step
                self._step(replay)
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

    def _open_phase(self) -> Replay:
        """Rebuild the whole buffer from π_a and begin a tilt by h, with a fresh optimiser.

        A baseline begins an iteration, with the optimiser it has.
        """
        progress, tilt = self.progress, self.config.tilt
        rollouts = self._collect("rebuild", self.config.replay.prompts, first_group=0).rollouts
        wanted = 1.0
        if self.baseline is None:
            offset = prompt_offset(rollouts, self.config.objective.prompt_baseline)
            wanted = choose_step(tilt, gather_all(rollouts.reward - offset))
            self.optimizer.state.clear()
        h = next_step(progress.tilt, final_tilt(self.config), wanted)
        self.replay = self._hold(rollouts, h)
        progress.h, progress.phase_step, progress.cooling_from = h, 0, None
        progress.absorbed = progress.absorbed_error = None
        progress.control_numerator = progress.control_denominator = 0.0
        return self.replay

    def _hold(self, rollouts: Rollouts, h: float) -> Replay:
        """A buffer for a tilt by h, with a baseline's credits."""
        credit = None if self.baseline is None else self.baseline.credit
        objective = self.config.objective
        return Replay(rollouts, h, objective.prompt_baseline, global_log_z, credit, objective.weight_cap)

    def _is_idle(self, replay: Replay) -> bool:
        """Whether the buffer has nothing to say: rewards that are equal, everywhere or within each group."""
        if self.baseline is None:
            return len(torch.unique(gather_all(replay.rollouts.reward))) == 1
        return not bool(gather_all(replay.weights.credit).any())

    def _refresh(self, replay: Replay) -> None:
        """Replace the oldest prompts of the buffer, after measuring progress on the fresh rollouts."""
        fresh = self._collect("refresh", self.config.replay.refresh_prompts, replay.next_group)
        self._measure(replay, fresh)
        replay.refresh(fresh.rollouts)

    def _close_phase(self, replay: Replay, reason: str) -> None:
        """Promote the student to π_{a+h} and measure it."""
        progress = self.progress
        assert progress.h is not None
        if progress.phase_step > 0 and self.baseline is None and self._spent_share() < 1:
            self._measure(
                replay, self._collect("closing", self.config.replay.closing_prompts, replay.next_group)
            )
        progress.spend(self.ledger.take())
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
        progress.tilt += progress.h
        progress.phase += 1
        progress.h, self.replay = None, None
        if self.baseline is None:  # an iteration of a baseline is too short to judge by
            progress.audited = {}

    def _is_finished(self) -> bool:
        """Between phases: measure the π_a just reached, and decide whether to go on."""
        progress, tilt = self.progress, self.config.tilt
        spent = self._spent_share() >= 1
        reached = progress.tilt >= final_tilt(self.config) - 1e-9
        measured = bool(progress.evaluations) and progress.evaluations[-1]["tilt"] == progress.tilt
        if not measured and (reached or spent or self._is_due()):
            self._evaluate()
        if spent:
            progress.finished = f"spent its budget of {self.config.budget}"
        elif reached and self.baseline is not None:
            progress.finished = f"went through {progress.phase} iterations"
        elif reached:
            progress.finished = f"reached the final tilt A = {tilt.final:g}"
        elif has_plateaued([row["reward"] for row in progress.evaluations], tilt.patience):
            progress.finished = f"held-out reward has not risen for {tilt.patience} phases"
        return progress.finished is not None

    def _is_due(self) -> bool:
        """Whether it is time to measure: so many phases, or so much of the budget, after the last time."""
        progress = self.progress
        if self.budget is None or not progress.evaluations:
            return progress.phase % self.config.evaluation.every == 0
        return self._spent_share() >= progress.measured_at + MEASURED

    # ── one step ─────────────────────────────────────────────────────────────────────────────────

    def _step(self, replay: Replay) -> None:
        """One update on freshly masked rows of the buffer."""
        progress, config = self.progress, self.config.optimizer
        states, weights = self._batch(replay)
        phase = self._phase(replay)
        lr = config.lr * lr_factor(self.config, progress.phase_step, progress.cooling_from)
        lr *= cooling_factor(self._spent_share())
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        totals = self._accumulate(states, weights, phase)
        norm = float(self.accelerator.clip_grad_norm_(self.policy.trained(), config.clip_norm))
        require(
            math.isfinite(norm),
            f"the gradient at step {progress.step} is not finite. The weights before it are saved; "
            "start again with a smaller --optimizer.lr or --tilt.step.",
            DivergedError,
        )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.policy.track()
        self._finish_step(replay, mean_over_ranks(self.accelerator, totals), norm, lr)

    def _accumulate(self, states: MaskedStates, weights: Weights, phase: Phase) -> dict[str, Tensor]:
        """The gradient of a batch, part by part, and the sums of its numbers."""
        self.policy.student.train()
        totals: dict[str, Tensor] = {}
        size = self._micro_batch(states)
        if self._is_to_record and states.attention is None:
            self._is_to_record = False
            with self.accelerator.autocast():
                self.policy.record(states.select(slice(size)).tokens.shape)
        for start in range(0, states.sequences, size):
            part = slice(start, start + size)
            with self.accelerator.autocast(), self._dropout(start):
                loss = self.objective.loss(self.policy, states.select(part), weights.select(part), phase)
            self.accelerator.backward(loss.value)
            for name, value in {"loss": loss.value.detach(), **loss.metrics}.items():
                totals[name] = totals[name] + value if name in totals else value
        self.policy.student.eval()
        return totals

    def _warm_up(self) -> None:
        """Let torch.compile build its kernels before the clock runs: passes of which nothing is kept.

        Kernels that an earlier run has left in torch's cache would otherwise be a head start.
        """
        config = self.config
        asked = prompts_in_order(self.collector.task, 0, 8, config.replay.prompts, config.seed, self.rank)
        noise = stream(config.seed, "warm-up", 0, self.rank, self.device)
        with self.accelerator.autocast():
            drawn = self.collector.collect(
                self._decoding_teacher(), asked.to(self.device), config.replay.completions, 0.0, noise
            )
        replay = self._hold(drawn.rollouts, 1.0)
        if self.baseline is None:
            log_weight = replay.log_weight(drawn.rollouts)
            with self.accelerator.autocast():
                gained_on(
                    self.policy,
                    drawn.rollouts,
                    log_weight,
                    self.interpolant,
                    noise,
                    together=config.optimizer.rows,
                )
        if self.baseline is None or not self._is_idle(replay):
            states, weights = self._batch(replay)
            self._accumulate(states, weights, Phase(0, 0.0, 1.0, reward_range=1.0))
            self.optimizer.zero_grad()

    def _dropout(self, part: int) -> AbstractContextManager[None]:
        """The noise of the adapters' dropout, where there is any."""
        if not self.config.adapter.dropout:
            return nullcontext()
        step = self.progress.step
        return seeded(self.config.seed, f"dropout {part}", step, self.rank, self.device)

    def _batch(self, replay: Replay) -> tuple[MaskedStates, Weights]:
        """Masked states of rows of the buffer, or of whole groups for a baseline, and their weights."""
        config, progress = self.config, self.progress
        generator = stream(config.seed, "batch", progress.step, self.rank, self.device)
        mask_id = self.policy.student.mask_id
        if self.baseline is not None:
            rollouts, weights = replay.draw_groups(config.optimizer.batch, self.baseline.pairs, generator)
            return self.interpolant.states(rollouts, mask_id, generator, progress.phase_step), weights
        rollouts, weights, factor = replay.draw(config.optimizer.batch, config.replay.priority, generator)
        states = self.interpolant.states(rollouts, mask_id, generator)
        return replace(states, row_weight=states.row_weight * factor), weights

    def _micro_batch(self, states: MaskedStates) -> int:
        """Sequences in one forward pass: those whose rows fit, and never half a pair."""
        config = self.config.optimizer
        unit = 2 if self.baseline is not None and self.baseline.pairs else 1
        return max(config.rows // (states.draws * unit), 1) * unit

    def _finish_step(self, replay: Replay, totals: dict[str, float], norm: float, lr: float) -> None:
        """Count the step, remember what adaptive c learnt from it, and report."""
        progress, memory = self.progress, self.config.objective.control_memory
        for name in ("control_numerator", "control_denominator"):
            setattr(progress, name, memory * getattr(progress, name) + (1 - memory) * totals.pop(name, 0.0))
        row = {**progress.place(), "phase_step": progress.phase_step, **totals, "absorbed": progress.absorbed}
        progress.step += 1
        progress.phase_step += 1
        progress.spend(self.ledger.take())
        self._emit("step", **row, ess=replay.ess, grad_norm=norm, lr=lr)

    def _phase(self, replay: Replay) -> Phase:
        progress = self.progress
        assert progress.h is not None
        reward = replay.rollouts.reward
        span = float(reward.max() - reward.min()) if self.reward_range is None else self.reward_range
        return Phase(progress.phase, progress.tilt, progress.h, span, progress.control)

    # ── rollouts, meters, ranks ──────────────────────────────────────────────────────────────────

    def _collect(self, purpose: str, prompts: int, first_group: int) -> Collected:
        """Rewarded rollouts of π_a for random training prompts."""
        progress, config = self.progress, self.config
        asked = prompts_in_order(
            self.collector.task, progress.asked, prompts, config.replay.prompts, config.seed, self.rank
        )
        noise = stream(config.seed, f"{purpose} rollouts", progress.step, self.rank, self.device)
        teacher = self._decoding_teacher()
        with self.accelerator.autocast():
            audited, beyond = self._audit(purpose, teacher, asked.to(self.device))
            begin = time.perf_counter()
            collected = self._collector(beyond).collect(
                teacher,
                asked.to(self.device),
                config.replay.completions,
                progress.tilt,
                noise,
                first_group,
            )
        # Only now: a stop in mid-collection repeats all of it.
        progress.audited, progress.exact_because = audited, beyond
        progress.asked += prompts
        speed = (len(collected.rollouts) + collected.skipped) / (time.perf_counter() - begin)
        row = {"tilt": progress.tilt, "purpose": purpose, "skipped": collected.skipped, "per_second": speed}
        self._emit("rollouts", **row, reward=float(collected.rollouts.reward.mean()))
        return collected

    def _collector(self, exact_because: str | None) -> Collector:
        """How rollouts are drawn: as configured, or without shortcuts once there is a reason."""
        if exact_because is None:
            return self.collector
        return replace(self.collector, decoder=self.collector.decoder.without_shortcuts)

    def _decoding_teacher(self) -> Denoiser:
        """π_a, with its adapter merged into the weights where that is wanted."""
        if not self.config.adapter.merge:
            return self.policy.teacher
        model = self.policy.merged_teacher()
        if isinstance(model, Transformer) and compiles(self.config, self.device):
            model.compile_blocks()
        return model

    def _audit(self, purpose: str, teacher: Denoiser, prompts: Prompts) -> tuple[dict[str, Any], str | None]:
        """Continue the phase's comparison with exact decoding; and say why, if it is past a limit."""
        progress, limits = self.progress, self.config.audit
        collector = self._collector(progress.exact_because)
        if not (collector.decoder.takes_shortcuts and limits.share > 0):
            return progress.audited, progress.exact_because
        rows = math.ceil(limits.share * len(prompts) * self.config.replay.completions)
        noise = stream(self.config.seed, f"{purpose} audit", progress.step, self.rank)
        repeated = prompts.repeat(self.config.replay.completions)
        tally = Tally(**progress.audited) + audit(collector, teacher, repeated, rows, noise)
        beyond = tally.beyond(limits)
        self._emit("audit", tilt=progress.tilt, **tally.numbers(), falls_back=beyond)
        return asdict(tally), beyond

    def _measure(self, replay: Replay, fresh: Collected) -> None:
        """The fraction of the phase's available KL gained so far, and its standard error."""
        if not replay.available > 0:  # nan for groups of one, or noise around nothing
            return
        noise = stream(self.config.seed, "meter", self.progress.step, self.rank, self.device)
        log_weight = replay.log_weight(fresh.rollouts)
        with self.accelerator.autocast():
            gained, error = gained_on(
                self.policy,
                fresh.rollouts,
                log_weight,
                self.interpolant,
                noise,
                together=self.config.optimizer.rows,
            )
        local = {"gained": gained, "error": error, "available": replay.available}
        means = mean_over_ranks(self.accelerator, local)
        self.progress.absorbed = means["gained"] / means["available"]
        self.progress.absorbed_error = (
            means["error"] / means["available"] / self.accelerator.num_processes**0.5
        )

    def _evaluate(self) -> None:
        """Measure π_a on the held-out prompts."""
        with self.accelerator.autocast():
            # By the configured decoder, also after a fallback: base and tuned are measured alike.
            result = evaluate(self._decoding_teacher(), self.collector, self.config.evaluation, self.device)
        row = {"tilt": self.progress.tilt, **result.measures}
        if result.best is not None:
            row["best"] = result.best
        self.progress.evaluations.append(row)
        self.progress.measured_at = self._spent_share()
        self._emit("evaluation", **row)
        drawn = {"prompts": result.prompts, "completions": result.completions, "rewards": result.rewards}
        self._emit("samples", tilt=self.progress.tilt, **drawn)

    def _emit(self, kind: Any, **values: Any) -> None:
        if self.accelerator.is_main_process:
            seconds = round(time.perf_counter() - self._clock, 3)
            row = {**values, **self.progress.spent, "seconds": seconds}
            for callback in self.callbacks:
                callback(Event(kind, self.progress.step, row))
