"""Diverse random paths to pretrain on: shortest paths under random lengths of the doors.

Exponential lengths make every simple path possible and long detours rare. A bank draws some sets of lengths
once and stores, for each, the next room on the way from any room to any goal. A path then costs one look-up
per room, for a whole batch at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int, Int16
from scipy.sparse.csgraph import shortest_path
from torch import Tensor

from dtm.tasks.maze.grid import Maze


@dataclass(frozen=True, eq=False)
class PathBank:
    """Random paths between any two rooms. Letters: W sets of door lengths, R rooms, C cells of a row."""

    rooms: Int[Tensor, " R"]
    """The cell number of each room."""
    towards: Int16[Tensor, "W R R"]
    """``towards[w, goal, room]``: the room after ``room`` on the way to ``goal``; the goal stays put."""

    @classmethod
    def draw(cls, maze: Maze, weightings: int, generator: torch.Generator) -> PathBank:
        """Draw a bank of ``weightings`` sets of door lengths."""
        rooms = len(maze.rooms)
        towards = torch.empty(weightings, rooms, rooms, dtype=torch.int16)
        for table in towards:
            length = torch.empty(len(maze.edges), dtype=torch.float64).exponential_(generator=generator)
            _, before = shortest_path(maze.graph(length), directed=False, return_predecessors=True)
            # Doors work both ways, so the room before x on the path goal → x is the one after x on x → goal.
            table.copy_(torch.from_numpy(before.astype(np.int16)))
            table.diagonal().copy_(torch.arange(rooms))
        return cls(maze.rooms, towards)

    def to(self, device: torch.device) -> PathBank:
        """Move the bank to another device, on which it then samples."""
        return PathBank(self.rooms.to(device), self.towards.to(device))

    def sample(self, count: int, width: int, pad: int, generator: torch.Generator) -> Int[Tensor, "N C"]:
        """Draw ``count`` paths between distinct rooms as cell numbers, padded to ``width`` with ``pad``.

        Paths longer than ``width`` are drawn again. This ends, since the two rooms of the shortest door are
        always joined by a path of three cells.
        """
        parts: list[Tensor] = []
        missing = count
        while missing > 0:
            rooms, hops = self._walk(missing + missing // 8 + 16, (width - 1) // 2, generator)
            parts.append(self._cells(rooms[hops < rooms.shape[1]], width, pad)[:missing])
            missing -= len(parts[-1])
        return torch.cat(parts)

    def lengths(self, count: int, generator: torch.Generator) -> Int[Tensor, " N"]:
        """Return the number of cells of ``count`` paths."""
        _, hops = self._walk(count, len(self.rooms), generator)
        return 2 * hops + 1

    def _walk(
        self, count: int, max_hops: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "N K"], Int[Tensor, " N"]]:
        """Return the rooms from start to goal (where a path then stays), and the number of hops.

        A path that has not arrived after ``max_hops`` counts K hops, one more than were made.
        """
        weightings, rooms, _ = self.towards.shape
        weighting, start, ahead = (
            torch.randint(low, high, (count,), generator=generator, device=self.rooms.device)
            for low, high in ((0, weightings), (0, rooms), (1, rooms))
        )
        goal = (start + ahead) % rooms
        trail = [start]
        for _ in range(max_hops):  # checking whether all have arrived would cost more than the remaining hops
            trail.append(self.towards[weighting, goal, trail[-1]].long())
        visited = torch.stack(trail, dim=1)
        return visited, (visited != goal[:, None]).sum(1)

    def _cells(self, visited: Int[Tensor, "N K"], width: int, pad: int) -> Int[Tensor, "N C"]:
        """Return the cells: room, door, room, …, and ``pad`` after the goal."""
        rooms = self.rooms[visited]
        cells = rooms.new_full((len(rooms), width), pad)
        used = 2 * rooms.shape[1] - 1
        cells[:, 0:used:2] = rooms
        cells[:, 1:used:2] = (rooms[:, :-1] + rooms[:, 1:]) // 2
        reached = 2 * (rooms != rooms[:, -1:]).sum(1, keepdim=True) + 1
        return cells.masked_fill(torch.arange(width, device=cells.device) >= reached, pad)
