"""Sweeps and comparisons send each of their runs to a tracker, as a run of its own there."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dtm.cli import main
from dtm.comparison import jobs, tuning
from dtm.runs.events import read_events

WANDB = '''
"""A stand-in for wandb: every call is a line of the file that WANDB_CALLS names."""
import json, os

def note(**call):
    with open(os.environ["WANDB_CALLS"], "a") as file:
        file.write(json.dumps(call) + "\\n")

def login(prompt):
    note(call="login")
    return os.environ.get("WANDB_API_KEY") is not None

class Table:
    def __init__(self, columns, data):
        self.rows = len(data)

class Run:
    def __init__(self, id, name):
        self.id, self.name = id, name
    def define_metric(self, *names, **settings):
        pass
    def log(self, values):
        kept = {name: value for name, value in values.items() if isinstance(value, (int, float))}
        note(call="log", id=self.id, name=self.name, values=kept)
    def finish(self):
        note(call="finish", id=self.id, name=self.name)

def init(project, dir, id, name, resume, config):
    return Run(id, name)
'''


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The stand-in, for this process and those that it starts; what it was called with."""
    package, log = tmp_path / "package", tmp_path / "calls.jsonl"
    package.mkdir()
    (package / "wandb.py").write_text(WANDB)
    log.touch()
    monkeypatch.syspath_prepend(package)
    source = Path(jobs.__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{package}:{source}")
    monkeypatch.setenv("WANDB_CALLS", str(log))
    monkeypatch.setenv("WANDB_API_KEY", "any")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.chdir(tmp_path)
    installed = sys.modules.pop("wandb", None)
    yield lambda kind: [
        call for call in map(json.loads, log.read_text().splitlines()) if call["call"] == kind
    ]
    sys.modules.pop("wandb", None)
    if installed is not None:
        sys.modules["wandb"] = installed


SHORT = ("--task.size", "7", "--task.completion-length", "5", "--tilt.final", "1", "--tilt.max-steps", "2")
FEW = ("--evaluation.prompts", "2", "--replay.prompts", "2")


def test_each_run_of_a_sweep_is_a_run_of_the_tracker_with_its_own_numbers(tiny, calls, tmp_path, monkeypatch):
    flags = ["sweep", "maze-small", "--model.base", tiny.model.base, *SHORT, *FEW, "--track", "wandb"]
    flags += ["--vary", "tilt.step=0.5,1", "--seeds", "1", "--jobs", "2", "--out", "grid"]
    monkeypatch.delenv("WANDB_API_KEY")
    assert main(flags) == 2  # without a login nothing starts
    assert not (tmp_path / "grid").exists()
    monkeypatch.setenv("WANDB_API_KEY", "any")
    assert main(flags) == 0
    finished = {call["name"]: call["id"] for call in calls("finish")}
    assert finished.keys() == {"grid-tilt.step=0.5-0", "grid-tilt.step=1-0"}
    assert len(set(finished.values())) == 2
    for name, run in finished.items():
        sent = [call["values"] for call in calls("log") if call["id"] == run]
        losses = {row["step"]: row["train/loss"] for row in sent if "train/loss" in row}
        logged = read_events(tmp_path / "grid" / name.removeprefix("grid-") / "metrics.jsonl", "step")
        assert losses == {row["step"]: row["loss"] for row in logged}
        assert losses


def test_trials_and_runs_of_a_comparison_are_told_apart(tiny, tmp_path, monkeypatch):
    started = []

    def start(job, processes=1, track=None):
        started.append(f"{track}-{job.name}")
        raise InterruptedError  # far enough

    monkeypatch.setattr(jobs._Job, "start", start)
    spg = replace(tiny, budget="1e6tokens")
    with pytest.raises(InterruptedError):
        tuning.tune({"spg": spg}, 1, tmp_path / "out" / "tuning", 1, print, track="wandb:out-tuning")
    with pytest.raises(InterruptedError):
        jobs.run_all({"spg-0": spg}, tmp_path / "out", track="wandb:out")
    assert started == ["wandb:out-tuning-spg-trial-0", "wandb:out-spg-0"]


def test_a_comparison_passes_the_tracker_on(tiny, calls, tmp_path, monkeypatch):
    given = {}

    def tune(configs, count, out, jobs, processes, track):
        given["tune"] = track
        return configs, []

    def run_all(configs, out, jobs, processes, track):
        given["run"] = track
        raise InterruptedError

    monkeypatch.setattr(tuning, "tune", tune)
    monkeypatch.setattr(jobs, "run_all", run_all)
    flags = ["compare", "maze-small", "--model.base", tiny.model.base, *SHORT, "--methods", "c-dtm", "--tune"]
    for asked, title in (("wandb", "versus"), ("wandb:mine", "mine")):
        assert main([*flags, "--budget", "1e6tokens", "--out", "versus", "--track", asked]) == 2
        assert given == {"tune": f"wandb:{title}-tuning", "run": f"wandb:{title}"}
