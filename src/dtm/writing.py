"""Atomic writes to files; a failure raises an error that names the file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from dtm.errors import StorageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def writing(path: Path, partial: Path | None = None) -> Iterator[None]:
    """Turn a failed write (full disk, quota) into an error that names ``path``; remove ``partial``."""
    try:
        yield
    except (OSError, SafetensorError) as problem:
        if partial is not None:
            remove(partial)
        if isinstance(problem, StorageError):  # it has a path already
            raise
        reason = getattr(problem, "strerror", None) or problem
        raise StorageError(f"cannot write {path}: {reason}") from problem


def remove(path: Path) -> None:
    """Delete a file or folder; ignore what cannot be deleted."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def with_usual_permissions(path: Path) -> None:
    """Give a file the permissions of its folder's other files; safetensors writes for the owner alone."""
    path.chmod(path.parent.stat().st_mode & 0o666)


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically: readers see the old text or the new, also after a power cut."""
    partial = path.with_name(f".{path.name}.partial")
    with writing(path, partial):
        partial.write_text(text, encoding="utf-8")
        flush(partial)
        partial.replace(path)


def copy_file(source: Path, path: Path) -> None:
    """Copy a file's contents."""
    with writing(path, path):
        shutil.copyfile(source, path)


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure as PNG."""
    with writing(path, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")
