"""Sudoku and Countdown for small models from scratch: the benchmarks' puzzles, written in characters."""

from dtm.tasks.mini.countdown import Countdown
from dtm.tasks.mini.puzzle import Puzzle
from dtm.tasks.mini.sudoku import Sudoku
from dtm.tasks.mini.task import MiniTask

__all__ = ["Countdown", "MiniTask", "Puzzle", "Sudoku"]
