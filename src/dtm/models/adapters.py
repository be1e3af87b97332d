"""LoRA adapters over one shared base: W x becomes W x + (α / r) B A x, with A and B the only new weights.

Student, π_a and π_0 are three models over the same base weights: they share the layers but each has its own
block modules. So no code needs to turn adapters on and off.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from dtm.errors import CheckpointError, nearest, require
from dtm.models.denoiser import Denoiser
from dtm.models.families import FAMILIES
from dtm.models.linears import Linear, replace_modules
from dtm.models.low_rank import Adapted

Model = TypeVar("Model", bound=Denoiser)

PUBLISHED = ("q", "k", "v", "up")
"""The preset ``published``. The published code asks for seven projections of LLaDA by name; three of these
names do not exist in LLaDA, so it adapts these four."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoRA:
    """The shape of an adapter."""

    rank: int = 128
    """r, the rank of the update."""
    alpha: float = 64.0
    """α; the update is scaled by α / r."""
    dropout: float = 0.0
    """Dropout on the adapter's input, in training and in the student only."""
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

    def resolve(self, linears: Iterable[Linear], family: str) -> tuple[Linear, ...]:
        """Return the declared layers that ``targets`` names; a name without a match is an error.

        >>> from dtm.models.shape import TransformerConfig
        >>> declared = TransformerConfig(vocab_size=9, mask_id=8, eos_id=0).linears()
        >>> [linear.name for linear in LoRA(targets=("q_proj", "ff_out")).resolve(declared, "llada")]
        ['q', 'down']
        """
        adaptable = [linear for linear in linears if linear.adaptable]
        native = {linear.name: {linear.name} for linear in adaptable}
        names: dict[str, set[str]] = {}
        for linear in adaptable:
            names.setdefault(FAMILIES[family].short_name(linear.path), set()).add(linear.name)
        names |= native | {"all": set(native)}
        if native.keys() >= set(PUBLISHED):
            names["published"] = set(PUBLISHED)
        require(bool(self.targets), "adapter.targets is empty: name at least one projection")
        for target in self.targets:
            require(
                target in names,
                f"adapter.targets: no projection {target!r} in a {family} model. {nearest(target, names)}",
            )
        chosen = {name for target in self.targets for name in names[target]}
        return tuple(linear for linear in adaptable if linear.name in chosen)


def adapted(base: Model, lora: LoRA, generator: torch.Generator | None = None) -> Model:
    """Make a model that shares every weight of ``base`` and has its own adapter; it starts equal to ``base``.

    A is drawn from ``generator`` (zero without one, for weights that are loaded afterwards), B is zero.
    The base is frozen.
    """
    linears = lora.resolve(base.linears(), base.family)
    base.requires_grad_(False)
    leaves = {id(module): module for module in base.modules() if not any(True for _ in module.children())}
    model = copy.deepcopy(base, leaves)
    replace_modules(model, linears, lambda layer: Adapted(layer, lora.rank, lora.scale, lora.dropout))
    for name, parameter in adapter_parameters(model).items():
        if generator is not None and name.endswith("lora_A.weight"):
            # Drawn on the generator's device, so that the adapter is the same on every device.
            drawn = torch.empty_like(parameter, device=generator.device)
            parameter.data.copy_(nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator))
    return model


def frozen_adapted(base: Model, lora: LoRA, weights: Mapping[str, Tensor]) -> Model:
    """Make a model with given adapter weights, frozen and without dropout."""
    model = adapted(base, replace(lora, dropout=0.0)).requires_grad_(False).eval()
    load_adapter_weights(model, weights)
    return model


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The adapter's parameters under their native names, e.g. ``blocks.0.up.lora_A.weight``."""
    return {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """The adapter's tensors, detached, for a checkpoint or an export."""
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
