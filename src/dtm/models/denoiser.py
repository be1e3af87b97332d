"""The interface that every model meets: hidden states everywhere, logits only where they are asked for.

Nobody asks for ``[B, L, V]``: callers name the positions they need, and the head runs on those rows
alone. The mask token itself is never a prediction; its logit is excluded before any softmax.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

EXCLUDED = -1e9
"""Logit of the mask token: zero probability, yet finite, so that 0 · log 0 is 0 and not nan."""


class Denoiser(nn.Module, ABC):
    """π_θ(v | x_t, i): a bidirectional model of the clean token at each masked position."""

    vocab_size: int
    mask_id: int
    eos_id: int

    @abstractmethod
    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """Final hidden states. A padded batch gives the same numbers as its unpadded rows."""

    @abstractmethod
    def head(self, rows: Float[Tensor, "N D"]) -> Float[Tensor, "N V"]:
        """Logits of chosen hidden states."""

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        attention: Bool[Tensor, "B L"] | None,
        where: Bool[Tensor, "B L"],
    ) -> Float[Tensor, "N V"]:
        """Log π_θ, in float32 or better, where ``where`` is true, in row-major order."""
        rows = where.flatten().nonzero().squeeze(1)  # waits for the device, so before it is given work
        logits = self.head(self.hidden(tokens, attention).flatten(0, 1).index_select(0, rows))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        logits[:, self.mask_id] = EXCLUDED
        return logits.log_softmax(-1)
