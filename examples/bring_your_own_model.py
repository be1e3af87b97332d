"""Your own model: a plain residual network, pretrained and tuned on a small maze with the library's parts.

    python examples/bring_your_own_model.py

A model is a `dtm.Denoiser`: hidden states for every position, and a head for the positions that are
asked for. Everything else (rollouts, masking, the loss, annealing) works with any of them. docs/extending.md
has the shortest form of this; here the trainer is driven by hand.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import dtm
from dtm.config import EvaluationConfig, OptimizerConfig, ReplayConfig, TiltConfig
from dtm.loop.assemble import assemble
from dtm.loop.trainer import Trainer
from dtm.masking import MaskCount
from dtm.methods import mdm_loss
from dtm.random import stream
from dtm.runs.events import Event
from dtm.tasks.base import Task
from dtm.tasks.maze import MazeTask


class Mixer(dtm.Denoiser):
    """Token embeddings, and residual layers that mix all positions of a sequence of fixed length.

    The maze's prompts all have three tokens, so ``attention`` is true everywhere and may be ignored. A
    model for prompts of unequal length must give a padded row the numbers of the unpadded one.
    """

    def __init__(self, task: Task, width: int) -> None:
        super().__init__()
        self.vocab_size, self.mask_id, self.eos_id = task.vocab_size, task.mask_id, task.eos_id
        self.shape = (3 + task.completion_length, width)
        size, inner = self.shape[0] * width, 8 * width
        self.embedding = nn.Embedding(task.vocab_size, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(size), nn.Linear(size, inner), nn.GELU(), nn.Linear(inner, size))
            for _ in range(3)
        )
        self.output = nn.Linear(width, task.vocab_size)

    def hidden(self, tokens: Tensor, attention: Tensor | None = None) -> Tensor:
        """Final hidden states, [B, L, D]."""
        x = self.embedding(tokens).flatten(1)
        for layer in self.layers:
            x = x + layer(x)
        return x.unflatten(1, self.shape)

    def head(self, rows: Tensor) -> Tensor:
        """Logits of chosen hidden states; the base class excludes the mask token and normalises."""
        return self.output(rows)


def pretrain(model: dtm.Denoiser, task: Task, steps: int, batch: int = 256) -> None:
    """Fit the task's examples with the evidence bound  [eqs. 5, 6]."""
    optimiser = torch.optim.Adam(model.parameters())
    for step in range(steps):
        noise = stream(0, "pretraining", step)
        states = MaskCount().states(task.examples("train", batch, noise), model.mask_id, noise)
        optimiser.param_groups[0]["lr"] = 4e-3 * (1 - step / steps)
        optimiser.zero_grad()
        (mdm_loss(model, states) / states.length).backward()
        optimiser.step()


def report(event: Event) -> None:
    """A callback is anything that can be called with an event."""
    if event.kind == "phase":
        print(f"phase {event.values['phase']}: reward {event.values['reward']:.3f} in the buffer")


def main(pretraining: int = 600, steps: int = 80, width: int = 32) -> tuple[float, float]:
    """Pretrain and tune; the mean reward before and after, for prompts that it was tuned on."""
    torch.manual_seed(0)  # the initial weights
    task = MazeTask(size=9, completion_length=16)
    model = Mixer(task, width)
    pretrain(model, task, pretraining)
    config = dtm.RunConfig(
        device="cpu",
        tilt=TiltConfig(step=2.0, final=4.0, max_steps=steps),
        replay=ReplayConfig(prompts=96, completions=8, refresh_every=40),
        optimizer=OptimizerConfig(lr=5e-4, batch=128),
        evaluation=EvaluationConfig(prompts=8, completions=2),
    )
    assembly = assemble(config, task=task, model=model)
    trainer, collector = Trainer(assembly, callbacks=[report]), assembly.collector()
    prompts = task.prompts("train", 96, stream(0, "before and after"))

    def reward() -> float:
        """Of π_a: the base before the run, the tuned model after it."""
        collector.engine.load(trainer.policy.teacher)
        drawn = collector.collect(prompts, 16, 0.0, seed=0)
        return float(drawn.rollouts.reward.mean())

    before = reward()
    trainer.run()
    return before, reward()


if __name__ == "__main__":
    torch.set_num_threads(1)
    base, tuned = main()
    print(f"mean reward {base:.3f} before, {tuned:.3f} after")
