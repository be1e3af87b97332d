"""A checkpoint is whole or not there, whatever moment the writing stops at."""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from dtm.errors import CheckpointError, StorageError
from dtm.runs import checkpoint as module
from dtm.runs.checkpoint import Checkpoint, load_latest, save_checkpoint


def state(number: float) -> Checkpoint:
    """A checkpoint with a number in every part of it."""
    tensors = {
        "student": {"weight": torch.full((3, 2), number), "bias": torch.arange(4)},
        "buffer": {"mask": torch.tensor([True, False])},
    }
    return Checkpoint(tensors, {"step": number, "tilt": 0.1 + number, "absorbed": None})


def assert_same(found: Checkpoint, expected: Checkpoint) -> None:
    assert found.state == expected.state
    assert found.tensors.keys() == expected.tensors.keys()
    for group, tensors in expected.tensors.items():
        assert found.tensors[group].keys() == tensors.keys()
        for name, value in tensors.items():
            assert torch.equal(found.tensors[group][name], value)


def test_what_is_saved_is_loaded_and_the_newest_wins(tmp_path):
    for step in (9, 10, 100):
        save_checkpoint(tmp_path, step, state(step), keep=5)
    assert_same(load_latest(tmp_path), state(100))


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_the_latest_are_kept(keep, tmp_path):
    for step in range(5):
        save_checkpoint(tmp_path, step, state(step), keep)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"step-{s:08d}" for s in range(5 - keep, 5)]


def test_transposed_weights_are_saved_by_value(tmp_path):
    value = torch.arange(6).view(2, 3).T
    save_checkpoint(tmp_path, 1, Checkpoint({"student": {"weight": value}}, {}), keep=1)
    assert torch.equal(load_latest(tmp_path).tensors["student"]["weight"], value)


@pytest.mark.parametrize("name", ["student.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["truncated", "missing", "flipped"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(name, damage, tmp_path):
    save_checkpoint(tmp_path, 1, state(1), keep=2)
    path = save_checkpoint(tmp_path, 2, state(2), keep=2) / name
    content = bytearray(path.read_bytes())
    path.unlink()
    if damage == "truncated":
        path.write_bytes(content[:-5])
    elif damage == "flipped":
        content[-6] ^= 1
        path.write_bytes(content)
    with pytest.warns(UserWarning, match="step-00000002 is damaged"):
        found = load_latest(tmp_path)
    assert_same(found, state(1))


@pytest.mark.parametrize("content", [b"[]", b"null", b"{}", b"3", b"\xff\xfe", b'{"state.json": null}'])
def test_a_manifest_that_vouches_for_nothing_is_damage(content, tmp_path):
    save_checkpoint(tmp_path, 1, state(1), keep=2)
    (save_checkpoint(tmp_path, 2, state(2), keep=2) / "manifest.json").write_bytes(content)
    with pytest.warns(UserWarning, match="step-00000002 is damaged"):
        found = load_latest(tmp_path)
    assert_same(found, state(1))


def test_damaged_checkpoints_do_not_count_as_kept(tmp_path):
    """A damaged newest one neither displaces the next good one nor stays for ever."""
    save_checkpoint(tmp_path, 1, state(1), keep=1)
    (save_checkpoint(tmp_path, 9, state(9), keep=2) / "manifest.json").write_text("{}")
    save_checkpoint(tmp_path, 2, state(2), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    assert_same(load_latest(tmp_path), state(2))


def test_a_damaged_older_checkpoint_does_not_use_up_a_place(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, state(step), keep=2)
    (tmp_path / "step-00000002" / "state.json").write_text("{}")
    save_checkpoint(tmp_path, 3, state(3), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def test_files_of_others_are_neither_read_nor_deleted(tmp_path):
    mine = ["step-00000002.bak", "step-best", "step-00000009-copy"]
    for name in mine:
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000008").write_text("a file")
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, state(step), keep=1)
    assert_same(load_latest(tmp_path), state(3))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*mine, "step-00000008", "step-00000003"}


@pytest.mark.parametrize(
    ("owner", "call", "problem"),
    [
        (module, "save_file", SafetensorError("I/O error: No space left on device (os error 28)")),
        (Path, "write_text", OSError(errno.EDQUOT, "Disk quota exceeded")),
        (os, "fsync", OSError(errno.ENOSPC, "No space left on device")),
        (Path, "rename", PermissionError(errno.EACCES, "Permission denied")),
    ],
)
def test_a_failed_write_names_its_path_and_leaves_nothing_behind(owner, call, problem, tmp_path, monkeypatch):
    def fail(*_arguments, **_options):
        raise problem

    save_checkpoint(tmp_path, 1, state(1), keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(owner, call, fail)
        with pytest.raises(StorageError, match=r"cannot write .*step-00000002: .*(space|quota|denied)"):
            save_checkpoint(tmp_path, 2, state(2), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert_same(load_latest(tmp_path), state(1))


def test_a_damaged_checkpoint_is_replaced_when_its_step_comes_again(tmp_path):
    path = save_checkpoint(tmp_path, 2, state(2), keep=2)
    (path / "state.json").write_text("{}")
    save_checkpoint(tmp_path, 2, state(2), keep=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(load_latest(tmp_path), state(2))


def test_a_leftover_of_an_interrupted_write_is_ignored(tmp_path):
    save_checkpoint(tmp_path, 1, state(1), keep=2)
    leftover = tmp_path / ".partial-step-00000002"
    leftover.mkdir()
    (leftover / "student.safetensors").write_bytes(b"half")
    assert_same(load_latest(tmp_path), state(1))
    save_checkpoint(tmp_path, 2, state(2), keep=2)
    assert_same(load_latest(tmp_path), state(2))
    assert not leftover.exists()


@pytest.mark.parametrize("content", [[], [".partial-step-00000001"], ["step-00000001"]])
@pytest.mark.filterwarnings("ignore:checkpoint")
def test_nothing_usable_is_an_error_that_names_the_folder(content, tmp_path):
    for name in content:
        (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match="no usable checkpoint in"):
        load_latest(tmp_path)


class PowerCut(Exception):
    """Stands for the end of the process."""


def cut_power(patch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Every call that touches the disk is counted; the one numbered ``at`` never happens."""
    calls: list[str] = []

    def watch(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def watched(*arguments, **options):
            calls.append(name)
            if len(calls) - 1 == at:
                raise PowerCut(name)
            return original(*arguments, **options)

        patch.setattr(owner, name, watched)

    watch(module, "save_file")
    watch(os, "fsync")
    for name in ("write_text", "rename", "mkdir"):
        watch(Path, name)
    watch(module.shutil, "rmtree")
    return calls


@pytest.mark.filterwarnings("error:checkpoint")
def test_a_write_cut_off_at_any_call_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        save_checkpoint(tmp_path / "counted", 1, state(1), keep=1)
        calls = cut_power(patch, at=-1)
        save_checkpoint(tmp_path / "counted", 2, state(2), keep=1)
        total = len(calls)
    assert {"save_file", "fsync", "rename", "write_text"} <= set(calls)
    for at in range(total):
        folder = tmp_path / f"cut-{at}"
        save_checkpoint(folder, 1, state(1), keep=1)
        with monkeypatch.context() as patch:
            cut_power(patch, at)
            with pytest.raises(PowerCut):
                save_checkpoint(folder, 2, state(2), keep=1)
        renamed = "rename" in calls[:at]
        assert_same(load_latest(folder), state(2 if renamed else 1))
        save_checkpoint(folder, 2, state(2), keep=1)
        assert_same(load_latest(folder), state(2))
