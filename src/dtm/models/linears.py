"""Linear layers that a model declares.

LoRA, NF4, FP8, merging, export and the estimates of memory and FLOPs all read this declaration.

A declaration is a tuple of `Linear`. Each one stands for all modules of one kind, for example the query
projections of all blocks, or the first matrix of all experts of all blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from torch import nn

from dtm.errors import require

Half = Literal["attend", "feed"]
"""The halves of a block: ``attend`` runs at all computed positions, ``feed`` at each position on its own. The
``feed`` half of the last block runs at scored positions only."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """One kind of linear layer of a model."""

    name: str
    """Short native name, such as ``q``; unique in a model."""
    path: str
    """Module path with ``*`` for each index, such as ``blocks.*.attention.q``, ``blocks.*.experts.*.up``."""
    indices: tuple[Sequence[int], ...]
    """Values of each ``*``; the first one is the number of the block."""
    inputs: int
    outputs: int
    half: Half
    bias: bool = False
    adaptable: bool = True
    """Whether LoRA may adapt it; routers and stacks of experts are not adaptable."""
    input: str = ""
    """Name of the layer that it can be merged into, with the other layers of its parent module that read the
    same input, such as ``qkv``. Empty: no other layer reads its input."""
    stacked: int = 1
    """Matrices that one module holds: those of all experts, in models of this package."""
    active: int = 1
    """Matrices of one block that a position passes through: with experts, those that the router chooses."""
    exact: bool = False
    """Whether it keeps its precision where other layers are quantised, as routers do."""

    def __post_init__(self) -> None:
        stars = self.path.count("*")
        require(
            stars == len(self.indices), f"{self.path}: {stars} indices, and {len(self.indices)} ranges given"
        )

    @property
    def count(self) -> int:
        """Number of matrices."""
        return self.stacked * math.prod(map(len, self.indices))

    @property
    def weights(self) -> int:
        """Weights of all matrices, without biases."""
        return self.count * self.inputs * self.outputs

    @property
    def is_plain(self) -> bool:
        """Whether its modules are ordinary linear layers that may be merged and rounded to eight bits."""
        return self.stacked == 1 and not self.exact

    @property
    def merged_path(self) -> str:
        """Path of the merged layer; its own path if it shares its input with no other layer."""
        parent, dot, name = self.path.rpartition(".")
        return parent + dot + (self.input or name)

    def paths(self) -> list[str]:
        """Paths of all modules.

        >>> up = Linear(name="up", path="blocks.*.up", indices=(range(2),), inputs=4, outputs=8, half="feed")
        >>> up.paths()
        ['blocks.0.up', 'blocks.1.up']
        """
        return expand(self.path, self.indices)


def expand(path: str, indices: Sequence[Sequence[int]]) -> list[str]:
    """Module paths for all values of the indices, the last index changing fastest.

    >>> expand("blocks.*.experts.*.up", (range(1, 3), range(2)))
    ['blocks.1.experts.0.up', 'blocks.1.experts.1.up', 'blocks.2.experts.0.up', 'blocks.2.experts.1.up']
    """
    pattern = path.replace("*", "{}")
    return [pattern.format(*numbers) for numbers in itertools.product(*indices)]


def merge_groups(linears: Iterable[Linear]) -> dict[str, list[Linear]]:
    """Path pattern of each merged layer → the layers that become it."""
    groups: dict[str, list[Linear]] = {}
    for linear in linears:
        groups.setdefault(linear.merged_path, []).append(linear)
    return groups


def replace_modules(model: nn.Module, linears: Iterable[Linear], make: Callable[[Any], nn.Module]) -> None:
    """Replace each module of the given layers by ``make`` of it."""
    for linear in linears:
        for path in linear.paths():
            parent, name = parent_of(model, path)
            setattr(parent, name, make(parent.get_submodule(name)))


def parent_of(model: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Parent module of a path, and the name of the module in it."""
    parent, _, name = path.rpartition(".")
    return model.get_submodule(parent), name


def position_weights(linears: Iterable[Linear], blocks: int) -> tuple[int, int]:
    """Weights that a computed position is multiplied with, and those of a scored one.

    The second number is the ``feed`` half of the last of ``blocks`` blocks, which runs at scored positions
    only; the first is everything else. Of the experts of a block only the active ones count.
    """
    computed = scored = 0
    for linear in linears:
        weights = linear.active * linear.inputs * linear.outputs
        last = linear.half == "feed" and blocks - 1 in linear.indices[0]
        computed += weights * (len(linear.indices[0]) - last)
        scored += weights * last
    return computed, scored
