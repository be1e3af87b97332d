"""Checkpoints that are either complete or absent.

A checkpoint is written to a temporary name, hashed, flushed to disk and only then renamed to
``step-N``. A run killed at any moment, also in the middle of a write, leaves the previous one intact;
a damaged checkpoint is skipped with a warning, and does not count as one of those to keep.

Files of a checkpoint:

    GROUP.safetensors      a group of whole tensors; the first process writes it
    GROUP.N.safetensors    shard N of a group of sharded tensors; each process writes its own
    state.json             everything else
    manifest.json          the hash of each file; written last

Saving and loading are collective: each process writes its shard, and reads the rows that it needs.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from dtm.distributed import ALONE, Group
from dtm.distributed.sharding import Part, part_to_save
from dtm.errors import CheckpointError, DtmWarning, StorageError
from dtm.runs.stored import StoredTensors
from dtm.writing import flush, remove, writing

Tensors = Mapping[str, Tensor]
NAME = re.compile(r"step-(\d{8,})(?:-phase-(\d{3,}))?")
"""Name of a checkpoint's folder; other folders are ignored."""
STATE, MANIFEST = "state.json", "manifest.json"
PARTIAL = ".partial-"
"""Prefix of a checkpoint's folder while it is written."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Named groups of tensors, which may be sharded, and a JSON object."""

    tensors: Mapping[str, Tensors]
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint on disk, whose tensors are read when they are asked for."""

    tensors: Mapping[str, StoredTensors]
    state: Mapping[str, Any]


def save_checkpoint(
    folder: Path, step: int, checkpoint: Checkpoint, keep: int, phase: int = 0, group: Group = ALONE
) -> Path:
    """Write ``folder/step-N`` atomically, then drop all but the latest ``keep`` whole checkpoints.

    The name has the step and, after the first phase, the phase: closing a phase makes a new state at the
    same step. Each name stands for one state, so a complete checkpoint of that name is kept as it is.
    A write that fails raises `StorageError`, removes its part and leaves the other checkpoints.
    """
    name = f"step-{step:08d}" + (f"-phase-{phase:03d}" if phase else "")
    final, partial = folder / name, folder / f"{PARTIAL}{name}"
    if _damage(final, group) is None:
        return final
    try:
        group.by_first(lambda: _make_folder(final, partial))
        hashes = group.together(lambda: _write_tensors(final, partial, checkpoint.tensors, group.is_first))
        group.by_first(lambda: _finish(final, partial, checkpoint.state, hashes))
    except StorageError:
        if group.is_first:
            remove(partial)
        raise
    _drop_old(folder, final, keep, group)
    return final


def _make_folder(final: Path, partial: Path) -> None:
    """Make an empty folder for the files; delete a damaged checkpoint of that name, and what kills left."""
    with writing(final):
        partial.parent.mkdir(parents=True, exist_ok=True)
        for old in (final, *partial.parent.glob(f"{PARTIAL}*")):
            if old.exists():
                shutil.rmtree(old)
        partial.mkdir()


def _write_tensors(
    final: Path, partial: Path, groups: Mapping[str, Tensors], is_first: bool
) -> dict[str, str]:
    """Write this process's files; return their hashes."""
    hashes = {}
    with writing(final):
        for name, tensors in groups.items():
            part = part_to_save(tensors, is_first)
            if part.tensors or is_first:  # the first also writes a group without tensors
                path = partial / f"{name}{'' if part.shard is None else f'.{part.shard}'}.safetensors"
                _write_part(path, part)
                hashes[path.name] = _digest(path)
    return hashes


def _write_part(path: Path, part: Part) -> None:
    """Write one file; only its tensors are in main memory meanwhile."""
    values = {name: value.detach().cpu().contiguous() for name, value in part.tensors.items()}
    save_file(values, path, {name: str(row) for name, row in part.first_rows.items()} or None)
    flush(path)


def _finish(final: Path, partial: Path, state: Mapping[str, Any], hashes: list[dict[str, str]]) -> None:
    """Write the state and the manifest of all processes' files, and give the checkpoint its name."""
    with writing(final):
        (partial / STATE).write_text(json.dumps(state, indent=2), encoding="utf-8")
        manifest = {name: digest for files in hashes for name, digest in files.items()}
        manifest[STATE] = _digest(partial / STATE)
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True), encoding="utf-8")
        for path in (partial / STATE, partial / MANIFEST, partial):
            flush(path)
        partial.rename(final)
        flush(final.parent)


def _drop_old(folder: Path, written: Path, keep: int, group: Group) -> None:
    """Delete checkpoints beyond the latest ``keep`` whole ones, and damaged ones.

    The one just written is whole; the others that count are hashed again.
    """
    whole, dropped = 0, []
    for path in group.by_first(lambda: _found(folder)):
        if path == written or (whole < keep and _damage(path, group) is None):
            whole += 1
        else:
            dropped.append(path)
    group.by_first(lambda: _delete(dropped))


def _delete(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder)


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


def load_latest(folder: Path, group: Group = ALONE) -> StoredCheckpoint:
    """Open the newest complete checkpoint."""
    for path in group.by_first(lambda: _found(folder)):
        problem = _damage(path, group)
        if problem is None:
            files: dict[str, list[Path]] = {}
            for file in sorted(path.glob("*.safetensors")):
                files.setdefault(file.name.partition(".")[0], []).append(file)
            tensors = {name: StoredTensors(of_group) for name, of_group in files.items()}
            return StoredCheckpoint(tensors, json.loads((path / STATE).read_text(encoding="utf-8")))
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


def _damage(path: Path, group: Group) -> str | None:
    """Describe the damage of a checkpoint; None if it is complete. Each process hashes some of the files."""
    listed = group.by_first(lambda: _manifest(path))
    if isinstance(listed, str):
        return listed
    names = sorted(listed)
    mine = {names[number]: listed[names[number]] for number in group.share(len(names))}
    return next(filter(None, group.together(lambda: _mismatch(path, mine))), None)


def _manifest(path: Path) -> dict[str, str] | str:
    """Return the hash of each file of a checkpoint, or what is wrong with the manifest."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        return f"{MANIFEST} unreadable: {problem}"
    if not isinstance(manifest, dict) or STATE not in manifest:
        return f"{MANIFEST} does not list {STATE}"
    return manifest


def _mismatch(path: Path, hashes: Mapping[str, str]) -> str | None:
    """Describe the first file that is missing or does not match its hash."""
    try:
        for name, digest in hashes.items():
            if not (path / name).is_file():
                return f"{name} is missing"
            if _digest(path / name) != digest:
                return f"{name} does not match its hash"
    except OSError as problem:
        return f"a file is unreadable: {problem}"
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
