"""Your own reward: paths through the maze that waste no steps.

    python examples/custom_reward.py
    dtm train maze-small --reward examples/custom_reward.py:reward --reward.low -0.4 --reward.high 1

A reward is a function of prompts and completions that returns one number for each, or None to leave a
sample out. On the maze a prompt is (start, goal) and a completion is a list of cells, each a
(row, column); a token that is no cell is None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dtm
from dtm.tasks.maze import MazeTask

Cell = tuple[int, int]

MAZE = MazeTask(size=15, completion_length=32)  # the maze of maze-small, to ask whether a path is valid


def reward(
    prompts: Sequence[tuple[Cell, Cell]], completions: Sequence[Sequence[Cell | None]], **columns: Any
) -> list[float]:
    """Cells on a straight way from start to goal over cells used: 1 is as short as can be."""
    scores = []
    for prompt, path in zip(prompts, completions, strict=True):
        (row, column), (goal_row, goal_column) = prompt
        fewest = abs(row - goal_row) + abs(column - goal_column) + 1
        scores.append(fewest / len(path) if MAZE.flaw(prompt, path) is None else -0.4)
    return scores


def short_run() -> dtm.RunConfig:
    """The recipe with fewer and shorter phases, and the range of the reward declared for the guard."""
    config = dtm.recipe("maze-small")
    return dataclasses.replace(
        config,
        reward=dataclasses.replace(config.reward, low=-0.4, high=1.0),
        tilt=dataclasses.replace(config.tilt, final=5.0, max_steps=40),
    )


def main(config: dtm.RunConfig, out: str | Path | None = None) -> dtm.Run:
    """Tune towards the reward and print what came of it."""
    run = dtm.train(config, reward=reward, out=out)
    for model in ("base", "tuned"):
        measures = run.summary[model]
        print(f"{model:6} mean reward {measures['reward']:.3f}   valid {measures['valid']:.0%}")
    return run


if __name__ == "__main__":
    main(short_run())
