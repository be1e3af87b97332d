"""The maze: its open cells, and the best possible reward of a path.

Cells are numbered row by row, so the door between two neighbouring rooms is the mean of their
numbers. Letters: S side of the maze in cells, R rooms, E open doors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float64, Int
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path
from torch import Tensor

from dtm.errors import require
from dtm.random import stream

STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))


@dataclass(frozen=True, eq=False)
class Maze:
    """A maze with rooms at odd (row, column), joined by doors; all other cells are walls."""

    open: Bool[Tensor, "S S"]

    @classmethod
    def generate(cls, size: int, door_fraction: float, seed: int) -> Maze:
        """Generate a random maze: a uniform spanning tree joins all rooms, then more doors are opened.

        Each wall that remains between two adjacent rooms opens with probability
        ``door_fraction``: 0 gives exactly one path between any two rooms, 1 opens every door.
        """
        require(
            size >= 5 and size % 2 == 1,
            f"the maze's size must be odd and at least 5, got {size}; try {max(5, size + 1)}",
        )
        require(
            0 <= door_fraction <= 1,
            f"door_fraction is a probability; choose one in [0, 1] instead of {door_fraction:g}",
        )
        generator = stream(seed, "maze")
        tree = _spanning_tree(size, generator)
        row, column = torch.arange(size)[:, None], torch.arange(size)
        inside = (row % (size - 1) > 0) & (column % (size - 1) > 0)
        between_rooms = inside & ((row + column) % 2 == 1)
        return cls(tree | between_rooms & (torch.rand(size, size, generator=generator) < door_fraction))

    @property
    def size(self) -> int:
        """S."""
        return len(self.open)

    @property
    def centre(self) -> tuple[int, int]:
        """The cell that paths should avoid; it may be a wall."""
        return self.size // 2, self.size // 2

    @cached_property
    def clearance(self) -> Int[Tensor, "S S"]:
        """The Manhattan distance of every cell to the centre."""
        offset = (torch.arange(self.size) - self.size // 2).abs()
        return offset[:, None] + offset

    @cached_property
    def rooms(self) -> Int[Tensor, " R"]:
        """The cell number of every room, row by row."""
        odd = torch.arange(1, self.size, 2)
        return (odd[:, None] * self.size + odd).flatten()

    @cached_property
    def edges(self) -> Int[Tensor, "E 2"]:
        """The two rooms on either side of every open door, as indices into `rooms`."""
        side = self.size // 2
        room = torch.arange(side * side).view(side, side)
        east, south = self.open[1::2, 2:-1:2], self.open[2:-1:2, 1::2]
        across = torch.stack([room[:, :-1][east], room[:, 1:][east]], dim=1)
        down = torch.stack([room[:-1][south], room[1:][south]], dim=1)
        return torch.cat([across, down])

    @cached_property
    def edge_clearance(self) -> Int[Tensor, " E"]:
        """The smallest clearance of each open door and its two rooms."""
        ends = self.rooms[self.edges]
        cells = torch.cat([ends, ends.sum(1, keepdim=True) // 2], dim=1)
        return self.clearance.flatten()[cells].amin(1)

    @cached_property
    def hops(self) -> Int[Tensor, "R R"]:
        """The smallest number of doors between each two rooms; such a walk has 2 hops + 1 cells."""
        return torch.from_numpy(shortest_path(self.graph(), directed=False, unweighted=True)).long()

    def graph(self, weight: Float64[Tensor, " E"] | None = None) -> csr_array:
        """Return rooms and open doors as a sparse graph; a door of infinite weight is closed."""
        weight = torch.ones(len(self.edges), dtype=torch.float64) if weight is None else weight
        kept = weight.isfinite()
        rows, columns = self.edges[kept].T.numpy()
        return csr_array((weight[kept].numpy(), (rows, columns)), shape=(len(self.rooms),) * 2)

    def best_clearance(self, max_cells: int) -> Int[Tensor, "R R"]:
        """Return the largest minimum clearance over walks of at most ``max_cells`` cells, for each two rooms.

        It is the largest τ for which the walk exists among the cells of clearance ≥ τ. Pairs too far
        apart for any walk of that length get −1.
        """
        best = torch.full_like(self.hops, -1)
        for threshold in sorted(set(self.edge_clearance.tolist())):
            shut = self.edge_clearance < threshold
            weight = torch.ones(len(shut), dtype=torch.float64).masked_fill(shut, torch.inf)
            hops = torch.from_numpy(shortest_path(self.graph(weight), directed=False, unweighted=True))
            best[2 * hops + 1 <= max_cells] = threshold
        return best.diagonal_scatter(self.clearance.flatten()[self.rooms])


def _spanning_tree(size: int, generator: torch.Generator) -> Bool[Tensor, "S S"]:
    """Draw a uniform spanning tree of the rooms: the doors by which a random walk first enters each room.

    This is the algorithm of Aldous and Broder; a depth-first search would favour long corridors.
    """
    opened = {(1, 1)}
    row, column, unseen = 1, 1, (size // 2) ** 2 - 1
    while unseen:
        down, right = STEPS[int(torch.randint(4, (), generator=generator))]
        to = row + 2 * down, column + 2 * right
        if not (0 < to[0] < size and 0 < to[1] < size):
            continue
        if to not in opened:
            opened |= {to, (row + down, column + right)}
            unseen -= 1
        row, column = to
    tree = torch.zeros(size, size, dtype=torch.bool)
    tree[tuple(torch.tensor(sorted(opened)).T)] = True
    return tree
