"""Decoding with shortcuts against decoding without: what is compared, and what happens past a limit."""

from __future__ import annotations

import io
import math
from dataclasses import asdict, replace

import pytest
import torch
from rich.console import Console

from dtm.config import AuditConfig
from dtm.errors import ConfigError
from dtm.loop.assemble import assemble, build_scorer
from dtm.loop.audit import Tally, agreement, audit
from dtm.random import stream
from dtm.report.display import Display
from dtm.runs.events import JsonLines, read_events
from dtm.runs.interrupts import Interrupted


def tally(shares, shifts) -> Tally:
    squares = [sum(value**2 for value in values) for values in (shares, shifts)]
    return Tally(len(shares), sum(shares), squares[0], sum(shifts), squares[1])


def test_tokens_are_compared_up_to_the_end_of_the_exact_completion():
    exact = torch.tensor([[3, 4, 0, 5], [3, 4, 5, 6], [0, 1, 1, 1]])
    short = torch.tensor([[3, 4, 0, 9], [3, 9, 5, 9], [1, 0, 0, 0]])
    assert agreement(short, exact, eos_id=0).tolist() == [1.0, 0.5, 0.0]


def test_a_tally_is_the_mean_and_its_standard_error_however_it_is_cut():
    shares, shifts = [1.0, 0.5, 0.75, 1.0, 0.0], [0.0, 0.5, -0.25, 0.0, 1.0]
    whole = tally(shares, shifts)
    assert whole.agreement == pytest.approx(0.65)
    assert whole.mean_shift == pytest.approx(0.25)
    assert whole.error == pytest.approx(float(torch.tensor(shifts).std()) / math.sqrt(5))
    parts = tally(shares[:2], shifts[:2]) + tally(shares[2:], shifts[2:])
    assert asdict(parts) == pytest.approx(asdict(whole))


@pytest.mark.parametrize(
    ("shares", "shifts", "limits", "said"),
    [
        ([1.0, 1.0], [0.0, 0.0], {"agreement": 1.0, "shift": 0.0}, None),
        ([0.59, 0.61], [0.0, 0.0], {"agreement": 0.65}, "only 60.0% of the tokens"),
        ([0.5, 0.7], [0.0, 0.0], {"agreement": 0.65}, None),  # 0.6 ± 0.1 may well be more
        ([1.0, 0.9], [0.0, 0.0], {"agreement": 1.0}, "only 95.0% of the tokens"),  # of 1, one is proof
        ([0.5, 0.7], [9.0, 9.0], {"agreement": 0.5}, None),  # no limit on the reward
        (
            [1.0, 1.0],
            [0.2, 0.2],
            {"shift": 0.1},
            r"differs from that of exact decoding by +0.2 ± 0",
        ),
        (
            [1.0, 1.0],
            [-0.2, -0.2],
            {"shift": 0.1},
            r"differs from that of exact decoding by -0.2",
        ),
        ([1.0, 1.0], [0.0, 0.4], {"shift": 0.1}, None),  # 0.2 ± 0.2 says nothing yet
        ([1.0], [5.0], {"shift": 0.1}, None),  # nor does a single row
    ],
)
def test_a_limit_is_exceeded_only_where_the_evidence_is_there(shares, shifts, limits, said):
    found = tally(shares, shifts).beyond(AuditConfig(**limits))
    assert found is None if said is None else said in found


@pytest.mark.parametrize("changes", [{"share": 1.5}, {"agreement": -0.1}, {"shift": -1.0}])
def test_an_impossible_limit_is_refused_by_name(changes):
    with pytest.raises(ConfigError, match=f"audit.{next(iter(changes))}"):
        AuditConfig(**changes)


@pytest.fixture
def cached(tiny):
    """The tiny run with a cache over its two layers, all of it audited."""
    decoding = replace(tiny.decoding, cache="block", block=2, certainty=None)
    return replace(tiny, decoding=decoding, audit=AuditConfig(share=1.0, agreement=0.0))


def collector_of(config):
    return assemble(config).collector()


def exact_engine(collector, config):
    """The engine that a run audits with."""
    return assemble(config).engine(collector.engine.decoder.without_shortcuts)


def load(model, *engines):
    for engine in engines:
        engine.load(model)


def test_a_model_of_one_layer_agrees_with_itself_in_every_token(cached):
    collector = collector_of(cached)
    exact = exact_engine(collector, cached)
    load(assemble(cached).base.eval(), collector.engine, exact)  # its cache is exact
    prompts = collector.task.prompts("train", 6, stream(0, "prompts"))
    found = audit(collector, exact, prompts, 4, seed=0)
    assert (found.rows, found.agreement, found.mean_shift, found.error) == (4, 1.0, 0.0, 0.0)


def test_deeper_models_agree_in_part_and_the_reward_is_that_of_both_decodings(cached):
    task = replace(cached.task, completion_length=12)
    deep = replace(cached, task=task, model=replace(cached.model, layers=4))
    collector = collector_of(deep)
    model = assemble(deep).new_model().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(12 if parameter.dim() == 2 else 1)
    seen: list[list] = []

    def reward(prompts, completions, **columns):
        seen.append(completions)
        return [float(len(seen))] * len(completions)  # 1 with shortcuts, 2 without

    scorer = replace(build_scorer(deep.reward, collector.task, deep.task, reward), in_process=True)
    scored = replace(collector, scorer=scorer)
    prompts = collector.task.prompts("train", 16, stream(0, "prompts"))
    exact = exact_engine(collector, deep)
    load(model, scored.engine, exact)
    found = audit(scored, exact, prompts, 16, seed=0)
    assert found.rows == 16
    assert found.mean_shift == -1.0
    assert 0 < found.agreement < 1
    assert 0 < sum(a == b for a, b in zip(*seen, strict=True)) < 16


