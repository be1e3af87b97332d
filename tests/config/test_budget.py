"""Budgets: what counts, when a run ends, and that a stop changes none of it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from dtm.capacity.flops import rollout_flops
from dtm.cli import main
from dtm.config import AdapterConfig, AuditConfig, RunConfig, configure_method
from dtm.config.budget import Budget, cooling_factor
from dtm.engine.collect import prompts_in_order
from dtm.errors import ConfigError
from dtm.loop import sampling
from dtm.loop.assemble import assemble
from dtm.loop.plan import training_plan
from dtm.report.display import Display
from dtm.runs.events import JsonLines, read_events
from dtm.runs.interrupts import Interrupted
from stopping import StopAt
from timeless import timeless, timeless_rows

BUDGET = "1.2e4tokens"


@pytest.mark.parametrize(
    ("text", "unit", "amount"),
    [
        ("90s", "seconds", 90),
        ("5m", "seconds", 300),
        ("1.5h", "seconds", 5400),
        ("1e8tokens", "tokens", 1e8),
        (" 2.5e15 flops ", "flops", 2.5e15),
        ("250000tokens", "tokens", 250_000),
    ],
)
def test_an_amount_and_a_unit_make_a_budget(text, unit, amount):
    budget = Budget.parse(text)
    assert (budget.unit, budget.amount, budget.text) == (unit, amount, text)


@pytest.mark.parametrize(
    "text", ["", "5", "m", "5 minutes", "five m", "-3s", "0s", "1e999tokens", "5M", "1.2.3s", "nans"]
)
def test_a_wrong_budget_is_answered_with_right_ones(text, tmp_path, monkeypatch, capsys):
    with pytest.raises(ConfigError, match="budget: "):
        RunConfig(budget=text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:  # as all fields are refused on the command line
        main(["train", "maze-small", f"--budget={text}", "--out", "run"])
    assert end.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "1e8tokens" in said or "positive, finite" in said
    assert not (tmp_path / "run").exists()


def test_the_learning_rate_falls_over_the_last_tenth_alone():
    assert [cooling_factor(share) for share in (0.0, 0.5, 0.9)] == pytest.approx([1, 1, 1])
    assert [cooling_factor(share) for share in (0.95, 1.0, 1.2)] == pytest.approx([0.5, 0, 0])


# ── what is counted ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def plain(tiny) -> RunConfig:
    """One token a pass, so that passes can be counted by hand."""
    return replace(tiny, decoding=replace(tiny.decoding, certainty=None))


def test_a_step_costs_its_rollouts_its_rows_and_the_teachers(plain, make_trainer):
    """36 rollouts of 5 tokens after a prompt of 3, four of them the meter's. Then 16 rows: student forward
    and backward, teacher."""
    seen = []
    make_trainer(plain, callbacks=[seen.append])._advance()
    spent = next(event.values for event in seen if event.kind == "step")
    assert spent["spent_tokens"] == 36 * 8 * 5 + 16 * 8 * 3
    first = next(event.values for event in seen if event.kind == "rollouts")
    assert first["spent_tokens"] == 0  # what a stop would undo is not spent


def test_operations_are_those_of_every_pass(plain, make_trainer):
    config = replace(plain, optimizer=replace(plain.optimizer, micro_batch=5))
    run = make_trainer(config)
    passes = []
    for name, model in (("student", run.policy.student), ("teacher", run.policy.teacher)):
        model.register_forward_hook(lambda m, i, out, name=name: passes.append((name, *i[0].shape, len(out))))
    run._advance()
    shape = run.policy.student.config
    assert sum(name == "student" for name, *_ in passes) == 4
    assert run.progress.spent_flops == sum(
        shape.flops(rows * length, length, scored) * (3 if name == "student" else 1)
        for name, rows, length, scored in passes
    )


@pytest.mark.parametrize("merge", [True, False])
def test_rollouts_with_a_cache_cost_what_they_compute_whichever_copy_decodes(plain, make_trainer, merge):
    """A pass over 8 positions for each prompt and four over the block of 5 for each of its four completions,
    by π_a or by its copy with merged weights."""
    config = replace(
        plain,
        decoding=replace(plain.decoding, order="max-probability", block=5, cache="block"),
        adapter=AdapterConfig(rank=2, merge=merge),
        audit=AuditConfig(share=0.0),
    )
    run = make_trainer(config)
    with run.ledger:
        run.open_phase()
    assert run.ledger.take().tokens == 0  # rollouts are counted by their engine alone
    cost = run.sampling.cost()
    assert cost.tokens == 9 * (8 + 4 * 4 * 5)  # eight prompts, and one for the meter
    assert cost.flops == 36 * rollout_flops(run.policy.student.config, 3, 5, 5, 1, 1, together=4)


def test_evaluations_cost_nothing_and_all_else_does(plain, make_trainer, tmp_path):
    costs = []
    for prompts in (1, 8):
        config = replace(plain, evaluation=replace(plain.evaluation, prompts=prompts))
        costs.append(make_trainer(config).run())
    assert costs[0].spent_tokens == costs[1].spent_tokens > 0
    assert costs[0].spent_flops == costs[1].spent_flops > 0
    assert 0 < costs[0].spent_seconds < costs[0].seconds
    assert costs[0].peak_memory > 2**20


# ── when a run ends ───────────────────────────────────────────────────────────────────────────────


def with_method(tiny, name: str) -> RunConfig:
    method = configure_method(name, **({"updates": 2} if name == "spg" else {}))
    return replace(tiny, seed=3, budget=BUDGET, method=method)


both = pytest.mark.parametrize("name", ["c-dtm", "spg"])


@both
def test_a_run_ends_with_the_first_step_that_has_spent_the_budget(name, tiny, make_trainer, tmp_path):
    log = tmp_path / "metrics.jsonl"
    progress = make_trainer(with_method(tiny, name), callbacks=[JsonLines(log)]).run()
    spent = [row["spent_tokens"] for row in read_events(log, "step")]
    assert spent[-2] < 1.2e4 <= spent[-1] == progress.spent_tokens
    assert progress.finished == f"spent its budget of {BUDGET}"
    assert progress.tilt > tiny.tilt.final  # which is not read
    assert read_events(log, "phase")[-1]["reason"] == "budget spent"
    measured = read_events(log, "evaluation")
    assert measured[-1]["spent_tokens"] == spent[-1]
    shares = [row["spent_tokens"] / 1.2e4 for row in measured]
    assert all(later - earlier >= 0.1 for earlier, later in pairwise(shares[:-1]))
    rates = [row["lr"] for row in read_events(log, "step")]
    assert 0 < rates[-1] < max(rates)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (BUDGET, "which has room for 3.2 phases"),
        ("1e3tokens", "and did not end within it"),  # cut in the middle of the first phase
        ("1e5tokens", None),
    ],
)
def test_a_run_warns_once_of_a_first_phase_that_is_long_for_its_budget(budget, expected, tiny, make_trainer):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        make_trainer(replace(tiny, budget=budget)).run()
    found = [str(warning.message) for warning in seen if "the first phase took" in str(warning.message)]
    assert [expected in text for text in found] == [True] * (expected is not None)


def test_a_run_without_anything_to_learn_is_not_told_to_shorten_its_phases(tiny, make_trainer):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        make_trainer(
            replace(tiny, budget="5e3tokens"), reward=lambda prompts, completions: [0.5] * len(prompts)
        ).run()
    assert not [warning for warning in seen if "the first phase took" in str(warning.message)]


def test_a_run_may_reach_a_plateau_before_its_budget(tiny, make_trainer):
    config = with_method(tiny, "c-dtm")
    config = replace(config, evaluation=replace(config.evaluation, patience=1))
    progress = make_trainer(config, reward=lambda prompts, completions: [0.5] * len(prompts)).run()
    assert "has not risen" in progress.finished
    assert progress.spent_tokens < 5e3


@both
def test_warming_up_leaves_no_trace(name, tiny, make_trainer):
    cold, warm = make_trainer(with_method(tiny, name)), make_trainer(with_method(tiny, name))
    warm.learner.rehearse(warm.sampling.rehearse())
    assert warm.progress == cold.progress
    assert all(parameter.grad is None for parameter in warm.policy.trained())
    for made in (cold, warm):
        made._advance()
    assert timeless(warm.progress.to_json()) == timeless(cold.progress.to_json())
    after = [made.policy.student.state_dict() for made in (cold, warm)]
    assert all(torch.equal(after[0][key], after[1][key]) for key in after[0])


def run(make_trainer, config, folder, point=None):
    """A run that is stopped at a safe point and continued, or not stopped."""
    folder.mkdir()
    stop = StopAt(point)
    made = make_trainer(config, folder / "checkpoints", [JsonLines(folder / "metrics.jsonl")], stop)
    if point is not None:
        with pytest.raises(Interrupted):
            made.run()
        made = make_trainer(config, folder / "checkpoints", [JsonLines(folder / "metrics.jsonl")])
        made.resume(folder / "checkpoints")
    made.run()
    rows = {
        kind: timeless_rows(read_events(folder / "metrics.jsonl", kind)) for kind in ("step", "evaluation")
    }
    return (
        {"progress": timeless(made.progress.to_json()), **rows},
        made.policy.teacher.state_dict(),
        stop.passed,
    )


@pytest.mark.parametrize("name", ["c-dtm", pytest.param("spg", marks=pytest.mark.slow)])
def test_a_stop_at_any_safe_point_leaves_the_budget_as_it_was(name, tiny, make_trainer, tmp_path):
    """Also within rollouts, whose first part is then drawn, and paid for, once."""
    config = replace(with_method(tiny, name), checkpoint=replace(tiny.checkpoint, every=3))
    whole, weights, points = run(make_trainer, config, tmp_path / "whole")
    assert points > 20
    for point in range(1, points, 5):
        again, others, _ = run(make_trainer, config, tmp_path / str(point), point)
        assert again == whole
        assert all(torch.equal(others[key], value) for key, value in weights.items())


# ── the same prompts in the same order ────────────────────────────────────────────────────────────


def test_an_order_is_the_same_however_it_is_cut(tiny):
    task = assemble(tiny).task
    whole = prompts_in_order(task, 0, 40, chunk=8, seed=1).views
    cuts = [0, 8, 11, 12, 30, 40]
    parts = [
        prompts_in_order(task, start, stop - start, chunk=8, seed=1).views for start, stop in pairwise(cuts)
    ]
    assert [view for part in parts for view in part] == whole
    assert prompts_in_order(task, 0, 40, chunk=8, seed=2).views != whole


def test_all_methods_are_asked_the_same_prompts_in_the_same_order(tiny, make_trainer, monkeypatch):
    """Whatever they take between updates: two, four or twelve updates on a buffer, refreshes or none."""
    asked: list = []

    def recorded(*arguments):
        found = prompts_in_order(*arguments)
        asked.extend(found.views)
        return found

    monkeypatch.setattr(sampling, "prompts_in_order", recorded)
    sequences = {}
    for name in ("c-dtm", "spg", "wd1", "vrpo"):
        asked.clear()
        config = replace(tiny, budget="2e4tokens", method=configure_method(name))
        make_trainer(config).run()
        sequences[name] = list(asked)
    shortest = min(map(len, sequences.values()))
    assert shortest >= 16
    assert len({len(found) for found in sequences.values()}) > 1
    assert all(found[:shortest] == sequences["c-dtm"][:shortest] for found in sequences.values())


# ── what is told ──────────────────────────────────────────────────────────────────────────────────


@both
def test_plan_and_display_know_the_budget(name, tiny, make_trainer, capsys):
    config = with_method(tiny, name)
    assembly = assemble(config)
    plan = training_plan(assembly)
    assert plan["time"] == f"until {BUDGET} are spent on rollouts and updates; evaluations are not counted"
    assert plan["phases" if name == "c-dtm" else "iterations"].startswith("as many as a budget of")
    with Display(config, assembly.loop) as display:
        make_trainer(config, callbacks=[display]).run()
    printed = capsys.readouterr().out
    assert "stopped: spent its budget of 1.2e4tokens" in printed
    assert "spent_" not in printed
