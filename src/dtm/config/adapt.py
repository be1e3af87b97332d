"""Settings of `dtm adapt`, which turns an autoregressive model into a masked diffusion model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dtm.config.model import PretrainConfig
from dtm.config.rules import AT_LEAST_ONE, NOT_NEGATIVE, SHARE, check_fields
from dtm.config.run import CheckpointConfig
from dtm.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusConfig:
    """The chat rows to train on: share of each kind of row, and share of right answers."""

    general: float = 0.3
    """Share of general instructions, which the source model writes and answers itself."""
    countdown: float = 0.32
    """Share of Countdown items, worded as in the benchmark."""
    arithmetic: float = 0.22
    """Share of rows with many short lines of arithmetic."""
    sudoku: float = 0.02
    """Share of 4x4 Sudoku puzzles, worded as in the benchmark."""
    sudoku_lines: float = 0.07
    """Share of rows with many short lines of Sudoku puzzles."""
    gsm8k: float = 0.07
    """Share of GSM8K's training questions; they need corpus.data-dir."""
    own: float = 0.0
    """Share of your own rows; they need corpus.data."""
    data_dir: str = "generated"
    """Folder with the benchmarks' data sets, whose test items are excluded from the corpus. generated: use no
    data sets and no GSM8K."""
    data: str | None = None
    """Your own rows, each with a "prompt" (text or messages) and a "completion": JSON lines, a .csv file, or
    hub:USER/NAME."""
    instructions: int = 12288
    """Number of general instructions that the source model writes before training."""
    workers: int = 4
    """Processes that prepare batches ahead of the training; 0: prepare them in the training process."""
    worked: float = 0.4
    """Share of worked answers to Countdown and GSM8K. The others do not try, so the model solves an item only
    sometimes, and a reward can tilt it. Rows whose prompt ends with the start of the work do not count."""
    skilled: float = 0.75
    """Share of steps in which all answers to Sudoku are right. They come first, to teach the rules."""
    right: float = 0.25
    """Share of right answers to Sudoku in the other steps. The rest of the answers are guesses."""
    lengths: tuple[int, int, int] = (288, 448, 1376)
    """Allowed row lengths in tokens, ascending. All rows of a step have the same length; longer rows than
    the last are dropped."""

    def __post_init__(self) -> None:
        not_negative = dict.fromkeys((*SHARES, "workers"), NOT_NEGATIVE)
        shares = dict.fromkeys(("worked", "skilled", "right"), SHARE)
        check_fields("corpus", self, **not_negative, **shares, instructions=AT_LEAST_ONE)
        require(sum(getattr(self, name) for name in SHARES) > 0, "the shares of the corpus add up to 0")
        require(
            self.data is None or self.own > 0,
            "corpus.data has no effect with a share of 0: add --corpus.own, for example 0.3",
        )
        require(
            self.own == 0 or self.data is not None, "corpus.own needs your rows: --corpus.data FILE.jsonl"
        )
        require(
            0 < self.lengths[0] <= self.lengths[1] <= self.lengths[2],
            f"corpus.lengths must ascend from above 0, got {self.lengths}",
        )


SHARES = ("countdown", "arithmetic", "sudoku", "sudoku_lines", "gsm8k", "own", "general")
"""Fields that are shares of the rows; the last one takes longest to generate."""


def _training() -> PretrainConfig:
    return PretrainConfig(
        steps=1400, batch=384, settle=0.3, after_end=False, mask_skew=2.0, lr=6e-4, hold=0.35, held_out=256
    )


def run_name(source: str) -> str:
    """Return the first part of the name of a run's folder.

    >>> run_name("models/Qwen3-0.6B"), run_name("SmolLM2.Q4_1.gguf")
    ('qwen3-0.6b', 'smollm2.q4_1')
    """
    path = Path(source).resolve() if Path(source).name in ("", "..") else Path(source)
    return (path.stem if path.suffix == ".gguf" else path.name).lower()


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptConfig:
    """All settings of an adaptation."""

    recipe: str = "smollm2"
    """First part of the name of the run's folder: the name of the source."""
    source: str = "smollm2"
    """Autoregressive model to adapt: smollm2, a folder in the layout of Llama, Qwen2 or Qwen3, or a GGUF
    file."""
    seed: int = 0
    """Seed of every random stream."""
    device: str = "auto"
    """Device of the run: cpu, cuda, or auto (cuda if available)."""
    precision: Literal["float32", "bfloat16", "auto"] = "auto"
    """Number format of forward and backward passes; auto: bfloat16 on a GPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Fuse the model's blocks with torch.compile; auto: on a GPU."""
    mask_token: str | None = None
    """Token of the vocabulary to use as mask token, by id or text; none: one that never occurs in text."""
    attention: Literal["full", "block"] = "full"
    """Full or block-causal attention; with the latter, decoding can cache finished blocks exactly."""
    block: int = 32
    """Block size in tokens, of the masks in training, of decoding, and of block-causal attention."""
    measured: int = 256
    """Number of validation prompts per task on which the result is measured; 0: none."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    pretrain: PretrainConfig = field(default_factory=_training)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    @property
    def attention_block(self) -> int | None:
        """B of block-causal attention; None: full attention."""
        return self.block if self.attention == "block" else None

    def __post_init__(self) -> None:
        check_fields("", self, seed=NOT_NEGATIVE, measured=NOT_NEGATIVE, block=AT_LEAST_ONE)
        require(
            self.pretrain.block == "any-order",
            "pretrain.block is not read: masks are in any order, then in blocks of --block tokens",
        )
        if self.attention == "block":
            bad = [length for length in self.corpus.lengths if length % self.block]
            require(not bad, f"corpus.lengths must be multiples of block {self.block}, got {bad}")
