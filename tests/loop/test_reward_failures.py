"""A reward that fails in the middle of a run: what is left, and how it goes on."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
import torch

import dtm
from dtm.cli import main
from dtm.errors import ConfigError, DivergedError, DtmWarning, RewardError
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


@pytest.fixture
def finished_by_closure(tiny, tmp_path):
    def one(prompts, completions):
        return [1.0] * len(prompts)

    return dtm.train(tiny, reward=one, out=tmp_path / "run"), one


PURPOSES = ["evaluation", "rebuild", "refresh", "evaluation again"]


@pytest.mark.parametrize("call", range(4), ids=PURPOSES)
def test_a_run_whose_reward_failed_continues_with_a_fixed_one(call, tiny, undisturbed, tmp_path):
    with pytest.raises(RewardError, match="reward failing raised KeyError: 'answer'") as caught:
        dtm.train(tiny, reward=FailingAt(call), out=tmp_path / "run")
    line = FailingAt.__call__.__code__.co_firstlineno + 3
    assert f"(test_reward_failures.py, line {line})\n  prompt: " in str(caught.value)
    again = f"dtm.train('maze-small', reward=…, out={str(tmp_path / 'run')!r}, resume=True)"
    assert f"continue it with: {again}" in str(caught.value)
    checkpoint = load_latest(tmp_path / "run" / "checkpoints")
    assert checkpoint.state["step"] == [0, 0, 2, 4][call]
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
    assert first["skipped"] == 18


@pytest.mark.parametrize("answer", [math.nan, None])
def test_a_reward_that_rates_nothing_stops_the_run_under_either_policy(answer, tiny, tmp_path):
    config = replace(tiny, reward=replace(tiny.reward, on_error="skip"))
    with pytest.raises(RewardError, match=f"any of 8 completions: it returned {answer}"):
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
    config = replace(tiny, reward=replace(tiny.reward, timeout=0.2))

    def hanging(prompts, completions):
        time.sleep(60)

    with pytest.raises(RewardError, match=r"hanging did not answer within 0\.2 s"):
        dtm.train(config, reward=hanging, out=tmp_path / "run")
    assert load_latest(tmp_path / "run" / "checkpoints").state["step"] == 0


def test_a_reward_named_in_the_configuration_is_used_and_shown(tiny, tmp_path, capsys):
    path = tmp_path / "rewards.py"
    path.write_text("def half(prompts, completions):\n    return [0.5] * len(prompts)\n")
    config = replace(tiny, reward=replace(tiny.reward, function=f"{path}:half", low=0.0, high=1.0))
    run = dtm.train(config, out=tmp_path / "run")
    assert run.summary["base"]["reward"] == 0.5
    card = (run.folder.model / "README.md").read_text()
    assert "rewards.py:half" in card
    assert str(tmp_path) not in card
    assert all(text.endswith("\nreward 0.500") for text in run.sample())
    assert "not tuned" in card
    assert main(["train", "maze-small", "--resume", "--out", str(run.path)]) == 3
    assert "nothing to learn: all completions earned the same reward" in capsys.readouterr().out


def test_a_reward_that_cannot_be_found_again_says_how_to_give_it(finished_by_closure):
    run, reward = finished_by_closure
    with pytest.raises(ConfigError, match=r"cannot be found again.*dtm\.Run\.open\(…, reward=…\)"):
        dtm.Run.open(run.path).sample()
    assert "reward 1.000" in dtm.Run.open(run.path, reward=reward).sample(prompts=1)[0]


def test_rewards_too_large_for_the_step_are_refused_or_warned_of(tiny, tmp_path):
    def huge(prompts, completions):
        return [value * 1e29 for value in steady(prompts, completions)]

    def large(prompts, completions):
        return [value * 1e3 for value in steady(prompts, completions)]

    wide = replace(tiny, tilt=replace(tiny.tilt, step=1e12, final=1e12))
    with pytest.raises(DivergedError, match=r"not finite: h = 1e\+12 is large .*--tilt\.step auto"):
        dtm.train(wide, reward=huge, out=tmp_path / "huge")
    short = replace(tiny, tilt=replace(tiny.tilt, final=1.0, max_steps=1))
    with pytest.warns(DtmWarning, match=r"ESS .* of the rollouts decide this phase.*--tilt\.step auto"):
        dtm.train(short, reward=large, out=tmp_path / "large")
