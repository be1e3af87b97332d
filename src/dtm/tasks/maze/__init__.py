"""Paths through a fixed maze that should keep away from its centre: the paper's synthetic task."""

from dtm.tasks.maze.grid import Maze
from dtm.tasks.maze.task import MazeTask

__all__ = ["Maze", "MazeTask"]
