"""A character-level vocabulary, and text as tensors of its ids.

Texts of different lengths are rows of a grid of fixed width with blanks. The blanks are then moved to one
side, for a whole batch at a time, on any device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dtm.errors import require

BLANK = -1
"""Value of an empty place of the grid."""


@dataclass(frozen=True)
class Alphabet:
    """A vocabulary: characters have the ids 0, 1, …, followed by the end token and the mask."""

    characters: str

    @property
    def eos_id(self) -> int:
        """Id of the end token, which fills a completion after its end and a prompt before its start."""
        return len(self.characters)

    @property
    def mask_id(self) -> int:
        """Id of the mask token."""
        return len(self.characters) + 1

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.characters) + 2

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {character: number for number, character in enumerate(self.characters)} | {" ": BLANK}

    def grid(self, texts: Iterable[str], device: torch.device | str = "cpu") -> Int[Tensor, "N W"]:
        """Convert texts to ids, filled up on the right with blanks."""
        rows = list(texts)
        width = max(map(len, rows))
        unknown = set("".join(rows)) - self._ids.keys()
        require(not unknown, f"no characters of this alphabet: {''.join(sorted(unknown))!r}")
        ids = [[self._ids[character] for character in row.ljust(width)] for row in rows]
        return torch.tensor(ids, device=device)

    def text(self, row: Iterable[int]) -> str:
        """Convert ids to text up to the first end token; a mask is shown as _."""
        found = ""
        for number in row:
            if number == self.eos_id:
                break
            found += "_" if number == self.mask_id else self.characters[number]
        return found


def flush_left(grid: Int[Tensor, "N W"], width: int, fill: int) -> Int[Tensor, "N C"]:
    """Move characters to the left without blanks between them, and add ``fill`` after them."""
    moved = _moved(grid, ~(grid == BLANK))[:, :width]
    return moved.masked_fill(moved == BLANK, fill)


def flush_right(grid: Int[Tensor, "N W"], fill: int) -> tuple[Int[Tensor, "N W"], Bool[Tensor, "N W"]]:
    """Move characters to the right, with ``fill`` before them; also return the mask of characters."""
    moved = _moved(grid, grid == BLANK)
    return moved.masked_fill(moved == BLANK, fill), moved != BLANK


def _moved(grid: Int[Tensor, "N W"], first: Bool[Tensor, "N W"]) -> Int[Tensor, "N W"]:
    """Move the entries that are true in ``first`` before the others in each row, in their order."""
    return grid.gather(1, first.int().argsort(dim=1, descending=True, stable=True))
