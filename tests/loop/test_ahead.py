"""Rollouts drawn ahead are those that would have been drawn, cost the same, and save time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dtm.config import ReplayConfig, TiltConfig
from dtm.engine.collect import Drawn
from dtm.loop.ahead import Ahead
from timeless import timeless_rows


@pytest.fixture
def run(tiny, make_trainer):
    """The weights, events and number of rollouts that a run drew ahead."""

    def run(ahead: bool, **changes):
        config = replace(
            tiny,
            decoding=replace(tiny.decoding, ahead=ahead),
            tilt=TiltConfig(step=1.0, final=2.0, max_steps=6),
            replay=ReplayConfig(prompts=8, completions=4, refresh_every=2),
            **changes,
        )
        events = []
        trainer = make_trainer(config, callbacks=[events.append])
        trainer.run()
        rows = [{"kind": event.kind, **event.values} for event in events]
        saved = [row.pop("saved_seconds") for row in rows if "saved_seconds" in row]
        weights = list(trainer.policy.weights(trainer.policy.teacher).values())
        return weights, timeless_rows(rows), saved

    return run


def test_a_run_with_rollouts_drawn_ahead_is_the_run_without(run):
    plain, ahead = run(ahead=False), run(ahead=True)
    assert all(map(torch.equal, plain[0], ahead[0]))
    assert plain[1] == ahead[1]  # every event, with tokens and operations spent
    assert plain[2] == []
    refreshes = [row for row in ahead[1] if row["kind"] == "rollouts" and row["purpose"] == "refresh"]
    assert len(ahead[2]) == len(refreshes) == 4
    assert all(seconds >= 0 for seconds in ahead[2])


def test_with_a_budget_of_tokens_too(run):
    budget = {"budget": "15000tokens"}
    plain, ahead = run(ahead=False, **budget), run(ahead=True, **budget)
    assert all(map(torch.equal, plain[0], ahead[0]))
    assert plain[1] == ahead[1]


def test_what_is_dropped_stops_and_is_not_returned():
    ahead, stopped = Ahead(), []

    def draw() -> Drawn:
        try:
            while True:
                ahead.check()
        except BaseException as problem:
            stopped.append(problem)
            raise

    ahead.start("next", draw)
    assert ahead.holds("next")
    assert not ahead.holds("other")
    ahead.drop()
    assert len(stopped) == 1
    assert not ahead.holds("next")
