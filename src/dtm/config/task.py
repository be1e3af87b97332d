"""Settings of tasks; each kind has its own section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dtm.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskConfig:
    """Settings of a task; subclass it with the fields of yours."""

    kind: str = ""
    """A task of the package, or path/to/file.py:Class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MazeConfig(TaskConfig):
    """The maze task: paths from a start to a goal, rewarded for keeping away from the centre."""

    kind: Literal["maze"] = "maze"
    """Which task this section describes."""
    size: int = 15
    """Cells along each side; odd."""
    door_fraction: float = 0.4
    """Chance that a wall which the spanning tree left standing is opened."""
    seed: int = 0
    """Which maze; also which (start, goal) pairs are held out for testing."""
    completion_length: int | None = None
    """Tokens of a completion; none: just enough for the pretraining paths."""
    penalty: float = -0.4
    """Reward of an invalid path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MiniConfig(TaskConfig):
    """Sudoku or Countdown in characters, for small models from scratch."""

    kind: Literal["sudoku-mini", "countdown-mini"] = "countdown-mini"
    """Which of the two."""
    data_dir: str | None = None
    """Folder with the published data sets, whose test items are then used; none: all items are generated."""
    seed: int = 0
    """Which items are generated, and how they are split."""
    solved: float = 0.2
    """Share of Sudoku's empty cells, or of Countdown's answers, that the pretraining corpus finishes: a weak
    base by design."""
    skilled: float = 0.6
    """Share of the pretraining before that in which all answers are finished, to learn the puzzle first."""

    def __post_init__(self) -> None:
        require(0 <= self.solved <= 1, f"task.solved is a share in [0, 1], got {self.solved:g}")
        require(0 <= self.skilled < 1, f"task.skilled is a share in [0, 1), got {self.skilled:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageConfig(TaskConfig):
    """A benchmark or your own data for a language model with a tokenizer."""

    kind: Literal["countdown", "sudoku", "gsm8k", "math500", "custom"] = "custom"
    """Which benchmark; custom: your own rows."""
    data_dir: str | None = None
    """Folder with the benchmarks' data sets; hub: those of the hub, through the package datasets; generated:
    items made here, Countdown's and Sudoku's alone, which are not those of published numbers."""
    data: str | None = None
    """Your rows, for custom: JSON lines, .csv, or hub:USER/NAME. Each row has a "prompt" and columns that
    your reward receives. The hub's data sets are read through the package datasets, and another split or
    configuration is chosen with hub:USER/NAME[/CONFIGURATION][:SPLIT]."""
    protocol: Literal["dtm", "spg", "d1"] = "dtm"
    """Whose prompts and whose reading of the answers."""
    reward: Literal["paper", "released", "spg"] = "paper"
    """Which of the benchmark's rewards."""
    completion_length: int = 256
    """L, the tokens of a completion."""
    prompt_length: int = 1024
    """Rows whose prompt has more tokens are left out, and counted."""
    seed: int = 0
    """Which training rows are kept for validation."""

    def __post_init__(self) -> None:
        for name in ("completion_length", "prompt_length"):
            value = getattr(self, name)
            require(value >= 1, f"task.{name.replace('_', '-')} must be at least 1, got {value}")


TASK_CONFIGS: dict[str, type[TaskConfig]] = {
    "maze": MazeConfig,
    **dict.fromkeys(("sudoku-mini", "countdown-mini"), MiniConfig),
    **dict.fromkeys(("countdown", "sudoku", "gsm8k", "math500", "custom"), LanguageConfig),
}
"""Task kind → its section."""
