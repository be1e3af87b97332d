"""Where the rows of a batch work: a block each, not necessarily the same, and the window computed for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Spans:
    """The active block of each row.

    A window is what has to be computed for the block: the block, and before it the positions whose states
    predict its first tokens. All windows are equally wide, whoever is in the batch; that of a short last
    block reaches further to the left.
    """

    sizes: tuple[int, ...]
    """Positions of each row's block."""
    where: Int[Tensor, "S B"]
    """Positions of the blocks in their rows; before a short block stand some that are not inside it."""
    inside: Bool[Tensor, "S B"]
    window: Int[Tensor, " S"]
    """The first position of each window."""
    reach: int
    """The width of the windows."""
    before: Int[Tensor, " S"]
    """The first position of windows that also hold the block before."""
    far: int
    """The width of those."""

    @classmethod
    def of(cls, starts: Sequence[int], size: int, length: int, shift: int, device: torch.device) -> Spans:
        """Blocks of ``size`` (or what is left of the row) from the given positions in rows of ``length``."""
        sizes = tuple(min(size, length - start) for start in starts)
        widest = max(sizes)
        reach, far = min(size + shift, length), min(2 * size + shift, length)
        first, offset = torch.tensor(starts, device=device), torch.arange(widest, device=device)
        where = first.clamp(max=length - widest)[:, None] + offset
        return cls(
            sizes,
            where,
            where >= first[:, None],
            (first - shift).clamp(0, length - reach),
            reach,
            (first - shift - size).clamp(0, length - far),
            far,
        )
