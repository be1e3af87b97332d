"""Settings of `dtm adapt`: from an autoregressive model to a masked diffusion model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dtm.config.model import PretrainConfig
from dtm.config.run import CheckpointConfig
from dtm.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusConfig:
    """The chat rows to train on: shares of the rows, and how many answers are right."""

    general: float = 0.3
    """Share of general instructions, which the source model writes and answers itself."""
    countdown: float = 0.18
    """Share of Countdown items in the benchmark's words."""
    arithmetic: float = 0.28
    """Share of rows with many short lines of arithmetic."""
    sudoku: float = 0.02
    """Share of 4x4 Sudoku puzzles in the benchmark's words."""
    sudoku_lines: float = 0.08
    """Share of rows with many short lines of Sudoku puzzles."""
    gsm8k: float = 0.14
    """Share of GSM8K's training questions; they need corpus.data-dir."""
    own: float = 0.0
    """Share of your own rows; they need corpus.data."""
    data_dir: str = "generated"
    """Folder with the benchmarks' data sets, whose test items are kept out of the corpus; generated: none,
    and GSM8K is left out."""
    data: str | None = None
    """Your own rows, each with a "prompt" (text or messages) and a "completion": JSON lines, a .csv file, or
    hub:USER/NAME."""
    instructions: int = 12288
    """General instructions that the source writes before training."""
    workers: int = 4
    """Processes that make batches ahead of the training; 0: the training makes them itself."""
    skilled: float = 0.6
    """Share of the training in which all answers are right, so that the model learns the tasks."""
    right: float = 0.25
    """Share of worked answers to tasks in the rest of the training. The others are guesses without reasoning,
    or give up: the model knows the tasks but often does not try, which leaves rewards something to select."""
    lengths: tuple[int, int, int] = (288, 448, 1376)
    """Row lengths in tokens; the rows of a step have one of them, and rows longer than the last are left
    out."""

    def __post_init__(self) -> None:
        for name in SHARES:
            require(getattr(self, name) >= 0, f"corpus.{name.replace('_', '-')} must not be negative")
        require(sum(getattr(self, name) for name in SHARES) > 0, "the shares of the corpus add up to 0")
        for name in ("skilled", "right"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"corpus.{name} is a share in [0, 1], got {value:g}")
        require(
            self.data is None or self.own > 0,
            "corpus.data has no effect with a share of 0: add --corpus.own, for example 0.3",
        )
        require(
            self.own == 0 or self.data is not None, "corpus.own needs your rows: --corpus.data FILE.jsonl"
        )
        require(self.workers >= 0, f"corpus.workers must not be negative, got {self.workers}")
        require(self.instructions >= 1, "corpus.instructions must be at least 1")
        require(
            0 < self.lengths[0] <= self.lengths[1] <= self.lengths[2],
            f"corpus.lengths must ascend from above 0, got {self.lengths}",
        )


SHARES = ("countdown", "arithmetic", "sudoku", "sudoku_lines", "gsm8k", "own", "general")
"""Fields that are shares of the rows; the part that takes longest to make is the last."""


def _training() -> PretrainConfig:
    return PretrainConfig(
        steps=1250, batch=384, settle=0.3, after_end=False, lr=6e-4, hold=0.35, held_out=256
    )


def run_name(source: str) -> str:
    """The name that the folder of a run begins with.

    >>> run_name("models/Qwen3-0.6B"), run_name("SmolLM2.Q4_1.gguf")
    ('qwen3-0.6b', 'smollm2.q4_1')
    """
    path = Path(source).resolve() if Path(source).name in ("", "..") else Path(source)
    return (path.stem if path.suffix == ".gguf" else path.name).lower()


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptConfig:
    """Everything that decides an adaptation."""

    recipe: str = "smollm2"
    """Name that the run's folder begins with: the source's."""
    source: str = "smollm2"
    """smollm2, a folder in the layout of Llama, Qwen2 or Qwen3, or a GGUF file."""
    seed: int = 0
    """Seed of every random stream."""
    device: str = "auto"
    """cpu, cuda, or auto: cuda where there is one."""
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    """Arithmetic of the passes; auto: bfloat16 on a GPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Fuse the model's blocks with torch.compile; auto: on a GPU."""
    mask_token: str | None = None
    """The token that becomes the mask, as an id or as text; none: one that text does not use."""
    attention: Literal["full", "block"] = "full"
    """Full or block-causal attention. Block-causal has an exact cache of finished blocks in decoding."""
    block: int = 32
    """Block size of the decoder that the model is made for, and of block-causal attention."""
    measured: int = 256
    """Validation prompts per task that the result is measured on; 0: none."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    pretrain: PretrainConfig = field(default_factory=_training)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    @property
    def attention_block(self) -> int | None:
        """B of block-causal attention; None: full attention."""
        return self.block if self.attention == "block" else None

    def __post_init__(self) -> None:
        require(self.seed >= 0, f"seed must not be negative, got {self.seed}")
        require(self.measured >= 0, f"measured must not be negative, got {self.measured}")
        require(self.block >= 1, f"block must be at least 1, got {self.block}")
        require(
            self.pretrain.block == "any-order",
            "pretrain.block is not read: masks are in any order, then in blocks of --block tokens",
        )
        if self.attention == "block":
            bad = [length for length in self.corpus.lengths if length % self.block]
            require(not bad, f"corpus.lengths must be multiples of block {self.block}, got {bad}")
