"""Real processes of `dtm train`, killed and stopped."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dtm.config.serialise import to_yaml
from dtm.runs.checkpoint import load_latest
from dtm.runs.events import read_events
from ending import FINISHED
from timeless import timeless_rows

DTM = [sys.executable, "-m", "dtm"]


@pytest.fixture(scope="module")
def config_file(tiny, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(to_yaml(tiny))
    return path


def launch(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*DTM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def train(config_file: Path, out: Path, *flags: str) -> subprocess.Popen[str]:
    return launch(["train", "maze-small", "--config", str(config_file), "--out", str(out), *flags])


def signal_at(process: subprocess.Popen[str], metrics: Path, lines: int, number: int) -> None:
    """Send a signal once the run has written so many lines."""
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, f"the run ended before it could be stopped:\n{process.stdout.read()}"
        time.sleep(0.002)
    process.send_signal(number)


def assert_same_model(found: Path, expected: Path) -> None:
    one, other = (load_file(path / "model" / "model.safetensors") for path in (found, expected))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_killed_at_any_moment_ends_as_if_it_had_not_been(config_file, finished, tmp_path):
    out = tmp_path / "run"
    process = train(config_file, out)
    signal_at(process, out / "metrics.jsonl", 7, signal.SIGKILL)  # whatever it is doing then
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (out / "summary.json").exists()
    process = train(config_file, out, "--resume")
    printed, _ = process.communicate()
    assert process.returncode in FINISHED, printed
    assert "resumed at step" in printed
    assert_same_model(out, finished.path)
    steps = read_events(out / "metrics.jsonl", "step")
    expected = finished.events("step")
    assert timeless_rows(steps) == timeless_rows(expected)


@pytest.fixture(scope="module")
def stopped(config_file, tmp_path_factory) -> tuple[Path, int, str]:
    """A run that was sent SIGTERM after its third step: folder, exit code, and what it printed."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    process = train(config_file, out)
    signal_at(process, out / "metrics.jsonl", 6, signal.SIGTERM)
    printed, _ = process.communicate()
    return out, process.returncode, printed


def test_a_run_asked_to_stop_saves_itself_and_says_how_to_continue(stopped):
    out, code, printed = stopped
    assert code == 143, printed  # what would come after a finished run must not come now
    assert "stopped and saved. Continue with: dtm train maze-small --resume" in printed
    assert str(out) in printed
    assert "Traceback" not in printed
    saved = load_latest(out / "checkpoints").state["step"]
    assert saved == read_events(out / "metrics.jsonl", "step")[-1]["step"]
    assert not (out / "summary.json").exists()


STEADY = "    return [len(set(path)) / 5 for path in completions]\n"
HANGING = f"""
import time
calls = 0
def reward(prompts, completions):
    global calls
    calls += 1
    if calls == 3:
        open("hangs", "w").close()
        time.sleep(9e9)
{STEADY}"""


def test_a_run_asked_to_stop_does_not_wait_for_a_hanging_reward(config_file, tmp_path, monkeypatch):
    """Its deadline is longer than that of this test; the third call is that of the first refresh."""
    monkeypatch.chdir(tmp_path)
    Path("rewards.py").write_text(HANGING)
    flags = ("--reward", "rewards.py:reward", "--reward.timeout", "300")
    process = train(config_file, Path("run"), *flags)
    while not Path("hangs").exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    try:
        printed, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 143, printed
    assert "stopped and saved" in printed
    assert "looking for the sample" not in printed
    assert load_latest(Path("run") / "checkpoints").state["step"] == 2
    Path("rewards.py").write_text(f"def reward(prompts, completions):\n{STEADY}")
    process = launch(["train", "maze-small", "--resume", "--out", "run"])
    printed, _ = process.communicate()
    assert process.returncode in FINISHED, printed
    assert read_events(Path("run") / "metrics.jsonl", "step")[-1]["step"] == 8


def test_the_command_that_a_stopped_run_prints_continues_it(stopped, finished):
    out, _, printed = stopped
    command = re.search(r"Continue with: dtm (.*)", " ".join(printed.split())).group(1)
    process = launch(shlex.split(command))
    output, _ = process.communicate()
    assert process.returncode in FINISHED, output
    assert_same_model(out, finished.path)
