"""Threads are as many as cores are free; a run that is continued keeps those that it was started with."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch

from dtm.capacity import threads
from dtm.cli import threads as option
from dtm.cli.threads import set_threads, share_threads
from dtm.errors import ConfigError
from dtm.runs.folder import RunFolder
from dtm.writing import write_json


@pytest.fixture
def machine(monkeypatch):
    """A machine of eight cores, of which so many are free."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(option, "cores", lambda: 8)

    def free(count: float) -> None:
        monkeypatch.setattr(threads.BusyTime, "free_cores", lambda self: count)

    before = torch.get_num_threads()
    torch.set_num_threads(8)
    yield free
    torch.set_num_threads(before)


def _work(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not count the work of its cores")
def test_work_of_others_counts_and_work_of_this_process_does_not():
    own = threads.BusyTime.start()
    _work(0.1)
    after = threads.BusyTime.start()
    assert after.own - own.own >= 0.1
    assert after.busy - own.busy >= 0.08, "the kernel counts in ticks of 10 ms"
    child = multiprocessing.get_context("fork").Process(target=_work, args=(0.1,))
    child.start()
    child.join()
    now = threads.BusyTime.start()
    assert now.own - after.own < 0.1
    assert now.busy - after.busy >= 0.08


def test_free_cores_are_those_that_no_other_process_uses(monkeypatch):
    first = threads.BusyTime(at=0.0, busy=100.0, own=10.0)
    second = threads.BusyTime(at=2.0, busy=109.0, own=11.0)
    monkeypatch.setattr(threads, "cores", lambda: 8)
    monkeypatch.setattr(threads.BusyTime, "start", lambda: second)
    assert first.free_cores() == 8 - (9.0 - 1.0) / 2.0


def test_a_system_that_does_not_count_leaves_the_choice_to_torch():
    unknown = threads.BusyTime(at=0.0, busy=math.nan, own=0.0)
    assert threads.choose(unknown.free_cores(), most=3) == 3


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", float("inf")), ("150000 100000", 1.5), ("", float("inf"))]
)
def test_a_container_may_have_less_than_its_cores(text, cores, tmp_path):
    (tmp_path / "cpu.max").write_text(text)
    assert threads.quota(tmp_path / "cpu.max") == cores


@pytest.mark.parametrize(("free", "number"), [(8.0, 8), (2.6, 3), (0.1, 1)])
def test_a_busy_machine_gets_fewer_threads_and_a_line_that_says_so(free, number, machine, capsys):
    machine(free)
    set_threads(None)
    assert torch.get_num_threads() == number
    said = (
        ""
        if number == 8
        else f"threads: {number}, because {free:.1f} of 8 cores are free; --threads N sets it\n"
    )
    assert capsys.readouterr().out == said


def test_a_given_number_is_taken(machine, monkeypatch):
    machine(0.0)
    set_threads(5)
    assert torch.get_num_threads() == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    set_threads(None)
    assert torch.get_num_threads() == 5
    with pytest.raises(ConfigError, match="--threads must be at least 1, got 0"):
        set_threads(0)


def test_a_continued_run_keeps_its_threads_unless_told(machine, tmp_path, capsys):
    machine(1.0)
    write_json(tmp_path / "environment.json", {"threads": 6})
    set_threads(None, RunFolder(tmp_path))
    assert torch.get_num_threads() == 6
    assert "as at the start of the run" in capsys.readouterr().out
    set_threads(2, RunFolder(tmp_path))
    assert torch.get_num_threads() == 2


def test_runs_side_by_side_share_the_free_cores(machine, monkeypatch):
    machine(6.2)
    for asked, jobs, expected in ((None, 1, None), (None, 3, "2"), (None, 16, "1"), (4, 3, "4")):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        share_threads(asked, jobs)
        assert os.environ.get("OMP_NUM_THREADS") == expected
