"""Forecasts add up what a run does, in units measured here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtm.capacity import forecast
from dtm.loop import plan
from dtm.loop.assemble import assemble
from dtm.loop.plan import time_estimate, training_plan
from dtm.pretraining.plan import pretraining_plan


@pytest.fixture
def unit_costs(monkeypatch):
    for name, cost in (("rollout", 1.0), ("update", 100.0), ("forward", 10.0)):
        monkeypatch.setattr(forecast.Timing, name, lambda *_, cost=cost: cost)


def test_a_run_is_its_rollouts_updates_and_evaluations(tiny, unit_costs):
    rollouts = 2 * 4 * (8 + 2 + 1) + 3 * 4 * 2  # two phases of buffer, refresh and meter; three evaluations
    readings = 10 * 2 * 4 / 4  # ten of two states of four rollouts, at a quarter of the cost of a row
    seconds = rollouts + 2 * (4 * 16 + readings) * 110.0
    assert time_estimate(assemble(tiny)) == f"about {forecast.format_duration(seconds)} on this machine"


def test_compilation_is_a_line_of_the_plan_and_a_part_of_the_time(tiny, unit_costs, monkeypatch):
    monkeypatch.setattr(plan, "COMPILATION", 7200.0)
    assembly = assemble(replace(tiny, compile="on"))
    plain = training_plan(assemble(tiny))
    for lines in (training_plan(assembly), pretraining_plan(assembly)):
        assert lines["compilation"].startswith("about 2.0 hours once")
        assert lines["time"].endswith("with compilation")
    assert "compilation" not in plain
    hours = float(plain["time"].split()[1]) + 2.0
    assert training_plan(assembly)["time"].startswith(f"about {hours:.1f} hours")


def test_a_longer_ladder_is_more_work(tiny):
    longer = replace(tiny, tilt=replace(tiny.tilt, final=20.0))
    short, long = (assemble(config).loop.work() for config in (tiny, longer))
    assert long.rollouts > 9 * short.rollouts
    assert long.rows == 10 * short.rows


def test_plans_tell_the_time_of_this_machine(tiny):
    assembly = assemble(tiny)
    for lines in (training_plan(assembly), pretraining_plan(assembly)):
        assert lines["time"].endswith("on this machine")


@pytest.mark.parametrize(
    ("seconds", "said"), [(50.0, "50 seconds"), (600.0, "10 minutes"), (9e3, "2.5 hours"), (2e5, "2.3 days")]
)
def test_durations_are_said_as_a_person_would(seconds, said):
    assert forecast.format_duration(seconds) == said
