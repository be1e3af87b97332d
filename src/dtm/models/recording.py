"""Passes over batches of one shape, recorded once as CUDA graphs and replayed.

A small model's pass is hundreds of short kernels, which take longer to launch than to run. A CUDA graph
launches them all at once. A recording has memory for one pass: it is not used while the backward pass of an
earlier pass is pending, nor while gradients are accumulated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

States = tuple[Float[Tensor, "B L D"], Float[Tensor, "B L M"]]
Trunk = Callable[[Int[Tensor, "B L"]], States]


@final
class Recording:
    """A CUDA graph of a model's trunk for batches of one shape, without padding, in one precision."""

    def __init__(self, trunk: Trunk, weights: nn.ModuleList, shape: torch.Size) -> None:
        self.shape = shape
        self._parameters = list(weights.parameters())
        self._is_pending = False
        tokens = torch.zeros(shape, dtype=torch.long, device=self._parameters[0].device)
        enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        # The weights change between replays, so each replay must cast them again.
        with torch.autocast("cuda", dtype, enabled=enabled, cache_enabled=False):
            # Capture runs on its own stream; autograd would warn that gradients come from another stream.
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
            self._replay = torch.cuda.make_graphed_callables(_Recorded(trunk, weights), (tokens,))

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Copy as None: a copied model has other weights than the recording."""

    def fits(self, tokens: Int[Tensor, "B L"]) -> bool:
        """Whether this pass can be a replay."""
        adding = torch.is_grad_enabled() and self._parameters[0].grad is not None
        return tokens.shape == self.shape and not self._is_pending and not adding

    def __call__(self, tokens: Int[Tensor, "B L"]) -> States:
        """Replay the trunk; the next call overwrites the result."""
        x, mixed = self._replay(tokens)  # type: ignore[misc]
        if mixed.requires_grad:
            self._is_pending = True
            mixed.register_hook(self._finish)
        return x, mixed

    def _finish(self, gradient: Tensor) -> None:
        self._is_pending = False


class _Recorded(nn.Module):
    """The trunk as a module that has exactly the recorded weights."""

    def __init__(self, trunk: Trunk, weights: nn.ModuleList) -> None:
        super().__init__()
        self.trunk, self.weights = trunk, weights

    def forward(self, tokens: Int[Tensor, "B L"]) -> States:
        return self.trunk(tokens)
