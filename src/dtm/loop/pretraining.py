"""Pretraining a base π_0 on a task's examples with the evidence bound  [eqs. 5, 6]."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from dtm.errors import DivergedError, require
from dtm.loop.assemble import Assembly
from dtm.loop.state import load_optimizer, optimizer_tensors
from dtm.masking import MaskCount
from dtm.methods import mdm_loss
from dtm.random import stream
from dtm.records import Sequences, aligned
from dtm.runs.checkpoint import Checkpoint, load_latest, save_checkpoint
from dtm.runs.events import Callback, Event
from dtm.runs.interrupts import Interrupted

REPORT_EVERY = 100
"""Steps between held-out bounds."""
AHEAD = 16
"""Batches of examples drawn together: on a GPU a draw costs the same for many rows as for few."""


class Pretrainer:
    """One pretraining run; its state is `model`, `optimizer` and `step`."""

    def __init__(
        self,
        assembly: Assembly,
        *,
        callbacks: Sequence[Callback] = (),
        checkpoints: Path | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        config, device = assembly.config, assembly.placement.device
        self.config, self.task, self.placement, self.device = (
            config,
            assembly.task,
            assembly.placement,
            device,
        )
        self._usual, self._late = assembly.pretraining_masks()
        self.model = assembly.new_model().to(device)
        if self.placement.compiles:
            self.model.compile_blocks()
        self._records = self.placement.compiles and device.type == "cuda" and config.adapter.rank is None
        self.callbacks, self.checkpoints, self.between = callbacks, checkpoints, between
        settings = config.pretrain
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            betas=(0.9, 0.98),
            fused=device.type == "cuda",
        )
        self.step, self.seconds = 0, 0.0
        self._begin = time.perf_counter()
        self._clock = self._begin, self.step
        self._drawn: tuple[int, Sequences] | None = None
        held_out = self.task.examples("validation", settings.held_out, stream(0, "held-out", device=device))
        self._held_out = aligned(held_out, self.model.attention_block)

    def run(self) -> float:
        """Train to the end and return the held-out bound, in nats per sequence."""
        self._clock = time.perf_counter(), self.step
        self._begin = time.perf_counter() - self.seconds
        try:
            while self.step < self.config.pretrain.steps:
                self.between()
                loss = self._advance()
                if self.step % REPORT_EVERY == 0 or self.step == self.config.pretrain.steps:
                    self._report(float(loss))
                if self.step % (10 * REPORT_EVERY) == 0:
                    self.save()
        except Interrupted:
            self.save()
            raise
        return self.bound()

    @property
    def masking(self) -> MaskCount:
        """How examples are masked at this step."""
        settings = self.config.pretrain
        settling = round(settings.settle * settings.steps)
        return self._late if self.step >= settings.steps - settling else self._usual

    def _report(self, loss: float) -> None:
        """Emit a progress event. Not at every step: reading the loss waits for the device."""
        require(
            math.isfinite(loss),
            f"the loss at step {self.step} is not finite; start again with a smaller --pretrain.lr",
            DivergedError,
        )
        begin, last = self._clock
        self._clock = time.perf_counter(), self.step
        speed = (self.step - last) / (self._clock[0] - begin)
        self._emit(
            seconds=round(time.perf_counter() - self._begin, 3),
            loss=loss,
            held_out=self.bound(),
            **({"held_out_in_blocks": self.bound(self._late)} if self.config.pretrain.settle else {}),
            steps_per_second=speed,
        )

    def _advance(self) -> torch.Tensor:
        """One optimiser step on fresh examples."""
        settings, seed = self.config.pretrain, self.config.seed
        noise = stream(seed, "masks", self.step, device=self.device)
        states = self.masking.states(self._examples(), self.model.mask_id, noise)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr * cosine(self.step, settings.steps)
        with self.placement.autocast():
            if self._records and self.model.recording is None and states.attention is None:
                self.model.record(states.tokens.shape)
            loss = mdm_loss(self.model, states)
        torch.autograd.backward(loss / states.length)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss.detach()

    def _examples(self) -> Sequences:
        """The examples of this step, out of a larger draw; a resumed run draws the same."""
        draw, place = divmod(self.step, AHEAD)
        batch = self.config.pretrain.batch
        if self._drawn is None or self._drawn[0] != draw:
            source = stream(self.config.seed, "examples", draw, device=self.device)
            progress = draw * AHEAD / self.config.pretrain.steps
            drawn = self.task.examples("train", AHEAD * batch, source, progress)
            self._drawn = draw, aligned(drawn, self.model.attention_block)
        return self._drawn[1].part(slice(place * batch, (place + 1) * batch))

    @torch.no_grad()
    def bound(self, masks: MaskCount | None = None) -> float:
        """The evidence bound on held-out examples, nats per sequence; by default with the usual masks."""
        noise = stream(0, "held-out masks", device=self.device)
        with self.placement.autocast():
            states = (masks or self._usual).states(self._held_out, self.model.mask_id, noise)
            return float(mdm_loss(self.model, states))

    def save(self) -> None:
        """Write a checkpoint of the current step."""
        if self.checkpoints is not None:
            tensors = {
                "model": self.model.state_dict(),
                "optimizer": optimizer_tensors(self.model, self.optimizer),
            }
            self.seconds = time.perf_counter() - self._begin
            state = {"step": self.step, "seconds": self.seconds}
            save_checkpoint(self.checkpoints, self.step, Checkpoint(tensors, state), keep=2)

    def resume(self, checkpoints: Path) -> None:
        """Continue from the newest whole checkpoint in the folder."""
        checkpoint = load_latest(checkpoints)
        self.model.load_state_dict(checkpoint.tensors["model"])
        load_optimizer(self.model, self.optimizer, checkpoint.tensors["optimizer"])
        self.step, self.seconds = checkpoint.state["step"], checkpoint.state["seconds"]

    def _emit(self, **values: float) -> None:
        for callback in self.callbacks:
            callback(Event("step", self.step, {"steps": self.config.pretrain.steps, **values}))


def cosine(step: int, steps: int) -> float:
    """Learning rate as a fraction of its peak: 2 % linear rise, then half a cosine down to zero."""
    warmup = max(1, steps // 50)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
