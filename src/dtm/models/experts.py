"""A mixture of experts in place of a block's feed-forward layer: Σ_e w_e e(x) over the chosen experts.

The matrices of all experts lie in one stack. Tokens are sorted by expert, and each stack is one grouped
product; on a CPU it is a loop over the experts. The router and its bias are frozen: adapters and training
change the inputs and weights of experts, but not the router.

Letters: T tokens, S = T k pairs of a token and one of its experts, D model width, F width of an expert.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from dtm.models.low_rank import projections
from dtm.models.routing import Experts, route

FROZEN = ("experts.router.weight", "experts.bias")
"""Ends of the names of parameters that are never trained, and kept in float32: rounding them would send
tokens to other experts."""


class Stack(nn.Module):
    """One linear layer of every expert."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.weight = nn.Parameter(torch.empty(count, outputs, inputs))

    def full_weight(self) -> Float[Tensor, "E N K"]:
        """Weights of all experts."""
        return self.weight

    def forward(self, x: Float[Tensor, "S K"], ends: Int[Tensor, " E"]) -> Float[Tensor, "S N"]:
        """Multiply rows that are sorted by expert; those of expert e end at ``ends[e]``."""
        weight = self.full_weight().to(x.dtype)
        return grouped_product(x, weight, ends) if x.is_cuda else looped_product(x, weight, ends)


def grouped_product(
    x: Float[Tensor, "S K"], weight: Float[Tensor, "E N K"], ends: Int[Tensor, " E"]
) -> Float[Tensor, "S N"]:
    """Multiply the rows of each expert with its matrix in one kernel; nothing waits for the device."""
    product: Tensor = F.grouped_mm(x, weight.transpose(1, 2), offs=ends.int())
    return product


def looped_product(
    x: Float[Tensor, "S K"], weight: Float[Tensor, "E N K"], ends: Int[Tensor, " E"]
) -> Float[Tensor, "S N"]:
    """Multiply the rows of each expert with its matrix, one expert after the other."""
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    return torch.cat([part @ matrix.T for part, matrix in zip(x.split(sizes), weight, strict=True)])


class FeedForward(nn.Module):
    """A gated feed-forward layer: the shared expert."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up: nn.Module | None = None
        """gate and up as one product, in merged models."""
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Float[Tensor, "*P D"]) -> Float[Tensor, "*P D"]:
        """down(silu(gate) · up)."""
        y: Tensor = self.down(widened(self, x))
        return y


def widened(layer: Any, x: Float[Tensor, "*P D"]) -> Float[Tensor, "*P F"]:
    """Hidden layer of a gated feed-forward layer: silu(gate) · up."""
    gate, up = (
        projections(x, (layer.gate, layer.up)) if layer.gate_up is None else layer.gate_up(x).chunk(2, -1)
    )
    return F.silu(gate) * up


class Mixture(nn.Module):
    """Router and experts of one block."""

    def __init__(self, experts: Experts, width: int) -> None:
        super().__init__()
        self.experts = experts
        self.router = nn.Linear(width, experts.count, bias=False).requires_grad_(False)
        self.bias: nn.Parameter | None = None
        if experts.bias != "none":
            self.bias = nn.Parameter(torch.zeros(experts.count), requires_grad=False)
        self.gate = Stack(experts.count, width, experts.width)
        self.up = Stack(experts.count, width, experts.width)
        self.down = Stack(experts.count, experts.width, width)

    def forward(self, x: Float[Tensor, "*P D"]) -> Float[Tensor, "*P D"]:
        """Σ_e w_e down_e(silu(gate_e x) · up_e x) over the chosen experts of each token."""
        kind, count = x.device.type, self.experts.active
        tokens = x.flatten(0, -2)
        if torch.is_autocast_enabled(kind):
            tokens = tokens.to(torch.get_autocast_dtype(kind))
        with torch.autocast(kind, enabled=False):
            precise = torch.promote_types(x.dtype, torch.float32)
            scores = F.linear(x.flatten(0, -2).to(precise), self.router.weight.to(precise))
            weights, chosen = route(scores, self.bias, self.experts)
            order = chosen.flatten().argsort(stable=True)
            place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
            ends = _counts(chosen.flatten(), self.experts.count).cumsum(0)
            rows = tokens[order // count]
            inner = F.silu(self.gate(rows, ends)) * self.up(rows, ends)
            made = self.down(inner, ends)[place].unflatten(0, (-1, count))
            return (made * weights[..., None].to(made.dtype)).sum(1).view(x.shape)


@cache
def exclude_from_compilation() -> None:
    """Run the products of experts eagerly in compiled models: their sizes depend on the routing.

    The compiler fuses what lies between the products. Called before anything is compiled, and not as a
    decorator: that would load the compiler, which takes a second, in every process.
    """
    Stack.forward = torch.compiler.disable(Stack.forward)  # type: ignore[method-assign]


def _counts(chosen: Int[Tensor, " S"], experts: int) -> Int[Tensor, " E"]:
    """Return how often each expert is chosen; unlike bincount it does not wait for the device."""
    return torch.zeros(experts, dtype=torch.long, device=chosen.device).scatter_add(
        0, chosen, torch.ones_like(chosen)
    )
