"""All draws of a run from π_a: rollouts for its buffer, audits of approximations, evaluations."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch

from dtm.engine import Decoder, RolloutEngine
from dtm.engine.collect import Collector, Drawn, prompts_in_order
from dtm.evaluation.evaluate import Evaluation, evaluate, evaluation_decoder
from dtm.loop.ahead import Ahead
from dtm.loop.assembly import Assembly
from dtm.loop.audit import Tally, audit
from dtm.loop.progress import Progress
from dtm.models.policy import Policy
from dtm.models.transformer import Transformer
from dtm.random import derived_seed
from dtm.records import Cost, Prompts, Rollouts
from dtm.runs.events import Emit


class Sampling:
    """The engines of a run: the configured one, an exact one for audits and fallbacks, one to evaluate."""

    def __init__(
        self, assembly: Assembly, policy: Policy, between: Callable[[], None] = lambda: None
    ) -> None:
        self.config, self.policy, self.placement = assembly.config, policy, assembly.placement
        self.collector = assembly.collector(between)
        self.engine = self.collector.engine

        def engine_of(decoder: Decoder) -> RolloutEngine:
            return self.engine if decoder == assembly.decoder else assembly.engine(decoder, between)

        self.exact = engine_of(assembly.decoder.without_shortcuts)
        self._ahead, self._used = Ahead(), Cost()

        def between_ahead() -> None:
            self._ahead.check()
            between()

        self._spare = assembly.engine(assembly.decoder, between_ahead)
        self._spare_collector = replace(self.collector, engine=self._spare, between=between_ahead)
        # The configured decoder, also after a fallback: base and tuned model are measured in the same way.
        self.evaluator = engine_of(evaluation_decoder(assembly.decoder, self.config.evaluation))

    def collect(
        self, purpose: str, prompts: int, first_group: int, progress: Progress, emit: Emit
    ) -> Rollouts:
        """Return rewarded rollouts of π_a for the next ``prompts`` training prompts, and emit their events.

        ``progress`` changes only when all rollouts are drawn: after a stop in between, all are drawn again.
        """
        asked = self._prompts(progress.asked, prompts)
        completions, tilt = self.config.replay.completions, progress.tilt
        with self.placement.autocast(), self.policy.gathered():
            audited, beyond = self._audit(purpose, asked, progress, emit)
            begin = time.perf_counter()
            collector = self._loaded(self.engine if beyond is None else self.exact)
            seed = self._seed(f"{purpose} rollouts", progress)
            is_ahead = beyond is None and self._ahead.holds(seed)
            if not is_ahead:
                self.drop_ahead()
            take = (lambda: self._take(seed)) if is_ahead else None
            collected = collector.collect(asked, completions, tilt, seed, first_group, take)
        progress.audited, progress.exact_because = audited, beyond
        progress.asked += prompts
        speed = (len(collected.rollouts) + collected.skipped) / (time.perf_counter() - begin)
        row = {"tilt": tilt, "purpose": purpose, "skipped": collected.skipped, "per_second": speed}
        if is_ahead:
            row["saved_seconds"] = round(self._ahead.saved, 3)
        emit("rollouts", **row, reward=float(collected.rollouts.reward.mean()))
        return collected.rollouts

    def draw_ahead(self, prompts: int, steps: int, progress: Progress) -> None:
        """Start to draw the rollouts of the refresh ``steps`` steps ahead, if this is configured."""
        if not self.config.decoding.ahead or progress.exact_because is not None:
            return
        asked, completions = self._prompts(progress.asked, prompts), self.config.replay.completions
        seed = self._seed("refresh rollouts", progress, steps)
        # A shallow copy: the same weights, but passes that only the engine counts, and no shared recording.
        model = copy.copy(self.policy.pi_a(self._spare.decoder.fp8))
        if isinstance(model, Transformer):
            model.recording = None
        self._spare.load(model)

        card = torch.cuda.current_device() if self.placement.device.type == "cuda" else None

        def draw() -> Drawn:
            with self.placement.autocast(), on_side_stream(card):
                return self._spare_collector.share(asked, completions, seed)

        self._ahead.start(seed, draw)

    def _take(self, seed: int) -> Drawn:
        """Wait for the rollouts of a seed that are being drawn ahead, and charge their cost."""
        drawn = self._ahead.take(seed)
        self._used = self._used + self._spare.cost()
        if drawn.finished.tokens.is_cuda:  # written on another CUDA stream than the one that reads them
            for tensor in drawn.finished.tensors().values():
                tensor.record_stream(torch.cuda.current_stream())
        return drawn

    def drop_ahead(self) -> None:
        """Discard rollouts that are drawn ahead, at no charge: π_a changes."""
        self._ahead.drop()
        self._spare.cost()

    def rehearse(self) -> Rollouts:
        """Draw rollouts of a few prompts to compile kernels, without events and cost."""
        asked, completions = self._prompts(0, 8), self.config.replay.completions
        with self.placement.autocast(), self.policy.gathered():
            seed = derived_seed(self.config.seed, "warm-up")
            collected = self._loaded(self.engine).collect(asked, completions, 0.0, seed)
        self.engine.cost()  # not charged
        return collected.rollouts

    def evaluate(self) -> Evaluation:
        """Measure π_a on the held-out prompts, without charging the budget."""
        with self.placement.autocast(), self.policy.gathered():
            collector = self._loaded(self.evaluator)
            model = self.policy.pi_a(self.evaluator.decoder.fp8)
            # Only π_a's weights are gathered in every process.
            base = None if self.policy.sharded else self.policy.base
            result = evaluate(collector, self.config.evaluation, self.placement.device, model, base)
        self.evaluator.cost()  # not charged
        return result

    def cost(self) -> Cost:
        """Return the tokens and FLOPs of rollouts and audits since the last call."""
        cost, self._used = self.engine.cost() + self._used, Cost()
        return cost if self.exact is self.engine else cost + self.exact.cost()

    def _audit(
        self, purpose: str, prompts: Prompts, progress: Progress, emit: Emit
    ) -> tuple[dict[str, Any], str | None]:
        """Continue the phase's comparison with exact decoding; return its sums and the limit it exceeds."""
        limits, completions = self.config.audit, self.config.replay.completions
        decoder, because = self.engine.decoder, progress.exact_because
        if because is not None or not decoder.shortcuts or limits.share == 0:
            return progress.audited, because
        rows = math.ceil(limits.share * len(prompts) * completions)
        seed = self._seed(f"{purpose} audit", progress)
        self.exact.load(self.policy.pi_a())
        found = audit(self._loaded(self.engine), self.exact, prompts.repeat(completions), rows, seed)
        tally = Tally(**progress.audited) + found
        beyond = tally.beyond(limits)
        emit("audit", tilt=progress.tilt, **tally.numbers(), falls_back=beyond)
        return asdict(tally), beyond

    def _loaded(self, engine: RolloutEngine) -> Collector:
        """Return a collector over an engine that draws from π_a, in FP8 if that is how it decodes."""
        engine.load(self.policy.pi_a(engine.decoder.fp8))
        return replace(self.collector, engine=engine)

    def _seed(self, purpose: str, progress: Progress, steps: int = 0) -> int:
        """Return the seed of draws, now or ``steps`` steps ahead; also a phase without steps has its own."""
        return derived_seed(self.config.seed, purpose, progress.phase, progress.step + steps)

    def _prompts(self, first: int, count: int) -> Prompts:
        """Return training prompts from number ``first`` on."""
        chunk, seed = self.config.replay.prompts, self.config.seed
        return prompts_in_order(self.collector.task, first, count, chunk, seed).to(self.placement.device)


@contextmanager
def on_side_stream(card: int | None) -> Iterator[None]:
    """Run on a second CUDA stream, after the work queued on the main stream; wait for it at the end.

    The current card is one of each thread, so it is set here; None: no GPU.
    """
    if card is None:
        yield
        return
    torch.cuda.set_device(card)
    side = torch.cuda.Stream(card)
    side.wait_stream(torch.cuda.default_stream(card))
    with torch.cuda.stream(side):
        yield
    side.synchronize()
