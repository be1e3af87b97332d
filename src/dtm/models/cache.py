"""Keys and values of a batch, kept from one pass over whole rows to the passes over windows of them.

In a bidirectional model every key depends on every token, so what is kept goes stale as tokens are revealed:
a pass over a window against kept keys is an approximation, and exact for the window that nothing outside has
changed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

Kept = tuple[
    Float[Tensor, "S L K E"], Float[Tensor, "S L K E"], Int[Tensor, " B"] | None, Int[Tensor, "B W"] | None
]
"""Keys and values of one layer, the rows of it that a pass replaces, and the positions in them; None: all."""


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Room for the keys and values of every layer; passes write into it."""

    layers: tuple[tuple[Float[Tensor, "S L K E"], Float[Tensor, "S L K E"]], ...]
    rows: Int[Tensor, " B"] | None = None
    """The rows that a pass over whole rows is about; None: all."""

    @property
    def length(self) -> int:
        """L, the positions of a row."""
        return self.layers[0][0].shape[1]

    def of(self, rows: Int[Tensor, " B"]) -> KeyValues:
        """The same room, for a pass over some of its rows."""
        return replace(self, rows=rows)

    def copy(self, source: Int[Tensor, " B"], to: Int[Tensor, " B"]) -> None:
        """Give rows the keys and values of others."""
        for pair in self.layers:
            for kept in pair:
                kept[to] = kept[source]

    def keep(self, rows: Sequence[int]) -> KeyValues:
        """The room of some rows, which move together, for a batch that has become smaller."""
        chosen = torch.tensor(rows, device=self.layers[0][0].device)
        for pair in self.layers:
            for kept in pair:
                kept[: len(rows)] = kept[chosen]
        return KeyValues(tuple((keys[: len(rows)], values[: len(rows)]) for keys, values in self.layers))


def replaced(
    kept: Kept, keys: Float[Tensor, "B W K E"], values: Float[Tensor, "B W K E"]
) -> tuple[Float[Tensor, "B L K E"], Float[Tensor, "B L K E"]]:
    """Write what a pass has worked out over what was kept; the keys and values of all positions."""
    all_keys, all_values, rows, where = kept
    if where is None:  # whole rows know all there is to know
        for room, new in ((all_keys, keys), (all_values, values)):
            if rows is None:
                room.copy_(new)
            else:
                room[rows] = new.to(room.dtype)
        return keys, values
    each = torch.arange(len(where), device=where.device)[:, None]
    all_keys[each, where] = keys.to(all_keys.dtype)
    all_values[each, where] = values.to(all_values.dtype)
    return all_keys, all_values
