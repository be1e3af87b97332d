"""Ready-made runs: functions that return a RunConfig. An ablation is a `replace` of one field."""

from __future__ import annotations

from collections.abc import Callable

from dtm.config import RunConfig
from dtm.errors import ConfigError, nearest
from dtm.recipes import llada, smollm
from dtm.recipes.maze import maze, maze_paper, maze_small
from dtm.recipes.mini import countdown_mini, sudoku_mini

RECIPES: dict[str, Callable[[], RunConfig]] = {
    "maze-small": maze_small,
    "maze": maze,
    "maze-paper": maze_paper,
    "sudoku-mini": sudoku_mini,
    "countdown-mini": countdown_mini,
    "smollm-countdown": smollm.smollm_countdown,
    "smollm-sudoku": smollm.smollm_sudoku,
    "smollm-gsm8k": smollm.smollm_gsm8k,
    "smollm-custom": smollm.smollm_custom,
    "llada-sudoku": llada.llada_sudoku,
    "llada-countdown": llada.llada_countdown,
    "llada-gsm8k": llada.llada_gsm8k,
    "llada-math500": llada.llada_math500,
    "llada-sudoku-released": llada.llada_sudoku_released,
    "llada-countdown-released": llada.llada_countdown_released,
    "llada-custom": llada.llada_custom,
}


def recipe(name: str) -> RunConfig:
    """Return the configuration of a recipe by name."""
    if name not in RECIPES:
        raise ConfigError(f"no recipe {name!r}. {nearest(name, RECIPES)}")
    return RECIPES[name]()
