"""Checkpoints of sharded tensors: each process writes its rows, and any number of processes reads them."""

from __future__ import annotations

import errno
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dtm.distributed import current
from dtm.distributed.sharding import held_rows, shard
from dtm.errors import CheckpointError
from dtm.runs import checkpoint as module
from dtm.runs.checkpoint import Checkpoint, StoredCheckpoint, load_latest, save_checkpoint
from ranks import each, outcomes

ROWS = 5
"""Rows of the tensors: four processes have 2, 2, 1 and none of them."""


def sharded_model(step: int, size: int) -> nn.Linear:
    assert current().size >= size
    made = model(step)
    shard(made, [], torch.device("cpu"), size)
    return made


def model(step: int) -> nn.Linear:
    """A model whose weights tell the step."""
    made = nn.Linear(3, ROWS)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) + 100 * step)
    return made


def save(folder: Path, size: int, step: int = 1) -> Path:
    """Write the weights in shards, and with them a tensor that every process holds."""
    tensors = {"student": {**sharded_model(step, size).state_dict(), "step": torch.tensor(float(step))}}
    return save_checkpoint(folder, step, Checkpoint(tensors, {"step": step}), keep=2, group=current())


def save_and_read(folder: Path, size: int) -> dict[str, bool]:
    """Save twice: a checkpoint of that name is kept. Then read the rows that this process would hold."""
    save(folder, size)
    save(folder, size)
    student = load_latest(folder, current()).tensors["student"]
    own = sharded_model(1, size).state_dict()
    return {
        name: torch.equal(student.rows(name, held_rows(value), of=ROWS), value.to_local())
        for name, value in own.items()
    }


def assert_step(found: StoredCheckpoint, step: int) -> None:
    assert found.state == {"step": step}
    expected = {**model(step).state_dict(), "step": torch.tensor(float(step))}
    assert found.tensors["student"].keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found.tensors["student"][name], value)


@pytest.mark.parametrize(("processes", "size"), [(2, 2), (4, 2), (4, 4)])
def test_each_process_saves_its_rows_once_and_one_process_reads_all(processes, size, tmp_path):
    for same in each(processes, save_and_read, tmp_path, size):
        assert same == {"weight": True, "bias": True}
    found = load_latest(tmp_path)
    assert_step(found, 1)
    files = sorted(path.name for path in (tmp_path / "step-00000001").glob("*.safetensors"))
    assert files == [f"student.{number}.safetensors" for number in range(size)]
    whole = model(1).weight
    for start in range(ROWS):
        for stop in range(start, ROWS + 1):
            rows = found.tensors["student"].rows("weight", range(start, stop), of=ROWS)
            assert torch.equal(rows, whole[start:stop])
    for other in (ROWS - 1, ROWS + 1):
        with pytest.raises(CheckpointError, match=f"'weight' has 5 rows in .*, and {other} in the model"):
            found.tensors["student"].rows("weight", range(2), of=other)


def load_after_damage(folder: Path) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return {"state": load_latest(folder, current()).state, "warnings": [str(w.message) for w in caught]}


def save_twice(folder: Path) -> list[Path]:
    return [save(folder, 2, step) for step in (1, 2)]


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_all_processes_pass_over_a_checkpoint_with_a_damaged_shard(damage, tmp_path):
    each(2, save_twice, tmp_path)
    path = tmp_path / "step-00000002" / "student.1.safetensors"
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "flipped":
        content[-1] ^= 1
        path.write_bytes(content)
    for found in each(2, load_after_damage, tmp_path):
        assert found["state"] == {"step": 1}
        (notice,) = found["warnings"]
        assert "step-00000002 is damaged (student.1.safetensors" in notice
    with pytest.warns(UserWarning, match="step-00000002 is damaged"):
        assert_step(load_latest(tmp_path), 1)


def fail_while_writing(folder: Path, number: int) -> None:
    """Save one checkpoint; in the second, the process 1 meets a full disk, or is killed at a later one."""
    save(folder, 2, 1)

    def fail(*arguments: Any) -> None:
        if number:
            os.kill(os.getpid(), number)
        raise OSError(errno.ENOSPC, "No space left on device")

    if current().rank == 1:
        module.flush = fail
    save(folder, 2, 2)


def test_a_full_disk_in_one_process_stops_all_and_leaves_the_checkpoint_before(tmp_path):
    for found in outcomes(2, fail_while_writing, tmp_path, 0):
        assert found.kind == "StorageError"
        assert "step-00000002: No space left on device" in found.text
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert_step(load_latest(tmp_path), 1)


def test_a_process_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path):
    one, other = outcomes(2, fail_while_writing, tmp_path, signal.SIGKILL)
    assert (one.kind, other) == ("PeerError", None)
    assert_step(load_latest(tmp_path), 1)
    assert (tmp_path / ".partial-step-00000002").is_dir()
    each(2, save, tmp_path, 2, 3)  # the run continues, and saves next at another step
    assert_step(load_latest(tmp_path), 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]
