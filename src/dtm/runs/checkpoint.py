"""Checkpoints that are either complete or absent.

A checkpoint is written to a temporary name, hashed, flushed to disk and only then renamed to
``step-N``. A run killed at any moment, also in the middle of a write, leaves the previous one intact;
a damaged checkpoint is skipped with a warning, and does not count as one of those to keep.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from dtm.errors import CheckpointError, DtmWarning, StorageError
from dtm.writing import flush, writing

Tensors = Mapping[str, Tensor]
NAME = re.compile(r"step-(\d{8,})(?:-phase-(\d{3,}))?")
"""Name of a checkpoint's folder; other folders are ignored."""
STATE, MANIFEST = "state.json", "manifest.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Named groups of tensors (one safetensors file each) and a JSON object."""

    tensors: Mapping[str, Tensors]
    state: Mapping[str, Any]


def save_checkpoint(folder: Path, step: int, checkpoint: Checkpoint, keep: int, phase: int = 0) -> Path:
    """Write ``folder/step-N`` atomically, then drop all but the latest ``keep`` whole checkpoints.

    The name has the step and, after the first phase, the phase: closing a phase makes a new state at the
    same step. Each name stands for one state, so a complete checkpoint of that name is kept as it is.
    A write that fails raises `StorageError`, removes its part and leaves the other checkpoints.
    """
    name = f"step-{step:08d}" + (f"-phase-{phase:03d}" if phase else "")
    final, partial = folder / name, folder / f".partial-{name}"
    with writing(final, partial):
        folder.mkdir(parents=True, exist_ok=True)
        if final.exists():
            if _damage(final) is None:
                return final
            shutil.rmtree(final)
        _write(partial, checkpoint)
        partial.rename(final)
        flush(folder)
    _drop_old(folder, final, keep)
    return final


def _write(partial: Path, checkpoint: Checkpoint) -> None:
    """Write all files of a checkpoint and flush them to disk."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for name, tensors in checkpoint.tensors.items():
        contiguous = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        save_file(contiguous, partial / f"{name}.safetensors")
    (partial / STATE).write_text(json.dumps(checkpoint.state, indent=2), encoding="utf-8")
    manifest = {path.name: _digest(path) for path in sorted(partial.iterdir())}
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    for path in partial.iterdir():
        flush(path)
    flush(partial)


def _drop_old(folder: Path, written: Path, keep: int) -> None:
    """Delete checkpoints beyond the latest ``keep`` whole ones, and damaged ones.

    The one just written is whole; the others that count are hashed again.
    """
    whole = 0
    for path in _found(folder):
        if path == written or (whole < keep and _damage(path) is None):
            whole += 1
        else:
            shutil.rmtree(path)


@contextmanager
def saved_on(save: Callable[[], None], *stops: type[Exception]) -> Iterator[None]:
    """Save a run before an error ends it: one of ``stops``, or a failed write."""
    try:
        yield
    except stops:
        save()
        raise
    except StorageError:
        with suppress(StorageError):  # the checkpoint may still fit
            save()
        raise


def has_checkpoint(folder: Path) -> bool:
    """Return whether there is a checkpoint; a run killed before its first one starts again."""
    return bool(_found(folder))


def load_latest(folder: Path) -> Checkpoint:
    """Load the newest complete checkpoint."""
    for path in _found(folder):
        problem = _damage(path)
        if problem is None:
            tensors = {file.stem: load_file(file) for file in path.glob("*.safetensors")}
            return Checkpoint(tensors, json.loads((path / STATE).read_text(encoding="utf-8")))
        notice = f"checkpoint {path} is damaged ({problem}); trying the one before"
        warnings.warn(notice, DtmWarning, stacklevel=2)
    raise CheckpointError(
        f"no usable checkpoint in {folder}: start a new run, without --resume and with another --out"
    )


def _found(folder: Path) -> list[Path]:
    """Return the finished checkpoints, newest first."""
    named = [(NAME.fullmatch(path.name), path) for path in folder.glob("step-*") if path.is_dir()]
    placed = [(int(match[1]), int(match[2] or 0), path) for match, path in named if match is not None]
    return [path for *_, path in sorted(placed, reverse=True)]


def _damage(path: Path) -> str | None:
    """Describe the damage of a checkpoint; None if it is complete."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if not isinstance(manifest, dict) or STATE not in manifest:
            return f"{MANIFEST} does not list {STATE}"
        for name, digest in manifest.items():
            if not (path / name).is_file():
                return f"{name} is missing"
            if _digest(path / name) != digest:
                return f"{name} does not match its hash"
    except (OSError, ValueError, RecursionError) as problem:
        return f"{MANIFEST} unreadable: {problem}"
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
