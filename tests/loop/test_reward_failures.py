"""A reward that fails in the middle of a run: what is left, and how it goes on."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import pytest
import torch

import dtm
from dtm.errors import RewardError
from dtm.runs.checkpoint import load_latest
from timeless import timeless_rows


def steady(prompts, completions):
    """Distinct cells on the path, of five."""
    return [len(set(path)) / 5 for path in completions]


class FailingAt:
    """As `steady`, but the n-th call raises."""

    def __init__(self, call: int) -> None:
        self.call, self.calls = call, 0
        self.__name__ = "failing"

    def __call__(self, prompts, completions):
        self.calls += 1
        if self.calls > self.call:
            raise KeyError("answer")
        return steady(prompts, completions)


@pytest.fixture(scope="module")
def undisturbed(tiny, tmp_path_factory):
    return dtm.train(tiny, reward=steady, out=tmp_path_factory.mktemp("undisturbed") / "run")


PURPOSES = ["evaluation", "rebuild", "refresh", "closing", "evaluation again"]


@pytest.mark.parametrize("call", range(5), ids=PURPOSES)
def test_a_run_whose_reward_failed_continues_with_a_fixed_one(call, tiny, undisturbed, tmp_path):
    with pytest.raises(RewardError, match="reward failing raised KeyError: 'answer'") as caught:
        dtm.train(tiny, reward=FailingAt(call), out=tmp_path / "run")
    line = FailingAt.__call__.__code__.co_firstlineno + 3
    assert f"(test_reward_failures.py, line {line})\n  prompt: " in str(caught.value)
    again = f"dtm.train('maze-small', reward=…, out={str(tmp_path / 'run')!r}, resume=True)"
    assert f"continue it with: {again}" in str(caught.value)
    checkpoint = load_latest(tmp_path / "run" / "checkpoints")
    assert checkpoint.state["step"] == [0, 0, 2, 4, 4][call]
    run = dtm.train(tiny, reward=steady, out=tmp_path / "run", resume=True)
    expected = undisturbed.model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in run.model.state_dict().items())
    found, rows = (timeless_rows(r.events("step")) for r in (run, undisturbed))
    assert found == rows


def test_samples_without_a_reward_are_left_out_and_counted(tiny, tmp_path):
    def every_other(prompts, completions):
        return [None if row % 2 else value for row, value in enumerate(steady(prompts, completions))]

    run = dtm.train(tiny, reward=every_other, out=tmp_path / "run")
    assert run.is_finished
    first = run.events("rollouts")[0]
    assert first["skipped"] == 16


@pytest.mark.parametrize("answer", [math.nan, None])
def test_a_reward_that_rates_nothing_stops_the_run_under_either_policy(answer, tiny, tmp_path):
    config = replace(tiny, reward=replace(tiny.reward, on_error="skip"))
    with pytest.raises(RewardError, match="returned None for all 8 completions"):
        dtm.train(config, reward=lambda prompts, completions: [answer] * len(prompts), out=tmp_path / "run")


def test_skipping_lets_a_flawed_reward_finish_what_it_has_begun(tiny, tmp_path):
    def flawed(prompts, completions):
        if any(len(set(path)) < 3 for path in completions):
            raise ValueError("too short")
        return steady(prompts, completions)

    with pytest.raises(RewardError, match=r"--reward\.on-error skip"):
        dtm.train(tiny, reward=flawed, out=tmp_path / "run")
    config = replace(tiny, reward=replace(tiny.reward, on_error="skip"))
    run = dtm.train(config, reward=flawed, out=tmp_path / "run", resume=True)
    assert run.is_finished
    assert run.config.reward.on_error == "skip"
    assert sum(row["skipped"] for row in run.events("rollouts")) > 0


def test_a_hanging_reward_stops_the_run(tiny, tmp_path):
    config, over = replace(tiny, reward=replace(tiny.reward, timeout=0.2)), threading.Event()

    def hanging(prompts, completions):
        over.wait(60)

    try:
        with pytest.raises(RewardError, match=r"hanging did not answer within 0\.2 s"):
            dtm.train(config, reward=hanging, out=tmp_path / "run")
    finally:
        over.set()
    assert load_latest(tmp_path / "run" / "checkpoints").state["step"] == 0


def test_a_reward_named_in_the_configuration_is_used(tiny, tmp_path):
    path = tmp_path / "rewards.py"
    path.write_text("def half(prompts, completions):\n    return [0.5] * len(prompts)\n")
    config = replace(tiny, reward=replace(tiny.reward, function=f"{path}:half", low=0.0, high=1.0))
    run = dtm.train(config, out=tmp_path / "run")
    assert run.summary["base"]["reward"] == 0.5
    assert f"{path}:half" in (run.folder.model / "README.md").read_text()
