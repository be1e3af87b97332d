"""Settings of tasks; each kind has its own section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dtm.config.rules import AT_LEAST_ONE, SHARE, SHARE_BELOW_1, check_fields


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskConfig:
    """Settings of a task; derive your own task's settings from this class."""

    kind: str = ""
    """Name of the task, or path/to/file.py:Class for your own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MazeConfig(TaskConfig):
    """The maze task: paths from a start to a goal, rewarded for keeping away from the centre."""

    kind: Literal["maze"] = "maze"
    """Name of the task."""
    size: int = 15
    """Cells along each side; odd."""
    door_fraction: float = 0.4
    """Probability of opening each wall that remains after the maze's spanning tree is carved."""
    seed: int = 0
    """Seed of the maze, and of its (start, goal) pairs that are held out for testing."""
    completion_length: int | None = None
    """Tokens per completion; none: enough for the pretraining paths."""
    penalty: float = -0.4
    """Reward of an invalid path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MiniConfig(TaskConfig):
    """Sudoku or Countdown in characters, for small models from scratch."""

    kind: Literal["sudoku-mini", "countdown-mini"] = "countdown-mini"
    """Name of the puzzle."""
    data_dir: str | None = None
    """Folder with the published data sets, to test on their items; none: generate all items."""
    seed: int = 0
    """Seed of the generated items and of their split."""
    solved: float = 0.2
    """Share of Sudoku's empty cells, or of Countdown's answers, that the pretraining corpus completes; less
    than 1 makes a weak base on purpose."""
    skilled: float = 0.6
    """First share of the pretraining, in which all answers are complete, to learn the puzzle."""

    def __post_init__(self) -> None:
        check_fields("task", self, solved=SHARE, skilled=SHARE_BELOW_1)


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageConfig(TaskConfig):
    """A benchmark or your own data for a language model with a tokenizer."""

    kind: Literal["countdown", "sudoku", "gsm8k", "math500", "custom"] = "custom"
    """Name of the benchmark; custom: your own rows."""
    data_dir: str | None = None
    """Folder with the benchmarks' data sets. hub: download them with the package datasets. generated: make
    items, only for Countdown and Sudoku; published numbers are on other items."""
    data: str | None = None
    """Your rows, for custom: JSON lines, .csv, or hub:USER/NAME. Each row has a "prompt" and columns that
    your reward receives. A data set of the hub is loaded with the package datasets; choose another split or
    configuration with hub:USER/NAME[/CONFIGURATION][:SPLIT]."""
    protocol: Literal["dtm", "spg", "d1"] = "dtm"
    """Published protocol whose prompts and answer parser are used."""
    reward: Literal["paper", "released", "spg"] = "paper"
    """Variant of the benchmark's reward."""
    completion_length: int = 256
    """L, the tokens per completion."""
    prompt_length: int = 1024
    """Largest length of a prompt, in tokens; rows with longer prompts are dropped, and counted."""
    seed: int = 0
    """Seed of the choice of training rows that are kept for validation."""

    def __post_init__(self) -> None:
        check_fields("task", self, completion_length=AT_LEAST_ONE, prompt_length=AT_LEAST_ONE)


TASK_CONFIGS: dict[str, type[TaskConfig]] = {
    "maze": MazeConfig,
    **dict.fromkeys(("sudoku-mini", "countdown-mini"), MiniConfig),
    **dict.fromkeys(("countdown", "sudoku", "gsm8k", "math500", "custom"), LanguageConfig),
}
"""Task kind → its section."""
