"""Passes over batches of one shape, recorded once as CUDA graphs and replayed.

A small model's pass is hundreds of short kernels, which take the host longer to launch than the device to
run; a recorded pass is one launch of the same kernels. A recording has room for one pass: it is left aside
while a backward pass is still to come, and while gradients of earlier ones are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

States = tuple[Float[Tensor, "B L D"], Float[Tensor, "B L D"]]
Trunk = Callable[[Int[Tensor, "B L"]], States]


@final
class Recording:
    """A model's trunk for batches of one shape, without padding, in the precision of when it was made."""

    def __init__(self, trunk: Trunk, weights: nn.ModuleList, shape: torch.Size) -> None:
        self.shape = shape
        self._parameters = list(weights.parameters())
        self._is_awaited = False
        tokens = torch.zeros(shape, dtype=torch.long, device=self._parameters[0].device)
        enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        # The weights change between replays, so their copies in lower precision must be made in each.
        with torch.autocast("cuda", dtype, enabled=enabled, cache_enabled=False):
            # On a stream of its own, so gradients come from another one than autograd expects: already here.
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
            self._replay = torch.cuda.make_graphed_callables(_Recorded(trunk, weights), (tokens,))

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copied model has other weights: it is not recorded."""

    def fits(self, tokens: Int[Tensor, "B L"]) -> bool:
        """Whether this pass can be a replay."""
        adding = torch.is_grad_enabled() and self._parameters[0].grad is not None
        return tokens.shape == self.shape and not self._is_awaited and not adding

    def __call__(self, tokens: Int[Tensor, "B L"]) -> States:
        """What the trunk returns; it is overwritten by the next call."""
        x, mixed = self._replay(tokens)  # type: ignore[misc]
        if mixed.requires_grad:
            self._is_awaited = True
            mixed.register_hook(self._arrived)
        return x, mixed

    def _arrived(self, gradient: Tensor) -> None:
        self._is_awaited = False


class _Recorded(nn.Module):
    """What is recorded: a function of tokens and of these weights."""

    def __init__(self, trunk: Trunk, weights: nn.ModuleList) -> None:
        super().__init__()
        self.trunk, self.weights = trunk, weights

    def forward(self, tokens: Int[Tensor, "B L"]) -> States:
        return self.trunk(tokens)
