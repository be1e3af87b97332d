r"""Mask plans that mask k random positions out of a completion's first n, and everything after them.

They differ in k: n (d1, wd1), uniform in 1..n (VRPO, SPG without blocks), the nodes of a quadrature (GDPO),
or rising over the updates of an iteration (UniGRPO). Since

    (1/n) Σ_{k=1..n} E_{|S|=k} [ (n/k) Σ_{i∈S} log π(x_i | x_t) ]

is the evidence bound, the factor on a row's sum is n/k, times the share of k in that mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.errors import require
from dtm.masking.plan import Layout, Masks
from dtm.records import Sequences


def hide(
    layout: Layout, count: Int[Tensor, " B"], order: Float[Tensor, "B L"]
) -> tuple[Bool[Tensor, "B L"], Bool[Tensor, "B L"]]:
    """Return masked and scored positions: of the first n, the ``count`` with the smallest ``order``.

    Positions after the end are masked too: otherwise the model would see where the completion ends.
    """
    counted = layout.counted
    rank = order.masked_fill(~counted, torch.inf).argsort(1).argsort(1)
    scored = counted & (rank < count[:, None])
    return scored | (layout.is_completion & ~counted), scored


def _noise(layout: Layout, generator: torch.Generator) -> Float[Tensor, "B L"]:
    device = layout.index.device
    return torch.rand(layout.index.shape, generator=generator, device=device)


@final
@dataclass(frozen=True, slots=True)
class FullMask:
    """Everything masked: each token is predicted from the prompt alone, as if tokens were independent."""

    def draws(self, clean: Sequences) -> int:
        """Number of masks per sequence: 1, since the mask is not random."""
        return 1

    def masks(self, layout: Layout, generator: torch.Generator, update: int) -> Masks:
        """Return masks of all positions, with weight 1 for the sum over tokens."""
        weight = torch.ones_like(layout.span, dtype=torch.float32)
        return Masks(layout.is_completion, layout.counted, weight)


@final
@dataclass(frozen=True, slots=True)
class UniformCount:
    """k uniform in 1..n, drawn ``rows`` times independently: an unbiased estimate of the evidence bound."""

    rows: int = 1

    def __post_init__(self) -> None:
        require(self.rows >= 1, f"a sequence must be masked at least once, got {self.rows}")

    def draws(self, clean: Sequences) -> int:
        """``rows`` masks per sequence."""
        return self.rows

    def masks(self, layout: Layout, generator: torch.Generator, update: int) -> Masks:
        """Weight n/k."""
        uniform = torch.rand(len(layout.span), generator=generator, device=layout.span.device)
        count = torch.minimum((uniform * layout.span).long() + 1, layout.span)
        masked, scored = hide(layout, count, _noise(layout, generator))
        return Masks(masked, scored, layout.span / count)


@final
@dataclass(frozen=True, slots=True)
class Quadrature:
    r"""k at the nodes of a Gauss-Legendre rule: E ≈ Σ_j w_j (1/t_j) Σ_{S_j} log π, a mask for each node."""

    nodes: int = 3
    nominal: bool = False
    """Divide by the node t_j, with k = ⌊t_j n⌋, as published; else by the actual masked share k/n."""

    def __post_init__(self) -> None:
        require(self.nodes >= 1, f"a quadrature needs at least one node, got {self.nodes}")

    def draws(self, clean: Sequences) -> int:
        """Number of masks per sequence: one per node."""
        return self.nodes

    def masks(self, layout: Layout, generator: torch.Generator, update: int) -> Masks:
        """Draw the masks, with weight N w_j n / k, since the rows of a sequence are averaged."""
        node, share = (x.to(layout.span.device) for x in gauss_legendre(self.nodes))
        sequences = len(layout.span) // self.nodes
        node, share = node.repeat(sequences), share.repeat(sequences)
        count = node * layout.span
        count = (count.floor() if self.nominal else count.round()).long().clamp(min=1)
        masked, scored = hide(layout, count, _noise(layout, generator))
        ratio = node if self.nominal else count / layout.span
        return Masks(masked, scored, self.nodes * share / ratio)


def gauss_legendre(nodes: int) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return nodes and weights on [0, 1], exact for polynomials up to degree 2N − 1."""
    place, weight = np.polynomial.legendre.leggauss(nodes)
    return torch.tensor((place + 1) / 2).float(), torch.tensor(weight / 2).float()


@final
@dataclass(frozen=True, slots=True)
class RisingRatio:
    r"""t_1 uniform for each row, then rising evenly to everything masked over the updates of an iteration.

        t_j = t_1 + (1 − t_1) j / (μ − 1),   j = 0..μ−1,   k = ⌈t_j n⌉

    Each update draws its own t_1; the law of every t_j is the same as with one t_1 for all updates.
    """

    updates: int

    def draws(self, clean: Sequences) -> int:
        """One row."""
        return 1

    def masks(self, layout: Layout, generator: torch.Generator, update: int) -> Masks:
        """Weight n/k."""
        start = torch.rand(len(layout.span), generator=generator, device=layout.span.device)
        ratio = start + (1 - start) * min(update / max(self.updates - 1, 1), 1.0)
        count = torch.minimum((ratio * layout.span).ceil().long().clamp(min=1), layout.span)
        masked, scored = hide(layout, count, _noise(layout, generator))
        return Masks(masked, scored, layout.span / count)
