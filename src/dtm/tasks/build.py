"""Build the task of a configuration: one of the package's, or a user's class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtm.config import LanguageConfig, MazeConfig, MiniConfig, TaskConfig
from dtm.config.registry import load_task_class
from dtm.errors import ConfigError, require
from dtm.models.families.settings import STORED, Asked
from dtm.tasks.base import Task


def build_task(config: TaskConfig, model: Path | None, asked: Asked = STORED) -> Task:
    """Build the task; ``model`` is the folder of the base, whose tokenizer language tasks use.

    ``asked`` has settings of the base that its files lack.
    """
    if isinstance(config, MazeConfig):
        return _maze(config)
    if isinstance(config, MiniConfig):
        return _mini(config)
    if isinstance(config, LanguageConfig):
        from dtm.tasks.language.build import language_task

        return language_task(config, model, asked)
    found = load_task_class(config.kind)
    takes_config = bool(inspect.signature(found).parameters)
    return as_task(found(config) if takes_config else found(), model, asked)


def as_task(task: Any, model: Path | None, asked: Asked = STORED) -> Task:
    """Convert a user's object to a task: it is a `Task`, or has ``splits`` of text and a ``reward``."""
    if isinstance(task, Task):
        return task
    if hasattr(task, "splits") and callable(getattr(task, "reward", None)):
        from dtm.tasks.language.build import text_task

        return text_task(task, model, asked)
    missing = [name for name in sorted(_members(Task)) if not hasattr(task, name)]
    raise ConfigError(
        f"{type(task).__name__} is not a task. Give it `splits` (a mapping from train, validation and test "
        'to rows with a "prompt") and `reward(prompts, completions, **columns)`, or the rest of the Task '
        f"protocol: {', '.join(missing)}"
    )


def _members(protocol: type) -> set[str]:
    names = {*protocol.__annotations__, *vars(protocol)}
    return {name for name in names if not name.startswith("_")}


def _maze(config: MazeConfig) -> Task:
    from dtm.tasks.maze import MazeTask

    return MazeTask(
        size=config.size,
        door_fraction=config.door_fraction,
        maze_seed=config.seed,
        completion_length=config.completion_length,
        penalty=config.penalty,
    )


def _mini(config: MiniConfig) -> Task:
    from dtm.tasks.mini import Countdown, MiniTask, Sudoku

    folder = None if config.data_dir is None else Path(config.data_dir)
    require(
        folder is None or folder.is_dir(),
        f"task.data-dir: no folder {config.data_dir}; leave it out to generate items",
    )
    puzzle: Callable[..., Any] = Sudoku if config.kind == "sudoku-mini" else Countdown
    return MiniTask(puzzle(folder, config.seed, config.solved), config.skilled)
