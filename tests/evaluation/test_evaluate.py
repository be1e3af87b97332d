"""Evaluations: the same prompts for everyone, and measures that follow from the samples."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dtm.training import build
from dtm.training.config import EvaluationConfig


def test_the_measures_are_those_of_the_samples(finished):
    result = finished.evaluate(EvaluationConfig(prompts=5, completions=3))
    task = build.build_task(finished.config)
    assert len(result.prompts) == 15
    assert len(set(result.prompts)) == 5
    rewards = task.reward(result.prompts, result.completions)
    assert result.rewards == pytest.approx(rewards)
    assert result.measures["reward"] == pytest.approx(sum(rewards) / 15)
    flawless = [task.flaw(p, c) is None for p, c in zip(result.prompts, result.completions, strict=True)]
    assert result.measures["valid"] == pytest.approx(sum(flawless) / 15)
    assert result.best == pytest.approx(task.best(list(dict.fromkeys(result.prompts))))


def test_prompts_and_noise_do_not_depend_on_the_seed_of_the_run(finished):
    from dtm import api

    other = replace(finished.config, seed=99)
    asked = EvaluationConfig(prompts=4, completions=2)
    assert api.measure(other, finished.model, asked) == finished.evaluate(asked)


def test_a_finished_run_reports_the_evaluation_of_its_model(finished):
    result = finished.evaluate()
    assert finished.summary["tuned"] == pytest.approx(result.measures)
    last = sorted(finished.folder.samples.glob("*.jsonl"))[-1]
    rows = [json.loads(line) for line in last.read_text().splitlines()]
    assert [row["reward"] for row in rows] == result.rewards
    assert [row["completion"] for row in rows] == json.loads(json.dumps(result.completions))
