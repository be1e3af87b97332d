"""Keys and values of a batch, kept from one pass over whole rows to the passes over windows of them.

In a bidirectional model every key depends on every token, so what is kept goes stale as tokens are revealed:
a pass over a window against kept keys is an approximation, and exact for the window that nothing outside has
changed since.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

Kept = tuple[Float[Tensor, "B L K E"], Float[Tensor, "B L K E"], Int[Tensor, "B W"] | None]
"""Keys and values of one layer, and the positions that are about to be replaced; None: all of them."""


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Room for the keys and values of every layer; passes write into it."""

    layers: tuple[tuple[Float[Tensor, "B L K E"], Float[Tensor, "B L K E"]], ...]

    @property
    def length(self) -> int:
        """L, the positions of a row."""
        return self.layers[0][0].shape[1]

    def first(self, rows: int) -> KeyValues:
        """The room of the first rows, for a batch that has become smaller."""
        return KeyValues(tuple((keys[:rows], values[:rows]) for keys, values in self.layers))


def replaced(
    kept: Kept, keys: Float[Tensor, "B K W E"], values: Float[Tensor, "B K W E"]
) -> tuple[Float[Tensor, "B K L E"], Float[Tensor, "B K L E"]]:
    """Write what a pass has worked out over what was kept; the keys and values of all positions."""
    all_keys, all_values, where = kept
    if where is None:
        all_keys.copy_(keys.transpose(1, 2))
        all_values.copy_(values.transpose(1, 2))
        return keys, values
    rows = torch.arange(len(where), device=where.device)[:, None]
    all_keys[rows, where] = keys.transpose(1, 2).to(all_keys.dtype)
    all_values[rows, where] = values.transpose(1, 2).to(all_values.dtype)
    return all_keys.transpose(1, 2), all_values.transpose(1, 2)
