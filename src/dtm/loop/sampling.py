"""What a run asks of π_a: rollouts for its buffer, a few of them drawn twice to compare, and measures."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from dtm.config import RunConfig
from dtm.engine.collect import Collector, prompts_in_order
from dtm.evaluation.evaluate import Evaluation, evaluate
from dtm.loop.audit import Tally, audit
from dtm.loop.progress import Progress
from dtm.models.denoiser import Denoiser
from dtm.models.placement import Placement
from dtm.models.policy import Policy
from dtm.random import stream
from dtm.records import Prompts, Rollouts
from dtm.runs.events import Emit


@dataclass(frozen=True, slots=True)
class Sampling:
    """What every rollout of a run is drawn with; where the run stands is told with each request."""

    config: RunConfig
    collector: Collector
    policy: Policy
    placement: Placement

    def collect(
        self, purpose: str, prompts: int, first_group: int, progress: Progress, emit: Emit
    ) -> Rollouts:
        """Rewarded rollouts of π_a for the next so many training prompts, and the events that tell of them.

        ``progress`` moves on when all of them are there: a stop in mid-collection repeats the whole.
        """
        asked = self._prompts(progress.asked, prompts)
        noise = self._noise(f"{purpose} rollouts", progress.step)
        completions, tilt = self.config.replay.completions, progress.tilt
        with self.placement.autocast():
            audited, beyond = self._audit(purpose, asked, progress, emit)
            collector = self._collector(beyond)
            begin, teacher = time.perf_counter(), self._teacher(collector)
            collected = collector.collect(teacher, asked, completions, tilt, noise, first_group)
        progress.audited, progress.exact_because = audited, beyond
        progress.asked += prompts
        speed = (len(collected.rollouts) + collected.skipped) / (time.perf_counter() - begin)
        row = {"tilt": tilt, "purpose": purpose, "skipped": collected.skipped, "per_second": speed}
        emit("rollouts", **row, reward=float(collected.rollouts.reward.mean()))
        return collected.rollouts

    def rehearse(self) -> Rollouts:
        """Rollouts for a few prompts that no one is told of and nothing counts: for kernels to be built."""
        asked, completions = self._prompts(0, 8), self.config.replay.completions
        noise = self._noise("warm-up")
        with self.placement.autocast():
            teacher = self._teacher(self.collector)
            return self.collector.collect(teacher, asked, completions, 0.0, noise).rollouts

    def evaluate(self) -> Evaluation:
        """Measure π_a on the held-out prompts."""
        with self.placement.autocast():
            # By the configured decoder, also after a fallback: base and tuned are measured alike.
            teacher = self._teacher(self.collector)
            return evaluate(teacher, self.collector, self.config.evaluation, self.placement.device)

    def _audit(
        self, purpose: str, prompts: Prompts, progress: Progress, emit: Emit
    ) -> tuple[dict[str, Any], str | None]:
        """Continue the phase's comparison with exact decoding; and say why, if it is past a limit."""
        limits, completions = self.config.audit, self.config.replay.completions
        collector = self._collector(progress.exact_because)
        if not (collector.decoder.takes_shortcuts and limits.share > 0):
            return progress.audited, progress.exact_because
        rows = math.ceil(limits.share * len(prompts) * completions)
        noise = stream(self.config.seed, f"{purpose} audit", progress.step)
        teacher, exact = self._teacher(collector), self.policy.pi_a()
        found = audit(collector, teacher, exact, prompts.repeat(completions), rows, noise)
        tally = Tally(**progress.audited) + found
        beyond = tally.beyond(limits)
        emit("audit", tilt=progress.tilt, **tally.numbers(), falls_back=beyond)
        return asdict(tally), beyond

    def _collector(self, exact_because: str | None) -> Collector:
        """How rollouts are drawn: as configured, or without shortcuts once there is a reason."""
        if exact_because is None:
            return self.collector
        return replace(self.collector, decoder=self.collector.decoder.without_shortcuts)

    def _teacher(self, collector: Collector) -> Denoiser:
        """π_a, in eight bits if that is how rollouts are drawn."""
        return self.policy.pi_a(collector.decoder.fp8)

    def _prompts(self, first: int, count: int) -> Prompts:
        """Training prompts from the ``first`` on."""
        chunk, seed = self.config.replay.prompts, self.config.seed
        return prompts_in_order(self.collector.task, first, count, chunk, seed).to(self.placement.device)

    def _noise(self, purpose: str, step: int = 0) -> torch.Generator:
        return stream(self.config.seed, purpose, step, self.placement.device)
