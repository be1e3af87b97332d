"""LoRA adapters over one shared base: W x becomes W x + (α / r) B A x, with A and B the only new weights.

Student, π_a and π_0 are then three views of the same base weights: the layers themselves are shared
objects, and only the shell of blocks around them is made anew. There is no switch to flip between the
models, so none to forget.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dtm.errors import CheckpointError, nearest, require
from dtm.models.families import FAMILIES
from dtm.models.families.base import PROJECTIONS
from dtm.models.low_rank import Adapted
from dtm.models.transformer import Transformer

ALL = tuple(PROJECTIONS)
PUBLISHED = ("q", "k", "v", "up")
PRESETS = {"all": ALL, "published": PUBLISHED}
"""Public code asks for seven projections of LLaDA by names of which three do not exist, and so adapts
four; ``published`` is those four."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoRA:
    """The shape of an adapter."""

    rank: int = 128
    """r, the rank of the update."""
    alpha: float = 64.0
    """α; the update is scaled by α / r."""
    dropout: float = 0.0
    """Dropout on the adapter's input, in training and in the student alone."""
    targets: tuple[str, ...] = ("all",)
    """Projections by native or hub name (q or q_proj), or a preset: all, published."""

    def __post_init__(self) -> None:
        require(self.rank >= 1, f"adapter.rank must be at least 1, got {self.rank}")
        require(self.alpha > 0, f"adapter.alpha must be positive, got {self.alpha:g}")
        require(0 <= self.dropout < 1, f"adapter.dropout must lie in [0, 1), got {self.dropout:g}")

    @property
    def scale(self) -> float:
        """The factor α / r on B A."""
        return self.alpha / self.rank

    def projections(self, family: str) -> tuple[str, ...]:
        """The native names of the adapted projections; a name that matches nothing is an error.

        >>> LoRA(targets=("q_proj", "ff_out")).projections("llada")
        ('q', 'down')
        """
        names: dict[str, tuple[str, ...]] = {
            hub: (name,) for hub, name in FAMILIES[family].projections().items()
        }
        names |= {name: (name,) for name in ALL} | PRESETS
        require(bool(self.targets), "adapter.targets is empty: name at least one projection")
        for target in self.targets:
            require(
                target in names,
                f"adapter.targets: no projection {target!r} in a {family} model. {nearest(target, names)}",
            )
        chosen = {name for target in self.targets for name in names[target]}
        return tuple(name for name in ALL if name in chosen)


def adapted(base: Transformer, lora: LoRA, generator: torch.Generator | None = None) -> Transformer:
    """A model that shares every weight of ``base`` and has an adapter of its own; it starts equal to it.

    A is drawn from ``generator`` (zero without one, for a model that is loaded into at once), B is zero.
    The base is frozen.
    """
    base.requires_grad_(False)
    leaves = {id(module): module for module in base.modules() if not any(True for _ in module.children())}
    model = copy.deepcopy(base, leaves)
    for projection in lora.projections(base.config.family):
        for number in range(base.config.layers):
            where, _, name = PROJECTIONS[projection].replace("*", str(number)).rpartition(".")
            parent = model.get_submodule(where)
            layer = Adapted(parent.get_submodule(name), lora.rank, lora.scale, lora.dropout)
            setattr(parent, name, layer)
    for name, parameter in adapter_parameters(model).items():
        if generator is not None and name.endswith("lora_A.weight"):
            # Drawn where the generator is: the same adapter on every device.
            drawn = torch.empty_like(parameter, device=generator.device)
            parameter.data.copy_(nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator))
    return model


def frozen_adapted(base: Transformer, lora: LoRA, weights: Mapping[str, Tensor]) -> Transformer:
    """A model with given adapter weights that is never trained and has no dropout at all."""
    model = adapted(base, replace(lora, dropout=0.0)).requires_grad_(False).eval()
    load_adapter_weights(model, weights)
    return model


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The adapter's parameters under their native names, e.g. ``blocks.0.up.lora_A.weight``."""
    return {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """The adapter's tensors, detached: what a checkpoint or an export holds."""
    return {name: parameter.detach() for name, parameter in adapter_parameters(model).items()}


@torch.no_grad()
def load_adapter_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy an adapter's tensors into a model; a name or shape that does not fit is an error."""
    own = adapter_parameters(model)
    for name in sorted(own.keys() ^ weights.keys()):
        kind = "misses" if name in own else "has an unexpected"
        raise CheckpointError(f"the adapter {kind} tensor {name!r}")
    for name, parameter in own.items():
        found, wanted = tuple(weights[name].shape), tuple(parameter.shape)
        require(found == wanted, f"the adapter's {name!r} is {found}, not {wanted}", CheckpointError)
        parameter.copy_(weights[name])
