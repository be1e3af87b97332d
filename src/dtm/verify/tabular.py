"""A tabular denoiser: one free distribution for every masked state and position.

The non-parametric model of the paper's proofs. It exists for worlds small enough to enumerate, where
the exact posterior can be written into it (see `dtm.verify.exact`), sampled from and trained.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dtm.models.denoiser import EXCLUDED, Denoiser


class Tabular(Denoiser):
    """Logits ``table[state, position, token]`` for every state in {0..V−1, mask}^L.

    A state is the sequence read as a number in base V + 1, in which the digit V is the mask.
    """

    def __init__(self, logits: Float[Tensor, "S L V"]) -> None:
        super().__init__()
        _, self.length, symbols = logits.shape
        self.vocab_size, self.mask_id, self.eos_id = symbols + 1, symbols, 0
        self.table = nn.Parameter(logits.clone())
        self.place: Tensor
        self.register_buffer("place", (symbols + 1) ** torch.arange(self.length - 1, -1, -1))

    def states(self, tokens: Int[Tensor, "B L"]) -> Int[Tensor, " B"]:
        """Return the table row of each sequence."""
        return (tokens * self.place).sum(1)

    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L V"]:
        """Return the table's logits; the head adds the mask token."""
        return self.table[self.states(tokens)]

    def head(self, rows: Float[Tensor, "N V"]) -> Float[Tensor, "N W"]:
        """Return the logits with a column for the mask token, which is never predicted."""
        return torch.cat([rows, torch.full_like(rows[:, :1], EXCLUDED)], dim=1)
