"""Checkpoints that are either complete or absent.

A checkpoint is written to a temporary name, hashed, flushed to disk and only then renamed to
``step-N``. A run killed at any moment, also in the middle of a write, leaves the previous one intact;
a damaged checkpoint is skipped with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from dtm.errors import CheckpointError, DtmWarning

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Named groups of tensors (one safetensors file each) and a JSON object."""

    tensors: Mapping[str, Tensors]
    state: Mapping[str, Any]


def save_checkpoint(folder: Path, step: int, checkpoint: Checkpoint, keep: int, phase: int = 0) -> Path:
    """Write ``folder/step-N`` atomically, then drop all but the latest ``keep``.

    The name has the step and, after the first phase, the phase: closing a phase makes a new state at the
    same step. Each name stands for one state, so a complete checkpoint of that name is kept as it is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"step-{step:08d}" + (f"-phase-{phase:03d}" if phase else "")
    final = folder / name
    if final.exists():
        if _damage(final) is None:
            return final
        shutil.rmtree(final)
    partial = folder / f".partial-{name}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    for name, tensors in checkpoint.tensors.items():
        contiguous = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        save_file(contiguous, partial / f"{name}.safetensors")
    (partial / "state.json").write_text(json.dumps(checkpoint.state, indent=2), encoding="utf-8")
    manifest = {path.name: _digest(path) for path in sorted(partial.iterdir())}
    (partial / "manifest.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    for path in partial.iterdir():
        _flush(path)
    _flush(partial)
    partial.rename(final)
    _flush(folder)
    for old in _found(folder)[keep:]:
        shutil.rmtree(old)
    return final


def has_checkpoint(folder: Path) -> bool:
    """Whether there is anything to resume from; a run killed before its first checkpoint starts again."""
    return bool(_found(folder))


def load_latest(folder: Path) -> Checkpoint:
    """The newest complete checkpoint."""
    for path in _found(folder):
        problem = _damage(path)
        if problem is None:
            files = path.glob("*.safetensors")
            tensors = {file.stem: load_file(file) for file in files}
            return Checkpoint(tensors, json.loads((path / "state.json").read_text(encoding="utf-8")))
        notice = f"checkpoint {path} is damaged ({problem}); trying the one before"
        warnings.warn(notice, DtmWarning, stacklevel=2)
    raise CheckpointError(
        f"no usable checkpoint in {folder}: start a new run, without --resume and with another --out"
    )


def _found(folder: Path) -> list[Path]:
    """Finished checkpoints, newest first."""
    return sorted(folder.glob("step-*"), reverse=True)


def _damage(path: Path) -> str | None:
    """The damage of a checkpoint; None if it is complete."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as problem:
        return f"manifest unreadable: {problem}"
    for name, digest in manifest.items():
        if not (path / name).is_file():
            return f"{name} is missing"
        if _digest(path / name) != digest:
            return f"{name} does not match its hash"
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
