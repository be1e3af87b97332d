"""The maze's geometry and its best rewards, against plain searches over cells."""

from __future__ import annotations

from collections import deque

import pytest
import torch

from dtm.tasks.maze import Maze

# ── oracles: plain searches over cells, which share nothing with the sparse graphs of the package ──


def neighbours(maze, cell):
    row, column = cell
    for step in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
        if maze.open[step]:
            yield step


def bfs(maze, start, threshold=0):
    """Steps from the start to every cell that can be reached through cells of clearance ≥ threshold."""
    if maze.clearance[start] < threshold:
        return {}
    distance, queue = {start: 0}, deque([start])
    while queue:
        cell = queue.popleft()
        for step in neighbours(maze, cell):
            if step not in distance and maze.clearance[step] >= threshold:
                distance[step] = distance[cell] + 1
                queue.append(step)
    return distance


def simple_paths(maze, path, goal, max_cells):
    if path[-1] == goal:
        yield path
    elif len(path) < max_cells:
        for step in neighbours(maze, path[-1]):
            if step not in path:
                yield from simple_paths(maze, [*path, step], goal, max_cells)


def room_cells(maze):
    return [divmod(cell, maze.size) for cell in maze.rooms.tolist()]


# ── geometry ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [5, 7, 15, 21])
@pytest.mark.parametrize("door_fraction", [0.0, 0.4, 1.0])
def test_every_open_cell_is_reached_from_every_other(size, door_fraction):
    maze = Maze.generate(size, door_fraction, seed=3)
    assert len(bfs(maze, (1, 1))) == int(maze.open.sum())
    assert all(maze.open[cell] for cell in room_cells(maze))
    assert not maze.open[[0, -1]].any()
    assert not maze.open[:, [0, -1]].any()


def test_a_maze_is_a_function_of_its_seed():
    first, again, other = (Maze.generate(15, 0.4, seed) for seed in (0, 0, 1))
    assert torch.equal(first.open, again.open)
    assert not torch.equal(first.open, other.open)


def test_no_extra_doors_leave_a_perfect_maze_and_all_of_them_a_full_grid():
    rooms, doors = 7 * 7, 2 * 7 * 6
    perfect, full = Maze.generate(15, 0.0, seed=0), Maze.generate(15, 1.0, seed=0)
    assert len(perfect.edges) == rooms - 1
    assert int(perfect.open.sum()) == rooms + rooms - 1
    assert len(full.edges) == doors
    assert not full.open[2::2, 2::2].any()


def test_door_fraction_is_the_share_of_opened_walls():
    rooms, doors = 400, 2 * 20 * 19
    opened = [len(Maze.generate(41, 0.4, seed).edges) - (rooms - 1) for seed in range(5)]
    assert sum(opened) / 5 / (doors - rooms + 1) == pytest.approx(0.4, abs=0.05)


def test_spanning_trees_are_uniform():
    """Four rooms in a square have four spanning trees, one for each door left shut."""
    shut = [tuple((~Maze.generate(5, 0.0, seed).open).flatten().tolist()) for seed in range(400)]
    counts = [shut.count(tree) for tree in set(shut)]
    assert len(counts) == 4
    assert max(abs(count - 100) for count in counts) < 35


def test_hops_are_half_the_distance_between_rooms():
    maze = Maze.generate(11, 0.3, seed=5)
    rooms = room_cells(maze)
    for index, room in enumerate(rooms):
        distance = bfs(maze, room)
        assert maze.hops[index].tolist() == [distance[other] / 2 for other in rooms]


# ── the best reward ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("max_cells", [3, 7, 9, 13, 49])
def test_best_clearance_is_that_of_a_search_over_all_thresholds(seed, max_cells):
    maze = Maze.generate(7, 0.5, seed)
    best = maze.best_clearance(max_cells)
    for i, start in enumerate(room_cells(maze)):
        for j, goal in enumerate(room_cells(maze)):
            feasible = [
                threshold
                for threshold in range(int(maze.clearance.max()) + 1)
                if bfs(maze, start, threshold).get(goal, max_cells) <= max_cells - 1
            ]
            assert best[i, j] == max(feasible, default=-1)


@pytest.mark.parametrize("max_cells", [7, 11, 17])
def test_best_clearance_is_that_of_the_best_simple_path(max_cells):
    maze = Maze.generate(7, 0.6, seed=2)
    best, rooms = maze.best_clearance(max_cells), room_cells(maze)
    for i, start in enumerate(rooms):
        for j, goal in enumerate(rooms):
            paths = simple_paths(maze, [start], goal, max_cells)
            least = [min(int(maze.clearance[cell]) for cell in path) for path in paths]
            assert best[i, j] == max(least, default=-1)


def test_a_longer_completion_allows_a_wider_detour():
    maze = Maze.generate(7, 1.0, seed=0)
    middle_left, middle_right = 3, 5
    assert maze.best_clearance(5)[middle_left, middle_right] == 0  # straight through the centre
    assert maze.best_clearance(9)[middle_left, middle_right] == 2  # around it
