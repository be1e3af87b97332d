"""Evaluations: the same prompts for everyone, and measures that follow from the samples."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from dtm import api
from dtm.config import EvaluationConfig
from dtm.evaluation.evaluate import before_repeats
from dtm.evaluation.length import effective_lengths
from dtm.loop.assemble import assemble
from dtm.random import stream
from dtm.records import Prompts


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


def test_equal_prompts_with_other_columns_are_no_repeats():
    tokens = torch.zeros(6, 1, dtype=torch.long)
    views, letters = ["Write a word."] * 6, list("abcaab")

    def repeats(columns):
        return before_repeats(Prompts(tokens, tokens == 0, views, columns))

    assert repeats({}) == 1
    assert repeats({"letter": letters}) == 3
    assert repeats({"letter": letters, "number": [1, 1, 1, 1, 2, 1]}) == 5


@pytest.mark.parametrize("split", ["validation", "test"])
def test_prompts_are_those_of_the_split_and_never_those_of_training(split, finished):
    asked = set(finished.evaluate(EvaluationConfig(prompts=6, completions=1, split=split)).prompts)
    task = finished.assembly.task
    for name in ("train", "validation", "test"):
        known = set(task.prompts(name, 500, stream(0, "all")).views)
        assert (asked <= known) == (name == split)
        assert bool(asked & known) == (name == split)


def test_completions_are_drawn_at_the_temperature_of_the_evaluation(finished):
    """At temperature 0 all completions of a prompt are the same."""
    for temperature, distinct in ((0.0, True), (None, False)):
        found = finished.evaluate(EvaluationConfig(prompts=2, completions=8, temperature=temperature))
        paths = [tuple(path) for path in found.completions]
        assert (len(set(paths[:8])) == len(set(paths[8:])) == 1) == distinct


def test_the_best_of_the_task_is_not_told_of_another_reward(finished):
    config = EvaluationConfig(prompts=2, completions=1)
    assembly = assemble(finished.config, reward=lambda prompts, completions: [7.0] * len(prompts))
    found = api.measure(assembly, finished.model, config)
    assert (found.best, found.measures["reward"]) == (None, 7.0)


def test_prompts_and_noise_do_not_depend_on_the_seed_of_the_run(finished):
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
