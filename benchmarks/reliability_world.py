"""A small world for measurements of reliability: a base, a source to adapt, data, and commands on them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import dtm
from dtm.config import (
    CheckpointConfig,
    EvaluationConfig,
    MazeConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    ReplayConfig,
    TiltConfig,
)
from dtm.config.serialise import to_yaml
from dtm.loop.assemble import assemble
from dtm.models.source import as_diffusion, load_any
from dtm.models.storage import save_hub
from dtm.pretraining.pretrainer import pretrainer_of

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from checkpoints import save_source

PARTS = ("general", "countdown", "arithmetic", "sudoku", "sudoku-lines", "gsm8k")


class World:
    """A folder with all that the commands need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base, self.settings = folder / "base", folder / "tiny.yaml"
        self.source, self.adapted, self.rows = folder / "source", folder / "adapted", folder / "rows.jsonl"

    @classmethod
    def make(cls, folder: Path) -> World:
        """Pretrain a base for two seconds, and write a source and its rows."""
        world = cls(folder)
        start = dtm.recipe("maze-small")
        config = replace(
            start,
            task=MazeConfig(size=7, completion_length=5),
            model=ModelConfig(width=32, layers=1, heads=2, ffn=48),
            decoding=replace(start.decoding, batch=16),
            tilt=TiltConfig(step=1.0, final=3.0, max_steps=8),
            replay=ReplayConfig(prompts=8, completions=4, refresh_every=2),
            optimizer=OptimizerConfig(lr=1e-3, batch=16, ema=0.5),
            evaluation=EvaluationConfig(prompts=4, completions=2),
            checkpoint=CheckpointConfig(every=3, keep=3),
            pretrain=PretrainConfig(steps=300, batch=64, lr=1e-2, held_out=64),
        )
        pretrainer = pretrainer_of(assemble(config))
        pretrainer.run()
        dtm.save_model(pretrainer.model, world.base)
        world.settings.write_text(to_yaml(replace(config, model=replace(config.model, base=str(world.base)))))
        save_source(world.source, "llama")
        source = load_any(str(world.source), mask_token=None)
        save_hub(as_diffusion(source.model, source.mask_id, None), source.tokenizer, world.adapted)
        rows = [{"prompt": "the " * n, "completion": "sum " * (9 - n)} for n in range(1, 9)]
        world.rows.write_text("\n".join(map(json.dumps, rows)))
        return world

    def train(self, out: Path, *flags: str) -> list[str]:
        """Train on the maze."""
        config = ("--config", str(self.settings))
        return ["train", "maze-small", *config, "--out", str(out), "--resume", "auto", *flags]

    def pretrain(self, out: Path) -> list[str]:
        """Pretrain a base."""
        fewer = ("--pretrain.steps", "60")
        return ["pretrain", "maze-small", "--config", str(self.settings), *fewer, *self._into(out)]

    def adapt(self, out: Path) -> list[str]:
        """Adapt the source on rows of our own."""
        shares = [flag for part in PARTS for flag in (f"--corpus.{part}", "0")]
        rows = ("--corpus.own", "1", "--data", str(self.rows), "--corpus.workers", "0")
        sizes = ("--corpus.lengths", "48", "64", "96", "--block", "8", "--measured", "0", "--device", "cpu")
        steps = ("--pretrain.steps", "12", "--pretrain.batch", "4", "--pretrain.held-out", "4")
        saves = ("--checkpoint.every", "3")
        return ["adapt", str(self.source), *shares, *rows, *sizes, *steps, *saves, *self._into(out)]

    def compare(self, out: Path) -> list[str]:
        """Compare two methods, side by side."""
        flags = ("--methods", "c-dtm,spg", "--budget", "3e4tokens", "--seeds", "1", "--jobs", "2")
        return ["compare", "maze-small", *flags, *self._tiny(), "--out", str(out)]

    def sweep(self, out: Path) -> list[str]:
        """Train two settings, side by side."""
        flags = ("--vary", "tilt.step=1,1.5", "--seeds", "1", "--jobs", "2")
        return ["sweep", "maze-small", *flags, *self._tiny(), "--out", str(out)]

    def _into(self, out: Path) -> list[str]:
        return ["--out", str(out), "--resume", "auto"]

    def _tiny(self) -> list[str]:
        """The settings of the file as flags, for commands that read no file."""
        values: dict[str, object] = {
            "model.base": self.base,
            "task.size": 7,
            "task.completion-length": 5,
            "decoding.batch": 16,
            "tilt.final": 3,
            "tilt.max-steps": 8,
            "replay.prompts": 8,
            "replay.completions": 4,
            "replay.refresh-every": 2,
            "optimizer.batch": 16,
            "evaluation.prompts": 4,
            "evaluation.completions": 2,
            "checkpoint.every": 3,
        }
        return [text for name, value in values.items() for text in (f"--{name}", str(value))]
