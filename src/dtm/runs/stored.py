"""Tensors of a checkpoint on disk: whole, or in pieces that several processes wrote.

A piece is some rows of a tensor. The header of a file with pieces gives the first row of each. Readers ask
for the rows that they need, so their number may differ from that of the writers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from dtm.errors import CheckpointError, require


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a tensor in one file."""

    path: Path
    rows: range

    def read(self, name: str, wanted: range) -> Tensor:
        """Read those of the rows that are wanted; a tensor without dimensions counts as one row."""
        first, last = max(self.rows.start, wanted.start), min(self.rows.stop, wanted.stop)
        with safe_open(self.path, "pt") as file:
            if range(first, last) == self.rows:
                return file.get_tensor(name)
            return file.get_slice(name)[first - self.rows.start : last - self.rows.start]


class StoredTensors(Mapping[str, Tensor]):
    """Tensors by name; each is read when it is asked for."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._pieces: dict[str, list[Piece]] = {}
        for path in files:
            for name, rows in _contents(path):
                self._pieces.setdefault(name, []).append(Piece(path, rows))
        for pieces in self._pieces.values():
            pieces.sort(key=lambda piece: (piece.rows.start, piece.rows.stop))

    def __getitem__(self, name: str) -> Tensor:
        """Read a whole tensor."""
        count = self._pieces[name][-1].rows.stop
        return self.rows(name, range(count), of=count)

    def __iter__(self) -> Iterator[str]:
        """Return the names."""
        return iter(self._pieces)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._pieces)

    def rows(self, name: str, wanted: range, of: int) -> Tensor:
        """Read some of the ``of`` rows of a tensor, from the files that have them."""
        pieces = self._pieces[name]
        count = pieces[-1].rows.stop
        require(
            count == of,
            f"{name!r} has {count} rows in {pieces[0].path.parent}, and {of} in the model: the checkpoint is "
            "another model's. Continue the run with its own base, or start another with a new --out",
            CheckpointError,
        )
        needed = [piece for piece in pieces if _overlap(piece.rows, wanted)]
        found = [piece.read(name, wanted) for piece in needed or pieces[:1]]
        return found[0] if len(found) == 1 else torch.cat(found)


def _contents(path: Path) -> Iterator[tuple[str, range]]:
    """Yield name and rows of each tensor of a file."""
    with safe_open(path, "pt") as file:
        first_rows = file.metadata() or {}
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            first, shape = int(first_rows.get(name, 0)), file.get_slice(name).get_shape()
            yield name, range(first, first + (shape[0] if shape else 1))


def _overlap(one: range, other: range) -> int:
    """Return the number of rows that two ranges share.

    >>> _overlap(range(2, 5), range(4, 9)), _overlap(range(2), range(2, 4))
    (1, 0)
    """
    return max(0, min(one.stop, other.stop) - max(one.start, other.start))
