"""Recorded reveals: the states that the engine saw are rebuilt from the steps alone."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch

from dtm.config import AdapterConfig
from dtm.engine.collect import Collector
from dtm.evaluation import reveals
from dtm.evaluation.evaluate import evaluate, held_out
from dtm.loop.assemble import assemble
from dtm.models.merging import for_decoding


@pytest.fixture(scope="module")
def recorded(tiny):
    """An evaluation of the tiny base with its replays."""
    assembly = assemble(tiny)
    engine = assembly.engine(assembly.decoder.without_shortcuts)
    model = for_decoding(assembly.base.eval(), False)
    engine.load(model)
    collector = Collector(assembly.task, assembly.scorer, engine)
    return assembly, model, evaluate(collector, tiny.evaluation, torch.device("cpu"), model), collector


def test_one_completion_of_each_of_the_first_prompts_is_recorded(recorded):
    assembly, _, result, _ = recorded
    assert [one["row"] for one in result.replays] == [0, 2, 4, 6]  # two completions of each of four prompts
    for one in result.replays:
        cells = [text for text in one["tokens"] if text]
        assert " ".join(cells) == reveals.as_text(result.completions[one["row"]])
        assert len(one["tokens"]) == len(one["steps"]) == assembly.task.completion_length
        assert sorted(set(one["steps"])) == list(range(max(one["steps"]) + 1))


def test_a_tokens_confidence_is_the_probability_that_the_rebuilt_state_gives_it(recorded, monkeypatch):
    """The engine's own log-probability, and the model's at the state rebuilt here, are the same number."""
    assembly, model, result, collector = recorded
    monkeypatch.setattr(reveals, "ALTERNATIVES", model.vocab_size)
    monkeypatch.setattr(reveals, "TOGETHER", 2)  # several passes
    again = evaluate(collector, assembly.config.evaluation, torch.device("cpu"), model)
    for one in again.replays:
        for text, sure, options in zip(one["tokens"], one["confidence"], one["alternatives"], strict=True):
            if text:  # one text stands for several special tokens
                assert dict(map(tuple, options))[text] == pytest.approx(sure, abs=2e-4)
            assert math.isclose(sum(p for _, p in options), 1, abs_tol=0.02)
    assert again.completions == result.completions


def test_alternatives_come_with_the_most_likely_first(recorded):
    _, _, result, _ = recorded
    for one in result.replays:
        for options in one["alternatives"]:
            chances = [p for _, p in options]
            assert chances == sorted(chances, reverse=True)
            assert len(options) == reveals.ALTERNATIVES


def test_the_kl_to_the_base_is_that_of_the_whole_distributions_along_the_way(recorded):
    assembly, model, _, collector = recorded
    base = for_decoding(assembly.base, False)
    noise = torch.Generator().manual_seed(0)
    other = copy.deepcopy(base)
    for weight in other.parameters():
        weight.data += 0.05 * torch.randn(weight.shape, generator=noise)
    prompts = held_out(assembly.task, assembly.config.evaluation)
    rollouts = collector.collect(prompts, 1, 0.0, seed=3).rollouts
    found = reveals.record(model, assembly.task, rollouts, other)
    assert reveals.mean_divergence(reveals.record(model, assembly.task, rollouts, model)) == 0
    for one in found:
        total, row = 0.0, one["row"]
        places = rollouts.is_completion[row].nonzero().squeeze(1)
        for step in set(one["steps"]):
            hidden = rollouts.is_completion[row] & (rollouts.revealed_at[row] >= step)
            state = rollouts.tokens[row].masked_fill(hidden, model.mask_id)[None]
            now = places[torch.tensor(one["steps"]) == step]
            p, q = (each(state, None, now).detach().double() for each in (model, other))
            total += float((p.exp() * (p - q)).sum())
        assert total > 0
        assert one["kl"] == pytest.approx(total, rel=1e-3, abs=1e-4)
    assert reveals.mean_divergence([]) is None


def test_a_run_with_an_adapter_logs_how_far_it_has_moved_from_its_base(tiny, make_trainer):
    rows = []
    make_trainer(replace(tiny, adapter=AdapterConfig(rank=2)), callbacks=[rows.append]).run()
    moved = [event.values["kl_to_base"] for event in rows if event.kind == "evaluation"]
    assert moved[0] == pytest.approx(0, abs=1e-5)
    assert moved[-1] > 0


def test_long_completions_are_recorded_for_fewer_prompts(recorded, monkeypatch):
    assembly, model, _, collector = recorded
    monkeypatch.setattr(reveals, "STATES", 1)
    found = evaluate(collector, assembly.config.evaluation, torch.device("cpu"), model)
    assert len(found.replays) == reveals.FEWEST


def test_a_task_that_cannot_read_one_token_shows_numbers(recorded, monkeypatch):
    task = recorded[0].task

    def read(completions):
        raise IndexError("too short")

    monkeypatch.setattr(task, "read", read)
    assert reveals.token_texts(task, torch.tensor([7, 3, 7])) == ["7", "3", "7"]


def test_an_engine_without_reveal_steps_records_nothing(make_rollouts, recorded):
    assembly, model, _, _ = recorded
    rollouts = make_rollouts([0.0], [0])
    rollouts.revealed_at.fill_(-1)
    assert reveals.record(model, assembly.task, rollouts) == []
