"""File locks, for one writer per folder; a lock ends with its process, also after ``kill -9``."""

from __future__ import annotations

import fcntl
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dtm.errors import DtmWarning, LockedError
from dtm.writing import writing

LOCK = ".lock"
"""Name of the lock file; it names its owner, and is not deleted on release."""
_held: set[Path] = set()
"""Folders locked by this process, since the kernel's locks exclude only other processes."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder; if it is already locked, raise an error that names the owner.

    The kernel releases the lock when the process ends, however it ends. Forked children do not inherit it.
    """
    path = folder.resolve() / LOCK
    if path in _held:
        raise _in_use(folder, "this process")
    _held.add(path)
    try:
        with writing(path):
            file = path.open("a+", encoding="utf-8")
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                file.seek(0)
                raise _in_use(folder, file.read().strip() or "another process") from None
            except OSError as problem:
                notice = f"{folder} cannot be locked ({problem.strerror}): do not start a second run in it"
                warnings.warn(notice, DtmWarning, stacklevel=3)
            with writing(path):
                file.truncate(0)
                since = time.strftime("%Y-%m-%d %H:%M:%S")
                command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
                file.write(f"process {os.getpid()} on {platform.node()} since {since} ({command})\n")
                file.flush()
            yield
    finally:
        _held.discard(path)


def _in_use(folder: Path, owner: str) -> LockedError:
    return LockedError(f"{folder} is in use by {owner}. Wait until it ends, or choose another folder")
