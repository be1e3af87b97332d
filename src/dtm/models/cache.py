"""Cache of keys and values: filled by a pass over whole rows, read by passes over windows of them.

With full attention every key depends on every token, so cached keys go stale as tokens are revealed: a pass
over a window with cached keys is an approximation. It is exact as long as no token outside the window has
changed since the cache was filled. With block-causal attention the keys of finished blocks never go stale.
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
"""Cached keys and values of one layer, the rows that a pass replaces, and their positions; None: all."""


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Keys and values of every layer; passes write into them."""

    layers: tuple[tuple[Float[Tensor, "S L K E"], Float[Tensor, "S L K E"]], ...]
    rows: Int[Tensor, " B"] | None = None
    """Rows that a pass over whole rows writes; None: all."""

    @property
    def length(self) -> int:
        """L, the number of positions of a row."""
        return self.layers[0][0].shape[1]

    def of(self, rows: Int[Tensor, " B"]) -> KeyValues:
        """The same cache, for a pass over some of its rows."""
        return replace(self, rows=rows)

    def until(self, stop: int) -> KeyValues:
        """The first ``stop`` positions of the same cache; passes write through it."""
        if stop == self.length:
            return self
        return replace(self, layers=tuple((keys[:, :stop], values[:, :stop]) for keys, values in self.layers))

    def copy(self, source: Int[Tensor, " B"], to: Int[Tensor, " B"]) -> None:
        """Copy the keys and values of rows ``source`` to rows ``to``."""
        for pair in self.layers:
            for kept in pair:
                kept[to] = kept[source]

    def keep(self, rows: Sequence[int]) -> KeyValues:
        """Move some rows to the front and return a cache of these, for a smaller batch."""
        chosen = torch.tensor(rows, device=self.layers[0][0].device)
        for pair in self.layers:
            for kept in pair:
                kept[: len(rows)] = kept[chosen]
        return KeyValues(tuple((keys[: len(rows)], values[: len(rows)]) for keys, values in self.layers))


def replaced(
    kept: Kept, keys: Float[Tensor, "B W K E"], values: Float[Tensor, "B W K E"]
) -> tuple[Float[Tensor, "B L K E"], Float[Tensor, "B L K E"]]:
    """Write the keys and values of a pass into the cache, and return those of all positions."""
    all_keys, all_values, rows, where = kept
    if where is None:  # whole rows: the pass has computed all of them
        for cached, new in ((all_keys, keys), (all_values, values)):
            if rows is None:
                cached.copy_(new)
            else:
                cached[rows] = new.to(cached.dtype)
        return keys, values
    each = torch.arange(len(where), device=where.device)[:, None]
    all_keys[each, where] = keys.to(all_keys.dtype)
    all_values[each, where] = values.to(all_values.dtype)
    return all_keys, all_values
