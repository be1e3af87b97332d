"""Trackers: the same numbers as metrics.jsonl, in the same run after a resume, and no harm if they fail."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

import dtm
from dtm.cli import main
from dtm.config import RunConfig
from dtm.errors import ConfigError, DtmWarning
from dtm.report import trackers
from dtm.report.trackers import Track, numbers, require_tracker, sample_rows
from dtm.runs.events import Event, read_events
from dtm.runs.folder import RunFolder

STEPS = [Event("step", k, {"loss": 1.0 / k, "absorbed": None, "tilt": 0.0}) for k in (1, 2, 3)]
SAMPLES = Event(
    "samples", 3, {"tilt": 1.0, "prompts": ["p|q"] * 2, "completions": ["<b>", "x\ny"], "rewards": [0.0, 1.0]}
)


def need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package} to test its tracker")


class Fake:
    """A tracker that keeps what it is sent."""

    opened: list = []  # noqa: RUF012

    def __init__(self, folder, config, identity, step):
        self.identity, self.step, self.points, self.tables, self.closed = identity, step, [], [], False
        Fake.opened.append(self)

    def log(self, step, values):
        self.points.append((step, dict(values)))

    def show(self, step, rows):
        self.tables.append((step, rows))

    def close(self):
        self.closed = True


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(Fake, "opened", [])
    monkeypatch.setitem(trackers.TRACKERS, "tensorboard", Fake)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    return Fake


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(RunConfig(recipe="mine"), "train", tmp_path / "run")


def test_every_number_of_the_log_reaches_the_tracker_and_a_resume_goes_on_in_the_same_run(
    fake, tiny, tmp_path
):
    def stop(event):
        if event.step == 5:
            raise dtm.errors.RewardError("stop here")

    with pytest.raises(dtm.errors.RewardError):
        dtm.train(tiny, out=tmp_path / "run", track="tensorboard", callbacks=[stop])
    run = dtm.train(tiny, out=tmp_path / "run", track="tensorboard", resume=True)
    first, second = fake.opened
    assert first.identity == second.identity
    assert (first.step, first.closed, second.closed) == (0, True, True)
    assert second.step == 5
    logged = read_events(run.folder.metrics, "step")
    sent = {step: values for step, values in [*first.points, *second.points] if "train/loss" in values}
    assert {step: values["train/loss"] for step, values in sent.items()} == {
        row["step"]: row["loss"] for row in logged
    }
    assert [step for step, _ in [*first.tables, *second.tables]] == [0, 4, 8]
    assert {name.partition("/")[0] for _, values in second.points for name in values} == {
        *("held_out", "rollouts", "train", "phase")
    }


def test_a_title_names_the_run_and_a_resume_keeps_it(fake, folder):
    for track in ("tensorboard:grid-lr=1-0", "tensorboard"):
        Track(track, folder, RunConfig())(STEPS[0])
    first, second = fake.opened
    assert first.identity == second.identity
    assert first.identity.title == "grid-lr=1-0"
    (folder.path / "trackers.json").write_text('{"tensorboard": "0123456789"}')  # without titles, as before
    Track("tensorboard", folder, RunConfig())(STEPS[0])
    assert fake.opened[-1].identity == ("0123456789", folder.path.name)


def test_only_finite_numbers_are_sent_and_samples_as_rows_by_reward():
    values = {"reward": 0.5, "tilt": 2, "falls_back": None, "ok": True, "error": float("inf")}
    assert numbers(Event("audit", 1, values)) == {"audit/reward": 0.5, "audit/tilt": 2.0}
    assert numbers(Event("resumed", 1, {"tilt": 1.0})) == {}
    assert sample_rows(SAMPLES) == [(1.0, "p|q", "x\ny"), (0.0, "p|q", "<b>")]
    many = {name: list(range(1000)) for name in ("prompts", "completions", "rewards")}
    rows = sample_rows(Event("samples", 1, {**many, "tilt": 0.0}))
    assert len(rows) == trackers.SAMPLES
    assert (rows[0][0], rows[-1][0]) == (999.0, 0.0)


def test_a_tracker_that_fails_is_warned_of_once_and_the_run_goes_on(fake, folder, monkeypatch):
    def broken(self, step, values):
        raise ConnectionError("server away")

    monkeypatch.setattr(Fake, "log", broken)
    track = Track("tensorboard", folder, RunConfig())
    with pytest.warns(DtmWarning, match="tensorboard failed and gets no more events: server away") as seen:
        list(map(track, STEPS))
    track.close()
    assert len(seen) == 1


def test_an_unknown_or_missing_tracker_is_told_before_the_run_starts(monkeypatch, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", "maze-small", "--out", str(out), "--track", "tensorbord"]) == 2
    assert "no tracker 'tensorbord'. Did you mean 'tensorboard'?" in capsys.readouterr().err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["train", "maze-small", "--out", str(out), "--track", "wandb"]) == 2
    assert "pip install -e '.[wandb]'" in capsys.readouterr().err
    for command in (["sweep"], ["compare", "--budget", "1m"]):
        assert main([command[0], "maze-small", *command[1:], "--out", str(out), "--track", "wandb"]) == 2
        assert "pip install -e '.[wandb]'" in capsys.readouterr().err
    assert main(["compare", "--runs", "a", "b", "--track", "wandb"]) == 2
    assert "--track is for starting runs; leave it out with --runs" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("answer", [False, ConnectionError("no network")])
def test_wandb_without_a_login_is_told_before_the_run_starts(monkeypatch, answer):
    def login(prompt):
        if answer:
            raise answer
        return answer

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(login=login, __spec__="here"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(ConfigError, match="Run `wandb login`, or set WANDB_MODE=offline"):
        require_tracker("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    require_tracker("wandb")


def test_tensorboard_holds_the_numbers_and_a_resume_replaces_the_lost_steps(folder):
    need("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = Track("tensorboard", folder, RunConfig())
    for event in (*STEPS, SAMPLES):
        first(event)
    first.close()
    again = Track("tensorboard", folder, RunConfig())
    again(Event("resumed", 1, {"tilt": 0.0}))
    again(replace(STEPS[1], values={"loss": 7.0}))
    again.close()
    found = EventAccumulator(str(folder.path / "tensorboard")).Reload()
    losses = [(point.step, point.value) for point in found.Scalars("train/loss")]
    assert losses == [(1, 1.0), (2, 7.0)]


def test_wandb_offline_keeps_one_identity(folder, monkeypatch):
    need("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    require_tracker("wandb")
    for _ in range(2):
        track = Track("wandb", folder, RunConfig())
        for event in (*STEPS, SAMPLES):
            track(event)
        track.close()
        assert not track._has_failed
    kept = list((folder.path / "wandb").glob("offline-run-*"))
    assert len({path.name.rpartition("-")[2] for path in kept}) == 1


def test_trackio_holds_the_numbers_of_a_run_and_of_its_resume_in_one_run(folder, tmp_path, monkeypatch):
    need("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for events in (STEPS[:2], [STEPS[2], SAMPLES]):
        track = Track("trackio", folder, RunConfig())
        list(map(track, events))
        track.close()
        assert not track._has_failed
    with sqlite3.connect(tmp_path / "trackio" / "dtm.db") as store:
        rows = store.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert len({name for name, _, _ in rows}) == 1
    losses = [(step, json.loads(text)["train/loss"]) for _, step, text in rows if b"loss" in bytes(text)]
    assert losses == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert b"completion" in bytes(rows[-1][2])
