"""Updates of the student, and measures of the absorbed share of a phase's tilt.

    batch      masked states of some rollouts, and their weights
    gradient   of the method's loss on them, accumulated over micro-batches
    update     both, then clip the gradient, step the optimiser, move the average

The trainer decides when to update and at which learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dtm.config import RunConfig
from dtm.distributed import ALONE, Group
from dtm.distributed.sharding import whole
from dtm.errors import DivergedError, require
from dtm.loop.base import Loop
from dtm.loop.meter import Meter, Reading
from dtm.loop.progress import Progress
from dtm.loop.replay import Replay
from dtm.masking import Masking, Planned
from dtm.methods.base import Method
from dtm.methods.surrogates import bounds
from dtm.models.placement import Placement
from dtm.models.policy import Policy
from dtm.random import seeded, stream
from dtm.records import MaskedStates, Phase, Rollouts, Weights


@dataclass(frozen=True, slots=True)
class Learner:
    """The fixed parts of all updates of a run; the progress is an argument of each call."""

    config: RunConfig
    policy: Policy
    method: Method
    loop: Loop
    masking: Masking
    reward_range: float | None
    """max r − min r if it is known; None: that of the buffer."""
    placement: Placement
    group: Group = ALONE
    """The processes that share a batch."""

    def new_optimizer(self) -> torch.optim.Optimizer:
        """AdamW over the weights that are trained."""
        settings = self.config.optimizer
        return torch.optim.AdamW(
            self.policy.trained(),
            lr=settings.lr,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=self.placement.device.type == "cuda",
        )

    def update(
        self, optimizer: torch.optim.Optimizer, replay: Replay, progress: Progress, lr: float
    ) -> tuple[dict[str, float], float]:
        """Take one optimiser step on freshly masked rows; return the loss's metrics and the gradient norm."""
        states, weights = self.batch(replay, progress)
        totals = self.gradient(states, weights, self.phase(replay, progress), progress.step)
        clip = self.config.optimizer.clip_norm
        norm = float(whole(torch.nn.utils.clip_grad_norm_(self.policy.trained(), clip)))
        require(
            math.isfinite(norm),
            f"the gradient at step {progress.step} is not finite. The weights before it are saved; "
            "start again with a smaller --optimizer.lr.",
            DivergedError,
        )
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad()
        self.policy.track()
        return {name: float(value) for name, value in totals.items()}, norm

    def batch(self, replay: Replay, progress: Progress) -> tuple[MaskedStates, Weights]:
        """Draw rollouts of the buffer; return their masked states and weights."""
        mask_id = self.policy.student.mask_id
        generator = self._stream("batch", progress.step)
        return self.loop.draw(replay, self.masking, mask_id, progress.phase_step, generator)

    def phase(self, replay: Replay, progress: Progress) -> Phase:
        """Return the `Phase` that losses read."""
        assert progress.h is not None
        reward = replay.rollouts.reward
        span = float(reward.max() - reward.min()) if self.reward_range is None else self.reward_range
        return Phase(progress.phase, progress.tilt, progress.h, span, progress.control.value)

    def gradient(self, states: MaskedStates, weights: Weights, phase: Phase, step: int) -> dict[str, Tensor]:
        """Accumulate the gradient of a batch; return its metrics, summed over micro-batches.

        Each process takes its share of the rows: masks and counts are those of the whole batch.
        """
        if self.method.scores_first:
            scores = self.score(states, lambda part: self.method.score(self.policy, part))
            weights = self.method.reweigh(weights, scores)
        self.policy.student.train()
        size, in_order = self._sequences_together(states), self.config.distributed.row_order
        parts = self._rounds(states.sequences, size)
        if parts and self._records and states.attention is None and not states.doubled:
            with self.placement.autocast():
                self.policy.record(states.select(parts[0][0]).tokens.shape)

        def backward() -> list[dict[str, Tensor]]:
            metrics = []
            for part, counts in parts:
                counted = nullcontext() if counts else self.policy.uncounted()
                with self.placement.autocast(), self._dropout(part.start, step), counted:
                    loss = self.method.loss(self.policy, states.select(part), weights.select(part), phase)
                torch.autograd.backward(loss.value if counts else 0 * loss.value)
                if counts:
                    metrics.append({"loss": loss.value.detach(), **loss.metrics})
            return metrics if self.group.size == 1 else [_on_cpu(each) for each in metrics]

        totals: dict[str, Tensor] = {}
        in_turn = in_order and not self.policy.sharded
        for metrics in self.group.accumulate(self.policy.trained(), backward, in_turn):
            for name, value in metrics.items():
                totals[name] = totals[name] + value if name in totals else value
        self.policy.student.eval()
        return totals

    @torch.no_grad()
    def score(self, states: MaskedStates, measure: Callable[[MaskedStates], Tensor]) -> Float[Tensor, " S"]:
        """Compute a number per sequence of a batch, without gradient or dropout, equal in all processes."""
        self.policy.student.eval()
        found = [torch.zeros(0, dtype=torch.float64)]
        for part, counts in self._rounds(states.sequences, self._sequences_together(states)):
            with self.placement.autocast(), nullcontext() if counts else self.policy.uncounted():
                value = measure(states.select(part))
            if counts:
                found.append(value.double().cpu())
        return torch.cat(self.group.gather(torch.cat(found))).to(states.tokens.device)

    def with_log_ratio(self, rollouts: Rollouts, purpose: str, number: int) -> Rollouts:
        """Add log π_0/π_a to each rollout, by evidence bounds under common masks, if the method needs it.

        π_a runs with its adapter, also where decoding merges it, so that the ratio of equal models is 1.
        ``purpose`` and ``number`` name the stream of the masks.
        """
        plan, policy = self.method.ratio_plan, self.policy
        if plan is None:
            return rollouts
        require(
            isinstance(self.masking, Planned),
            f"{self.config.method.name} has a ratio_plan, so its masks must be made with dtm.masking.Planned",
        )
        assert isinstance(self.masking, Planned)
        masking = replace(self.masking, plan=plan)
        states = masking.states(rollouts, policy.student.mask_id, self._stream(purpose, number))

        def log_ratio(part: MaskedStates) -> Tensor:
            log_pi_a = policy.teacher(part.tokens, part.attention, part.scored, clean=part.context)
            return bounds(policy.log_pi_0(part), part) - bounds(log_pi_a, part)

        return replace(rollouts, log_ratio=self.score(states, log_ratio))

    def read(self, meter: Meter) -> Reading | None:
        """Measure the absorbed share of the phase's tilt (see `dtm.loop.meter`)."""
        with self.placement.autocast():
            return meter.read(self.policy, self.config.optimizer.rows, self.group)

    def hold(self, rollouts: Rollouts, h: float) -> Replay:
        """A buffer of rollouts with their weights for a tilt by h, and the method's credit."""
        return Replay(rollouts, h, self.method.prompt_baseline, self.method.credit)

    def rehearse(self, rollouts: Rollouts) -> None:
        """Run the passes of an update and of the meter and discard the results, to compile the kernels."""
        replay = self.hold(self.with_log_ratio(rollouts, "warm-up", 0), 1.0)
        if not self.loop.measures_absorbed and self.loop.idle_reason(replay) is not None:
            return
        if self.loop.measures_absorbed:
            self.read(Meter(replay.rollouts, replay.h, self._stream("warm-up")))
        states, weights = self.batch(replay, Progress())
        self.gradient(states, weights, Phase(0, 0.0, 1.0, reward_range=1.0), step=0)
        self.policy.student.zero_grad()

    def _stream(self, purpose: str, step: int = 0) -> torch.Generator:
        return stream(self.config.seed, purpose, step, self.placement.device)

    def _rounds(self, sequences: int, size: int) -> list[tuple[slice, bool]]:
        """Return the micro-batches of this process, and whether their gradient counts.

        With sharded weights every pass is one of all processes: those with fewer rows repeat a row whose
        gradient does not count.
        """
        unit = self.method.unit
        own = [(part, True) for part in self.group.parts(sequences, size, unit)]
        most = -(-len(self.group.largest_share(sequences, unit)) // size) if self.policy.sharded else 0
        return own + [(slice(0, unit), False)] * (most - len(own))

    def _sequences_together(self, states: MaskedStates) -> int:
        """Number of sequences per forward pass: as many as fit, and never half a pair."""
        if self.config.distributed.row_order:
            return self.method.unit
        return self.method.sequences_together(self.config.optimizer.rows, states.draws)

    @property
    def _records(self) -> bool:
        """Return whether to record passes as CUDA graphs: for models trained in full on a GPU."""
        on_gpu = self.placement.compiles and self.placement.device.type == "cuda"
        recomputes = getattr(self.policy.student, "recompute", 0)
        return on_gpu and self.config.adapter.rank is None and not recomputes and not self.policy.sharded

    def _dropout(self, part: int, step: int) -> AbstractContextManager[None]:
        """Context with seeded dropout noise, if adapters have dropout."""
        if not self.config.adapter.dropout:
            return nullcontext()
        return seeded(self.config.seed, f"dropout {part}", step, self.placement.device)


def _on_cpu(metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy metrics to the CPU in one transfer, to send them to other processes."""
    values = torch.stack([value.detach() for value in metrics.values()]).cpu()
    return {name: value.clone() for name, value in zip(metrics, values, strict=True)}
