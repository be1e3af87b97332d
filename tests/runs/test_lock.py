"""A run's folder has one writer; the lock ends with its process, however that ends."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

import dtm
from dtm.errors import LockedError
from dtm.runs.lock import LOCK, locked


def child_that_holds(folder: Path) -> int:
    """A child process that holds the lock until it is killed."""
    ready, written = os.pipe()
    child = os.fork()
    if child == 0:
        with locked(folder):
            os.write(written, b"1")
            signal.pause()
        os._exit(0)
    assert os.read(ready, 1) == b"1"
    os.close(ready)
    os.close(written)
    return child


def test_a_held_folder_is_refused_with_its_owner_until_the_owner_is_killed(tmp_path):
    child = child_that_holds(tmp_path)
    try:
        with pytest.raises(LockedError, match=rf"in use by process {child} on \S+ since"), locked(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with locked(tmp_path):
        assert re.match(rf"process {os.getpid()} on ", (tmp_path / LOCK).read_text())


def test_a_folder_is_held_once_in_a_process_and_is_free_afterwards(tmp_path):
    with locked(tmp_path), pytest.raises(LockedError, match="in use by this process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    with locked(tmp_path):
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        with locked(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.lockf", unsupported)
    with pytest.warns(UserWarning, match="cannot be locked"), locked(tmp_path):
        pass


@pytest.mark.parametrize("start", [dtm.train, dtm.pretrain])
def test_a_second_writer_changes_nothing(start, tiny, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    with locked(out), pytest.raises(LockedError):
        start(tiny, out=out)
    assert [path.name for path in out.iterdir()] == [LOCK]
