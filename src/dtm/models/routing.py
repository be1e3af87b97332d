"""Routing: choose the experts of each token, and their weights.

    s = softmax(W x) or sigmoid(W x)      scores of the E experts, in float32
    r = s + b                             b: a bias of each expert, where the family has one
    chosen = the k largest r              of the best groups of experts, where there are groups
    weight = s or r at the chosen ones    divided by their sum where ``renormalised``, times ``scale``

Letters: T tokens, E experts, k chosen ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.errors import require

TINY = 1e-20
"""Added to the sum that weights are divided by, as in the published code."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """The shape of a mixture of experts, and its rule of routing."""

    count: int
    """E, the experts of a block."""
    active: int
    """k, the experts that a token passes through."""
    width: int
    """Feed-forward width of one expert."""
    layers: tuple[int, ...]
    """Numbers of the blocks that have experts; the others are dense."""
    score: Literal["softmax", "sigmoid"] = "softmax"
    renormalised: bool = True
    """Whether the weights of the chosen experts are divided by their sum."""
    bias: Literal["none", "choice", "weight"] = "none"
    """Bias of each expert: none, on the choice alone, or on the weights too."""
    groups: int = 1
    """Groups of neighbouring experts; a group's score is the sum of its two largest r."""
    kept_groups: int = 1
    """Groups that experts are chosen from."""
    scale: float = 1.0
    """Factor on the weights."""
    shared: int | None = None
    """Width of an expert that every token passes through beside the chosen ones; None: there is none."""

    def __post_init__(self) -> None:
        require(
            1 <= self.active <= self.count,
            f"a token passes through 1 … {self.count} experts, not {self.active}",
        )
        require(self.width >= 1, f"the width of an expert must be at least 1, got {self.width}")
        require(
            1 <= self.kept_groups <= self.groups and self.count % self.groups == 0,
            f"{self.count} experts in {self.groups} groups of which {self.kept_groups} are kept: groups must "
            "be equally large, and at least one and at most all of them kept",
        )
        require(
            self.groups == 1 or self.count // self.groups >= 2,
            f"a group needs two experts; {self.count} are in {self.groups} groups",
        )
        require(
            self.active <= self.count // self.groups * self.kept_groups,
            f"{self.active} experts cannot be chosen from {self.kept_groups} groups of "
            f"{self.count // self.groups}",
        )
        require(
            self.shared is None or self.shared >= 1,
            f"the width of the shared expert must be at least 1, got {self.shared}",
        )


def route(
    logits: Float[Tensor, "T E"], bias: Float[Tensor, " E"] | None, experts: Experts
) -> tuple[Float[Tensor, "T k"], Int[Tensor, "T k"]]:
    """Return the weights of the chosen experts, in float32 or better, and their numbers.

    >>> experts = Experts(count=4, active=2, width=8, layers=(0,))
    >>> weights, chosen = route(torch.tensor([[0.0, 2.0, 0.0, 3.0]]).log1p(), None, experts)
    >>> chosen.tolist(), [round(w, 3) for w in weights[0].tolist()]
    ([[3, 1]], [0.571, 0.429])
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scores = logits.softmax(-1) if experts.score == "softmax" else logits.sigmoid()
    ranked = scores if bias is None else scores + bias
    eligible = ranked
    if experts.groups > 1:
        grouped = ranked.unflatten(-1, (experts.groups, -1))
        best = grouped.topk(2, dim=-1).values.sum(-1).topk(experts.kept_groups, dim=-1).indices
        kept = torch.zeros(grouped.shape[:2], dtype=torch.bool, device=logits.device).scatter(1, best, True)
        eligible = grouped.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
    chosen = eligible.topk(experts.active, dim=-1).indices
    weights = (ranked if experts.bias == "weight" else scores).gather(-1, chosen)
    if experts.renormalised:
        weights = weights / (weights.sum(-1, keepdim=True) + TINY)
    return experts.scale * weights, chosen
