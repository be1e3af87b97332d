"""Forecasts add up what a run does, in units measured here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dtm.capacity import forecast
from dtm.loop import build
from dtm.loop.plan import pretraining_plan, training_plan


@pytest.fixture
def unit_costs(monkeypatch):
    for name, cost in (("_rollout", 1.0), ("_update", 100.0), ("_forward", 10.0)):
        monkeypatch.setattr(forecast, name, lambda *_, cost=cost: cost)


def test_a_run_is_its_rollouts_updates_and_evaluations(tiny, unit_costs):
    task = build.build_task(tiny)
    model = build.load_base(tiny, task)
    seconds = forecast.training_seconds(tiny, task, model, torch.device("cpu"))
    rollouts = 2 * 4 * (8 + 2 * 2) + 3 * 4 * 2  # two phases of a buffer and two refreshes; three evaluations
    assert seconds == rollouts + 2 * 4 * 16 * 110.0


def test_a_longer_ladder_takes_longer(tiny, unit_costs):
    task = build.build_task(tiny)
    model = build.load_base(tiny, task)
    longer = replace(tiny, tilt=replace(tiny.tilt, final=20.0))
    times = [forecast.training_seconds(c, task, model, torch.device("cpu")) for c in (tiny, longer)]
    assert times[1] > 9 * times[0]


def test_plans_tell_the_time_of_this_machine(tiny):
    for plan in (training_plan(tiny), pretraining_plan(tiny)):
        assert plan["time"].endswith("on this machine")


@pytest.mark.parametrize(
    ("seconds", "said"), [(50.0, "50 seconds"), (600.0, "10 minutes"), (9e3, "2.5 hours"), (2e5, "2.3 days")]
)
def test_durations_are_formatted_in_a_suitable_unit(seconds, said):
    assert forecast.format_duration(seconds) == said
