"""Load weights strictly and tensor by tensor, from one safetensors file or from several with an index; save.

Names and shapes are checked against the model before any weight is read. Tensors are loaded one at a time, so
loading needs the memory of the model and of one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dtm.errors import CheckpointError, DtmError, require
from dtm.files import read_json
from dtm.models.experts import FROZEN
from dtm.models.nf4 import is_nf4, quantise
from dtm.writing import flush, with_usual_permissions, writing

FLOATS = ("F16", "BF16", "F32", "F64")
"""Types of weights, as safetensors names them."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_NONE: Mapping[str, str] = MappingProxyType({})
Slot = tuple[str, int | None]
"""Native name of a tensor, and the number of the expert whose part of the stack is meant; None: all of it."""
Slots = Callable[[Collection[str]], Mapping[str, Slot]]
"""From the names in a model's files to the slot that each tensor belongs in."""


def weight_files(folder: Path) -> dict[str, Path]:
    """Tensor name → its file; a missing file is an error that names it."""
    if not (folder / INDEX).is_file():
        path = folder / SINGLE
        with _opened(path) as file:
            return dict.fromkeys(file.keys(), path)
    placed = {name: folder / shard for name, shard in read_index(folder).items()}
    for shard in sorted(set(placed.values())):
        lost = [name for name, path in placed.items() if path == shard]
        require(
            shard.is_file(),
            f"no usable model in {folder}: {shard.name} is absent; {INDEX} puts {len(lost)} tensors in it, "
            f"{lost[0]!r} among them. Download it again.",
            CheckpointError,
        )
        with _opened(shard) as file:
            found = set(file.keys())
        for name in lost:
            require(
                name in found, f"{shard} misses tensor {name!r}, which {INDEX} puts there", CheckpointError
            )
        for name in sorted(found - placed.keys()):
            raise CheckpointError(f"{shard} has an unexpected tensor {name!r}, which {INDEX} does not list")
    return placed


def save_weights(path: Path, weights: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Replace a safetensors file atomically."""
    partial = path.with_name(f".{path.name}.partial")
    with writing(path, partial):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: value.detach().cpu().contiguous() for name, value in weights.items()}, partial, metadata
        )
        with_usual_permissions(partial)
        flush(partial)
        partial.replace(path)


def read_index(folder: Path) -> dict[str, str]:
    """Tensor name → file name, from the index."""
    try:
        index = read_json(folder / INDEX, CheckpointError)
        return {str(name): str(shard) for name, shard in index["weight_map"].items()}
    except (CheckpointError, KeyError, TypeError, AttributeError) as problem:
        raise CheckpointError(f"no usable model in {folder}: {INDEX} is unreadable ({problem})") from None


def require_same_names(expected: Mapping[str, str], found: Mapping[str, Any], source: Path) -> None:
    """Raise an error for the first tensor that is missing or unexpected."""
    for name in sorted(expected.keys() - found.keys()):
        raise CheckpointError(f"{source} misses tensor {name!r} (the model's {expected[name]!r})")
    for name in sorted(found.keys() - expected.keys()):
        raise CheckpointError(f"{source} has an unexpected tensor {name!r}")


def without_tied(files: Mapping[str, Path], tied: Mapping[str, str]) -> dict[str, Path]:
    """Drop stored tensors that repeat another one: ``tied`` maps their names to that of the other."""
    return {name: path for name, path in files.items() if name not in tied}


def check(
    model: nn.Module, folder: Path, slots: Slots, tied: Mapping[str, str] = _NONE
) -> dict[Path, list[tuple[str, Slot]]]:
    """Compare names and shapes with the model's, and return stored names and their slots for each file.

    A file may also hold a copy of a tensor that is ``tied`` to another one. No weight is read.
    """
    files = without_tied(weight_files(folder), tied)
    # An NF4 layer on the meta device has the shape of the full weight, which it is filled from.
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    expected = slots(files.keys())
    native = {name: slot[0] for name, slot in expected.items()}
    require_same_names(native, files, folder / (INDEX if (folder / INDEX).is_file() else SINGLE))
    places: dict[Path, list[tuple[str, Slot]]] = {path: [] for path in sorted(set(files.values()))}
    for name, path in files.items():
        places[path].append((name, expected[name]))
    for path, names in places.items():
        with _opened(path) as file:
            for name, (own, expert) in names:
                stored = file.get_slice(name)
                found, wanted = tuple(stored.get_shape()), shapes[own][expert is not None :]
                message = f"{path}: {name!r} is {found}, config.json says {wanted}"
                require(found == wanted, message, CheckpointError)
                kind = stored.get_dtype()
                message = f"{path}: {name!r} is stored as {kind}; weights must be one of {', '.join(FLOATS)}"
                require(kind in FLOATS, message, CheckpointError)
    return places


def fill(
    model: nn.Module,
    folder: Path,
    slots: Slots,
    dtype: torch.dtype | None,
    device: torch.device,
    tied: Mapping[str, str] = _NONE,
) -> None:
    """Load the weights of a model on the meta device; ``dtype`` None keeps the dtype of the files."""
    places = check(model, folder, slots, tied)
    _require_equal(folder, tied)
    for path, names in places.items():
        with _opened(path) as file:
            for name, (native, expert) in names:
                value = file.get_tensor(name)
                require(
                    is_finite(value), f"{path}: {name!r} has weights that are not finite", CheckpointError
                )
                place(model, native, value, dtype, device, expert)


def is_finite(value: Tensor) -> bool:
    """Whether no element is nan or infinite, in one pass."""
    return not value.numel() or bool(torch.stack(value.aminmax()).isfinite().all())


def _require_equal(folder: Path, tied: Mapping[str, str]) -> None:
    """Raise an error for a stored copy of a tied tensor that differs from the other one."""
    files = weight_files(folder) if tied else {}
    for name, other in tied.items():
        if name in files:
            first, second = (_read(files[each], each) for each in (name, other))
            require(
                torch.equal(first, second),
                f"{files[name]}: {name!r} differs from {other!r}, and config.json says that they are tied",
                CheckpointError,
            )


def _read(path: Path, name: str) -> Tensor:
    with _opened(path) as file:
        value: Tensor = file.get_tensor(name)
        return value


def place(
    model: nn.Module,
    name: str,
    value: Tensor,
    dtype: torch.dtype | None,
    device: torch.device,
    expert: int | None = None,
) -> None:
    """Copy one tensor, or the part of one ``expert``, into the model; the file may change afterwards."""
    module, _, tensor = name.rpartition(".")
    parent: Any = model.get_submodule(module)
    wanted = dtype or value.dtype
    if name.endswith(FROZEN):
        wanted = torch.promote_types(wanted, torch.float32)
    if is_nf4(parent) and tensor == "weight":
        quantise(parent, value, wanted, device, expert)
        return
    own = getattr(parent, tensor)
    if expert is None:
        made = value.to(device=device, dtype=wanted, copy=True)
    else:
        made = torch.empty(own.shape, dtype=wanted, device=device) if own.is_meta else own.data
        made[expert] = value.to(device=device, dtype=wanted)
    setattr(parent, tensor, nn.Parameter(made, requires_grad=own.requires_grad))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file; a missing or damaged one is an error that names it."""
    try:
        with safe_open(path, "pt") as file:
            yield file
    except DtmError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError) as problem:
        raise CheckpointError(f"no usable model in {path.parent}: {path.name}: {problem}") from None
