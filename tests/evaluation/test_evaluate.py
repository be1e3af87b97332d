"""Evaluations: the same prompts for everyone, and measures that follow from the samples."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from dtm.config import EvaluationConfig
from dtm.evaluation.length import effective_lengths


def test_the_measures_are_those_of_the_samples(finished):
    result = finished.evaluate(EvaluationConfig(prompts=4, completions=3))
    task = finished.assembly.task
    assert len(result.prompts) == 12
    assert len(set(result.prompts)) == 4
    rewards = task.reward(result.prompts, result.completions)
    assert result.rewards == pytest.approx(rewards)
    assert result.measures["reward"] == pytest.approx(sum(rewards) / 12)
    flawless = [task.flaw(p, c) is None for p, c in zip(result.prompts, result.completions, strict=True)]
    assert result.measures["valid"] == pytest.approx(sum(flawless) / 12)
    assert result.best == pytest.approx(task.best(list(dict.fromkeys(result.prompts))))


def test_prompts_and_noise_do_not_depend_on_the_seed_of_the_run(finished):
    from dtm import api
    from dtm.loop.assemble import assemble

    other = replace(finished.config, seed=99)
    asked = EvaluationConfig(prompts=4, completions=2)
    assert api.measure(assemble(other), finished.model, asked) == finished.evaluate(asked)


def test_a_finished_run_reports_the_evaluation_of_its_model(finished):
    result = finished.evaluate()
    assert finished.summary["tuned"] == pytest.approx(result.measures)
    last = sorted(finished.folder.samples.glob("*.jsonl"))[-1]
    rows = [json.loads(line) for line in last.read_text().splitlines()]
    assert [row["reward"] for row in rows] == result.rewards
    assert [row["completion"] for row in rows] == json.loads(json.dumps(result.completions))


def test_a_completion_is_as_long_as_what_stands_before_its_first_end(finished):
    rows = torch.tensor([[4, 5, 1, 5, 1], [1, 1, 1, 1, 1], [4, 5, 6, 4, 5]])
    assert effective_lengths(rows, eos_id=1).tolist() == [2, 0, 5]
    result = finished.evaluate(EvaluationConfig(prompts=4, completions=3))
    cells = [(*path, None).index(None) for path in result.completions]  # a padding token reads as None
    assert result.measures["length"] == pytest.approx(sum(cells) / len(cells))
