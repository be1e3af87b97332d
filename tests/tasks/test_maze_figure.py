"""The density figure shows the share of paths through each cell."""

from __future__ import annotations

import numpy as np

from dtm.tasks.maze import Maze
from dtm.tasks.maze.figure import density_figure

START, GOAL = (1, 1), (3, 3)
UPPER = [(1, 1), (1, 2), (1, 3), (2, 3), (3, 3)]
LOWER = [(1, 1), (2, 1), (3, 1), (3, 2), (3, 3)]
ELSEWHERE = [(1, 1), (1, 2), (1, 3)]


def test_each_panel_shows_the_share_of_the_paths_of_its_pair():
    maze = Maze.generate(5, 1.0, seed=0)
    pairs = [(START, GOAL), (GOAL, START)]
    figure = density_figure(
        maze, [("base", [UPPER, UPPER, UPPER, LOWER, ELSEWHERE]), ("tuned", [UPPER])], pairs
    )
    base, base_back, tuned, _ = figure.axes[:4]
    share = base.images[0].get_array()
    assert share[1, 2] == share[2, 3] == 0.75
    assert share[2, 1] == share[3, 2] == 0.25
    assert share[START] == share[GOAL] == 1
    assert np.array_equal(share.mask, ~maze.open.numpy())
    assert (tuned.images[0].get_array()[2, 1], tuned.images[0].get_array()[1, 2]) == (0, 1)
    assert base_back.images[0].get_array().sum() == 0
    labels = [axes.get_xlabel() for axes in (base, base_back, tuned)]
    assert labels == ["4 valid paths", "0 valid paths", "1 valid path"]
    assert (base.get_ylabel(), tuned.get_ylabel()) == ("base", "tuned")
    assert (base.get_title(), base_back.get_title()) == ("(1, 1) → (3, 3)", "(3, 3) → (1, 1)")


def test_start_goal_and_centre_are_marked_at_their_cells():
    maze = Maze.generate(7, 1.0, seed=0)
    figure = density_figure(maze, [("base", [])], [((1, 5), (3, 1))])
    marks = [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in figure.axes[0].lines]
    assert marks == [(5, 1), (1, 3), (3, 3)]  # x is the column