def test_audits_are_logged_and_shown_and_within_the_limits_change_nothing(cached, make_trainer, tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with Display(cached, assemble(cached).loop, console) as display:
        log = JsonLines(tmp_path / "metrics.jsonl")
        trainer = make_trainer(cached, callbacks=[log, display])
        trainer.run()
    rows = read_events(tmp_path / "metrics.jsonl", "audit")
    drawn = read_events(tmp_path / "metrics.jsonl", "rollouts")
    assert len(rows) == len(drawn)
    assert all(row["falls_back"] is None and row["agreement"] == 1.0 for row in rows)
    assert rows[0]["rows"] == 36  # every rollout, those of the meter too
    assert rows[1]["rows"] == 44  # and those of a refresh, in the same phase
    assert "100% as exact decoding, reward +0.000" in console.file.getvalue()
    silent = make_trainer(replace(cached, audit=AuditConfig(share=0.0)))
    silent.run()
    assert silent.progress.evaluations == trainer.progress.evaluations


def test_past_the_limit_the_run_goes_on_without_shortcuts_and_says_so(cached, make_trainer, tmp_path):
    """Here the reward, not the tokens, differs: it changes from one call to the next."""
    calls = []

    def reward(prompts, completions, **columns):
        calls.append(len(completions))
        return [float(len(calls))] * (len(completions) - 1) + [0.0]

    limited = replace(cached, audit=AuditConfig(share=1.0, shift=0.1))
    console = Console(file=io.StringIO(), width=200)
    with Display(limited, assemble(limited).loop, console) as display:
        log = JsonLines(tmp_path / "metrics.jsonl")
        trainer = make_trainer(limited, callbacks=[log, display], reward=reward)
        trainer.run()
    rows = read_events(tmp_path / "metrics.jsonl", "audit")
    assert len(rows) == 1  # nothing is left to compare
    assert "more than audit.shift 0.1" in rows[0]["falls_back"]
    assert "exact decoding from here on: the mean reward differs" in console.file.getvalue()
    assert trainer.progress.exact_because == rows[0]["falls_back"]
    exact = replace(limited, decoding=replace(limited.decoding, cache="none"))
    calls.clear()
    calls.extend([0, 0])  # the audit's two
    plain = make_trainer(exact, reward=reward)
    plain.run()
    for name, weight in plain.policy.teacher.state_dict().items():
        assert torch.equal(trainer.policy.teacher.state_dict()[name], weight)


@pytest.mark.parametrize("point", [3, 9])
def test_an_audited_run_that_is_stopped_and_resumed_equals_the_run_that_was_not(
    cached, make_trainer, tmp_path, point
):
    whole = make_trainer(cached)
    whole.run()
    passed = []

    def stop() -> None:
        passed.append(0)
        if len(passed) == point:
            raise Interrupted("SIGTERM")

    first = make_trainer(cached, checkpoints=tmp_path, between=stop)
    with pytest.raises(Interrupted):
        first.run()
    second = make_trainer(cached, checkpoints=tmp_path)
    second.resume(tmp_path)
    second.run()
    assert second.progress.evaluations == whole.progress.evaluations
    assert second.progress.audited == whole.progress.audited


def test_the_tally_begins_anew_with_each_phase(cached, make_trainer):
    trainer = make_trainer(cached)
    trainer._advance()
    assert trainer.progress.audited["rows"] == 36
    while trainer.progress.h is not None:
        trainer._advance()
    assert trainer.progress.audited == {}


@pytest.fixture
def eight_bits(tiny):
    """The tiny run drawn in eight bits, all of it audited."""
    decoding = replace(tiny.decoding, fp8=True, certainty=None)
    return replace(tiny, decoding=decoding, audit=AuditConfig(share=1.0, agreement=0.0))


def test_rollouts_in_eight_bits_are_compared_with_the_weights_themselves(eight_bits, make_trainer):
    events = []
    trainer = make_trainer(eight_bits, callbacks=[events.append])
    trainer.run()
    found = [event.values["agreement"] for event in events if event.kind == "audit"]
    assert 0.3 < min(found) < 1.0
    collector, prompts = trainer.sampling.collector, trainer.sampling._prompts(0, 8)
    low, exact = trainer.policy.pi_a(fp8=True), trainer.policy.pi_a()
    assert (low.fp8, exact.fp8) == (True, False)
    plain = exact_engine(collector, eight_bits)
    plain.load(exact)
    assert audit(replace(collector, engine=plain), plain, prompts, 8, seed=0).agreement == 1.0
    with pytest.raises(ConfigError, match="the model given has fp8 True"):
        plain.load(low)


def test_past_the_limit_eight_bits_are_given_up_for_the_weights_themselves(eight_bits, make_trainer):
    limited = replace(eight_bits, seed=1, audit=AuditConfig(share=1.0, agreement=1.0))
    trainer = make_trainer(limited)
    trainer.run()
    assert "agree with exact decoding" in trainer.progress.exact_because
    plain = make_trainer(replace(limited, decoding=replace(limited.decoding, fp8=False)))
    plain.run()
    for name, weight in plain.policy.teacher.state_dict().items():
        assert torch.equal(trainer.policy.teacher.state_dict()[name], weight)
