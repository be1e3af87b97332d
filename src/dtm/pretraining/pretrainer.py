"""Pretrain a base π_0 on a task's examples with the evidence bound  [eqs. 5, 6]."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dtm.capacity.fit import pretraining_rows
from dtm.capacity.preflight import available
from dtm.config import CheckpointConfig, PretrainConfig
from dtm.distributed import ALONE, Group
from dtm.errors import DivergedError, require
from dtm.loop.assembly import Assembly
from dtm.loop.state import load_optimizer, optimizer_tensors
from dtm.masking import CountMasking
from dtm.methods import mdm_loss
from dtm.models.placement import Placement
from dtm.models.transformer import Transformer
from dtm.padding import aligned
from dtm.pretraining.examples import Corpus, several, task_corpus
from dtm.random import stream
from dtm.records import MaskedStates, Sequences
from dtm.runs.checkpoint import Checkpoint, load_latest, save_checkpoint, saved_on
from dtm.runs.events import Callback, Event, Kind
from dtm.runs.interrupts import Interrupted

REPORT_EVERY = 100
"""Steps between held-out bounds."""
SAVE_EVERY = 300.0
"""Seconds between checkpoints, unless the configuration sets steps."""
RECORDED = 30_000_000
"""Largest model, in parameters, whose passes are recorded as CUDA graphs; larger ones keep the GPU busy."""


class Pretrainer:
    """Training with the evidence bound; its state is `model`, `optimizer` and `step`."""

    def __init__(
        self,
        model: Transformer,
        corpus: Corpus,
        masks: tuple[CountMasking, CountMasking],
        settings: PretrainConfig,
        placement: Placement,
        *,
        seed: int = 0,
        callbacks: Sequence[Callback] = (),
        checkpoints: Path | None = None,
        saving: CheckpointConfig | None = None,
        between: Callable[[], None] = lambda: None,
        group: Group = ALONE,
        row_order: bool = False,
    ) -> None:
        """Initialise; ``masks`` are those of most steps, and of the last steps (`PretrainConfig.settle`)."""
        self.settings, self.placement, self.device, self.seed = settings, placement, placement.device, seed
        self._usual, self._late = masks
        self.model, self.corpus = model.to(self.device), corpus
        if placement.compiles:
            self.model.compile_blocks()
        self.callbacks, self.checkpoints, self.between = callbacks, checkpoints, between
        self.group, self.row_order = group, row_order
        self.saving = saving or CheckpointConfig()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            betas=(0.9, 0.98),
            fused=self.device.type == "cuda",
        )
        state = 4 * sum(parameter.nbytes for parameter in self.model.parameters())  # gradients, moments
        self._memory = int(0.85 * available(self.device)) - state
        self._fits: dict[int, int] = {}
        self.step, self.seconds, self.tokens = 0, 0.0, 0
        self._begin = self._saved_at = time.perf_counter()
        self._clock = self._begin, self.step, self.tokens

    def prepare(self) -> None:
        """Compile the passes while the first examples are prepared, before the training time is counted."""
        self.corpus.start(self.step)
        if self.placement.compiles:
            _, examples = next(iter(self.corpus.held_out.values()))
            noise = stream(0, "compilation", device=self.device)
            states = self._usual.states(several(self._aligned(examples[0])), self.model.mask_id, noise)
            torch.autograd.backward(self._loss(next(self._parts(states))))
            self.optimizer.zero_grad()

    def run(self) -> float:
        """Train to the end and return the held-out bound, in nats per sequence."""
        self._begin = time.perf_counter() - self.seconds
        self._clock = time.perf_counter(), self.step, self.tokens
        with saved_on(self.save, Interrupted):
            while self.step < self.settings.steps:
                self.group.together(self.between)
                loss = self._advance()
                if self.step % REPORT_EVERY == 0 or self.step == self.settings.steps:
                    self._report(float(loss))
                if self._is_to_be_saved():
                    self.save()
        return self.bound()

    def _is_to_be_saved(self) -> bool:
        """Return whether to save now: by the configured number of steps, else by time."""
        if self.saving.every is not None:
            return self.step % self.saving.every == 0
        return self.group.by_first(lambda: time.perf_counter() - self._saved_at > SAVE_EVERY)

    @property
    def masking(self) -> CountMasking:
        """The masking of this step."""
        settling = round(self.settings.settle * self.settings.steps)
        return self._late if self.step >= self.settings.steps - settling else self._usual

    def _report(self, loss: float) -> None:
        """Emit a progress event. Not at every step: reading the loss waits for the device."""
        require(
            math.isfinite(loss),
            f"the loss at step {self.step} is not finite; start again with a smaller --pretrain.lr",
            DivergedError,
        )
        (begin, last, tokens), now = self._clock, time.perf_counter()
        self.tell(
            "step",
            steps=self.settings.steps,
            seconds=round(now - self._begin, 3),
            loss=loss,
            **self._bounds(),
            steps_per_second=(self.step - last) / (now - begin),
            tokens=float(self.tokens),
            tokens_per_second=(self.tokens - tokens) / (now - begin),
        )
        self._clock = time.perf_counter(), self.step, self.tokens

    def _advance(self) -> Tensor:
        """Take one optimiser step; return the loss in nats per sequence."""
        settings, total = self.settings, torch.zeros((), device=self.device)
        batch = self._aligned(self.corpus.batch(self.step))
        noise = stream(self.seed, "masks", self.step, device=self.device)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr * cosine(self.step, settings.steps, settings.hold)
        states = self.masking.states(batch, self.model.mask_id, noise)

        def backward() -> list[Tensor]:
            losses = []
            for part in self._parts(states):
                loss = self._loss(part) * len(batch) / batch.is_completion.sum()
                torch.autograd.backward(loss)
                losses.append(loss.detach() if self.group.size == 1 else loss.detach().cpu())
            return losses

        for loss in self.group.accumulate(list(self.model.parameters()), backward, self.row_order):
            total += loss
        self.tokens += batch.tokens.numel()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return total * batch.is_completion.sum() / len(batch)

    def _parts(self, states: MaskedStates) -> Iterator[MaskedStates]:
        """Yield the micro-batches of this process; a batch of one micro-batch is not copied."""
        size = self.settings.micro_batch or self._fitting(states.tokens.shape[1] * (1 + states.doubled))
        for part in self.group.parts(len(states), 1 if self.row_order else size):
            yield states if part == slice(0, len(states)) else states.select(part)

    def _fitting(self, length: int) -> int:
        """Number of rows of this length that fit into memory with the weights and the optimiser."""
        if length not in self._fits:
            compute = 2 if self.placement.precision == "bfloat16" else 4
            self._fits[length] = pretraining_rows(
                self.model.config,
                length,
                compute,
                self.placement.compiles,
                self._memory,
                self.settings.mask_skew,
            )
        return self._fits[length]

    def _aligned(self, examples: Sequences) -> Sequences:
        """Move examples to the device, padded to whole blocks for block-causal models."""
        return aligned(examples.to(self.device), self.model.attention_block)

    def _loss(self, states: MaskedStates) -> Tensor:
        """Return the contribution of a micro-batch to the bound, in nats per sequence."""
        with self.placement.autocast():
            if self._records(states):
                self.model.record(states.tokens.shape)
            return mdm_loss(self.model, states)

    def _records(self, states: MaskedStates) -> bool:
        """Return whether to record the pass as a CUDA graph: for small models and examples of one shape."""
        small = sum(parameter.numel() for parameter in self.model.parameters()) <= RECORDED
        usable = self.placement.compiles and self.device.type == "cuda" and states.attention is None
        return usable and small and not states.doubled and self.model.recording is None

    def bound(self, masks: CountMasking | None = None) -> float:
        """Return the evidence bound on held-out examples, in nats per sequence; by default, usual masks."""
        return sum(
            share * self._bound(examples, masks or self._usual)
            for share, examples in self.corpus.held_out.values()
        )

    def _bounds(self) -> dict[str, float]:
        """Return the bound on all held-out examples, on each part, and at the end with the last masks."""
        held_out = self.corpus.held_out
        parts = {name: self._bound(examples, self._usual) for name, (_, examples) in held_out.items()}
        found = {"held_out": sum(share * parts[name] for name, (share, _) in held_out.items())}
        if self.settings.settle and self.masking is self._late:
            found["held_out_in_blocks"] = self.bound(self._late)
        return found | (
            {f"held_out_{name}": value for name, value in parts.items()} if len(parts) > 1 else {}
        )

    def _bound(self, examples: Sequence[Sequences], masks: CountMasking) -> float:
        """Return the evidence bound on some examples, for which masks are not skewed.

        Compiled passes run with gradients as in training, since passes without would be compiled again.
        """
        noise = stream(0, "held-out masks", device=self.device)
        with_gradients = self.placement.compiles and self.model.recording is None
        masks, bounds = replace(masks, skew=1.0), []
        with self.placement.autocast(), torch.set_grad_enabled(with_gradients):
            for batch in map(several, map(self._aligned, examples)):
                states = masks.states(batch, self.model.mask_id, noise)
                bounds.append([mdm_loss(self.model, part).item() for part in self._parts(states)])
        found = zip(*self.group.gather(bounds), strict=True)  # by batch: the parts of each process
        total = sum(
            sum(bound for parts in batch for bound in parts) * len(rows)
            for batch, rows in zip(found, examples, strict=True)
        )
        return total / sum(map(len, examples))

    def save(self) -> None:
        """Write a checkpoint of the current step."""
        if self.checkpoints is not None:
            self._saved_at = time.perf_counter()
            self.seconds = self._saved_at - self._begin
            tensors = {
                "model": self.model.state_dict(),
                "optimizer": optimizer_tensors(self.model, self.optimizer),
            }
            state = {"step": self.step, "seconds": self.seconds, "tokens": self.tokens}
            checkpoint, keep = Checkpoint(tensors, state), self.saving.keep
            save_checkpoint(self.checkpoints, self.step, checkpoint, keep, group=self.group)

    def resume(self, checkpoints: Path) -> None:
        """Continue from the newest whole checkpoint in the folder."""
        checkpoint = load_latest(checkpoints, self.group)
        self.model.load_state_dict(checkpoint.tensors["model"])
        load_optimizer(self.model, self.optimizer, checkpoint.tensors["optimizer"])
        self.step, self.seconds = checkpoint.state["step"], checkpoint.state["seconds"]
        self.tokens = checkpoint.state.get("tokens", 0)

    def tell(self, kind: Kind, **values: Any) -> None:
        """Send an event to the callbacks; a failed write stops all processes."""

        def send() -> None:
            for callback in self.callbacks:
                callback(Event(kind, self.step, values))

        self.group.by_first(send)


def pretrainer_of(assembly: Assembly, **options: Any) -> Pretrainer:
    """Return the pretraining of a recipe's base from scratch, on the examples of its task."""
    config = assembly.config
    return Pretrainer(
        assembly.new_model(),
        task_corpus(assembly.task, config.pretrain, config.seed, assembly.placement.device),
        assembly.pretraining_masks(),
        config.pretrain,
        assembly.placement,
        seed=config.seed,
        saving=config.checkpoint,
        group=assembly.group,
        row_order=config.distributed.row_order,
        **options,
    )


def cosine(step: int, steps: int, hold: float = 0.0) -> float:
    """Return the learning rate as a share of its peak: linear rise for 2 %, ``hold``, half a cosine to zero.

    >>> [round(cosine(step, 100, 0.5), 2) for step in (0, 1, 51, 76, 99)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    warmup = max(1, steps // 50)
    if step < warmup:
        return (step + 1) / warmup
    begin = warmup + round(hold * steps)
    return 0.5 * (1 + math.cos(math.pi * max(0, step - begin) / max(1, steps - begin)))
