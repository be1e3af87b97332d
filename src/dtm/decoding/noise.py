"""Noise that belongs to a row: a function of (seed, row, block, step) and of nothing beside it.

Which rows share a batch, and when a row joins it, then changes no draw; and the same row can be decoded again
in another way with the very same noise. Draws are float32 or better whatever the model's precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dtm.random import derived_seed

Place = tuple[int, int]
"""A row's number, and the block that it works on."""


@final
class RowNoise:
    """The noise of all rows of one seed."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed = seed
        self._generator = torch.Generator(device)

    def uniform(
        self, places: Sequence[Place], step: int, counts: Sequence[int], width: int
    ) -> Float[Tensor, "S M"]:
        """For each row as many uniform numbers as it has candidates; 0 beyond them."""
        noise = torch.zeros(len(places), width, device=self._generator.device)
        for values, place, count in zip(noise, places, counts, strict=True):
            if count:
                values[:count].uniform_(generator=self._at("order", place, step))
        return noise

    def exponential(
        self,
        places: Sequence[Place],
        step: int,
        counts: Sequence[int],
        shape: tuple[int, int],
        dtype: torch.dtype = torch.float32,
    ) -> Float[Tensor, "S M V"]:
        """For each row as many rows of V exponential numbers as it has candidates; 1 beyond them."""
        noise = torch.empty(len(places), *shape, dtype=dtype, device=self._generator.device)
        for values, place, count in zip(noise, places, counts, strict=True):
            if count:
                values[:count].exponential_(generator=self._at("token", place, step))
            if count < len(values):
                values[count:] = 1.0
        return noise

    def _at(self, purpose: str, place: Place, step: int) -> torch.Generator:
        return self._generator.manual_seed(derived_seed(self.seed, purpose, *place, step))
