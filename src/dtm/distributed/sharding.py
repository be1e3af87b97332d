"""Sharded weights (FSDP2): each process keeps a part of every tensor and gathers a block while it computes.

The processes form one mesh (replicate, shard). The processes of a shard group keep all weights together; each
group is a replica of the others. By default a group is a machine, so that weights are gathered inside it and
only gradients are sent between machines.

The head is applied outside of a model's forward pass, to parts of the scored positions. This works because
the outermost module, which has embedding and head, stays gathered from its forward pass to the end of the
backward pass. Gradients are sums over the processes, not means.

Functions here take and return plain tensors too, so that callers need not ask whether a model is sharded.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dtm.errors import require


@dataclass(frozen=True, slots=True)
class Part:
    """The part of some tensors that this process saves."""

    tensors: dict[str, Tensor]
    """Rows of sharded tensors, and whole tensors, on their device; empty: other processes save them."""
    first_rows: dict[str, int]
    """Number of the first row, for each sharded tensor."""
    shard: int | None
    """Number of this process in its shard group; None: no tensor is sharded."""


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor. Collective: all processes must call it in the same order."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def is_sharded(tensor: Tensor) -> bool:
    """Return whether this process keeps a part of the tensor only."""
    return hasattr(tensor, "full_tensor")


def on_cpu(tensors: Mapping[str, Tensor], keep: bool = True) -> dict[str, Tensor]:
    """Gather sharded tensors on the CPU one at a time, so that a GPU never holds them all.

    Collective. Without ``keep`` this process only takes part, and returns no tensors.
    """
    found = {}
    for name, tensor in tensors.items():
        gathered = whole(tensor)
        if keep:
            found[name] = gathered.cpu() if is_sharded(tensor) else tensor
    return found


def held_rows(tensor: Tensor) -> range:
    """Return the rows of a sharded tensor that this process keeps."""
    (_, number), size = _place(tensor)
    rows = range(tensor.shape[0])
    most = -(-len(rows) // size)
    return rows[number * most : (number + 1) * most]


def part_to_save(tensors: Mapping[str, Tensor], is_first: bool) -> Part:
    """Return the part of some tensors that this process saves.

    A process of the first replica saves its rows of sharded tensors; the first process saves whole tensors.
    """
    saved, first_rows, number = {}, {}, None
    for name, tensor in tensors.items():
        if is_sharded(tensor):
            (replica, number), _ = _place(tensor)
            if replica == 0:
                saved[name], first_rows[name] = _local(tensor), held_rows(tensor).start
        elif is_first:
            saved[name] = tensor
    return Part(saved, first_rows, number)


def with_rows(rows: Tensor, like: Tensor) -> Tensor:
    """Return the sharded tensor whose rows in this process are ``rows``, sharded as ``like``."""
    from torch.distributed.tensor import DTensor

    placed: Any = like
    return DTensor.from_local(
        rows.to(like.device),
        placed.device_mesh,
        placed.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def shard_size(asked: int | None, neighbours: Sequence[int]) -> int:
    """Return the number of processes of a shard group: as asked, else those of a machine.

    ``neighbours``: for each process of the run, the processes on its machine. Where machines differ, or have
    one process each, all processes are one group.

    >>> shard_size(None, [8] * 16), shard_size(4, [8] * 16), shard_size(None, [1, 1])
    (8, 4, 2)
    """
    size = len(neighbours)
    require(
        asked is None or size % asked == 0,
        f"distributed.shard-size {asked} does not divide the {size} processes of this run: give a divisor of "
        f"{size}, or --distributed.shard-size None",
    )
    here = neighbours[0]
    by_machine = {*neighbours} == {here} and here > 1 and size % here == 0
    return asked or (here if by_machine else size)


def shard(model: nn.Module, parts: Iterable[nn.Module], device: torch.device, size: int) -> None:
    """Shard a model over groups of ``size`` processes; ``parts`` are gathered one at a time."""
    from torch.distributed.fsdp import fully_shard

    # torch warns of views changed in place; the views that halves of a block return never are.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for part in [*parts, model]:
        fully_shard(part, mesh=_mesh(device.type, size))
    for part in _sharded(model):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo has no other


def materialise(blank: nn.Module, source: nn.Module, device: torch.device) -> None:
    """Fill a sharded model on the meta device with the values of another model."""
    blank.to_empty(device=device)
    with torch.no_grad():
        for own, other in zip(blank.parameters(), source.parameters(), strict=True):
            own.copy_(other)


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Keep all weights of a model gathered, so that processes may make different numbers of passes."""
    parts = _sharded(model)
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(part is not model, recurse=False)


def _sharded(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@functools.cache
def _mesh(kind: str, size: int) -> Any:
    """Return the mesh of all processes on a kind of device, with shard groups of ``size``."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.distributed_c10d import get_world_size

    return init_device_mesh(kind, (get_world_size() // size, size), mesh_dim_names=("replicate", "shard"))


def _place(tensor: Any) -> tuple[Sequence[int], int]:
    """Return (replica, number in the shard group) of this process, and the size of the group."""
    mesh = tensor.device_mesh
    return mesh.get_coordinate(), mesh.size(1)


def _local(tensor: Any) -> Tensor:
    return tensor.detach().to_local()
