"""Plot sampled paths: the maze with the density of its cells, before and after tuning."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from dtm.tasks.maze.grid import Maze

Cell = tuple[int, int]

WALL, CENTRE = "#3A3A3A", "#D55E00"
DENSITY = LinearSegmentedColormap.from_list("density", ["white", "#9CD0F2", "#0072B2"])
"""Colour map; its darkest blue is still brighter than the walls."""


def density_figure(
    maze: Maze, panels: Sequence[tuple[str, Sequence[Sequence[Cell]]]], pairs: Sequence[tuple[Cell, Cell]]
) -> Figure:
    """Plot a row per (label, valid paths), such as "base" and "tuned", and a column per pair.

    A panel shows, of the paths that lead from its start ○ to its goal ★, the share that visits each
    cell. The cross is the centre, which a good path avoids.
    """
    rows, columns = len(panels), len(pairs)
    figure = Figure(figsize=(2.3 * columns + 1.1, 2.45 * rows + 0.25), dpi=150, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for row, (label, paths) in enumerate(panels):
        for column, (start, goal) in enumerate(pairs):
            axes = grid[row, column]
            chosen = [path for path in paths if path and path[0] == start and path[-1] == goal]
            _panel(axes, maze, chosen, start, goal)
            axes.set_xlabel(f"{len(chosen)} valid path{'' if len(chosen) == 1 else 's'}", fontsize=8)
        grid[row, 0].set_ylabel(fill(label, 22), fontsize=11)  # the height of a panel in letters
    for axes, (start, goal) in zip(grid[0], pairs, strict=True):
        axes.set_title(f"{start} → {goal}", fontsize=9)
    figure.colorbar(
        ScalarMappable(Normalize(0, 1), DENSITY),
        ax=grid,
        shrink=0.8,
        aspect=30,
        label="share of valid paths through a cell",
        ticks=[0, 0.5, 1],
        format=lambda share, _: f"{share:.0%}",
    )
    return figure


def _panel(axes: Axes, maze: Maze, paths: Sequence[Sequence[Cell]], start: Cell, goal: Cell) -> None:
    visits = np.zeros((maze.size, maze.size))
    for path in paths:
        visits[tuple(np.array(sorted(set(path))).T)] += 1
    share = np.ma.masked_array(visits / max(1, len(paths)), mask=~maze.open.numpy())
    axes.set_facecolor(WALL)
    axes.imshow(share, cmap=DENSITY, vmin=0, vmax=1, interpolation="nearest")
    mark = max(4.5, 70 / maze.size)
    axes.plot(*start[::-1], "o", color="white", markeredgecolor="black", markersize=mark)
    axes.plot(*goal[::-1], "*", color="white", markeredgecolor="black", markersize=1.7 * mark)
    axes.plot(*maze.centre[::-1], "x", color=CENTRE, markersize=mark, markeredgewidth=1.8)
    axes.set_xticks([])
    axes.set_yticks([])
