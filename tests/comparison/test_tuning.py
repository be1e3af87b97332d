"""Equal trials for every objective, and the best of them by validation reward."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

import dtm
from dtm.comparison import tuning
from dtm.comparison.settings import differing, with_method
from dtm.comparison.tuning import SEED, on_the_edge, trials, tune
from dtm.config import METHODS
from dtm.errors import ConfigError, DtmError
from dtm.loop.policies import is_own

MOST = 9

START = replace(dtm.recipe("sudoku-mini"), budget="1e6tokens")


@pytest.mark.parametrize("name", METHODS)
def test_every_grid_is_rates_by_knobs_of_the_method_itself(name):
    start = with_method(START, name)
    grid = trials(start, MOST)
    assert grid[0] == start
    assert len({str(config) for config in grid}) == 9
    rates = sorted({config.optimizer.lr for config in grid})
    assert rates == pytest.approx([start.optimizer.lr / 3, start.optimizer.lr, 3 * start.optimizer.lr])
    for config in grid:
        assert all(is_own(field) for field in differing(start, config))
    few = trials(start, 6)
    assert few == grid[:6]
    assert len({config.optimizer.lr for config in few}) == 3
    assert len({str(replace(config, optimizer=start.optimizer)) for config in few}) == 3


def test_rates_have_few_digits_but_the_start_stays_as_it_is():
    start = replace(START, optimizer=replace(START.optimizer, lr=3.0004e-4))
    rates = [config.optimizer.lr for config in trials(start, MOST)]
    assert rates[0] == 3.0004e-4
    assert set(rates) == {3.0004e-4, 1e-4, 9e-4}


def test_a_step_that_ess_decides_is_varied_by_its_target():
    start = replace(START, tilt=replace(START.tilt, step="auto"))
    assert {config.tilt.ess for config in trials(start, MOST)} == {0.7, 0.35}


@pytest.mark.parametrize("count", [0, 10])
def test_a_grid_has_nine_places(count):
    with pytest.raises(ConfigError, match="--trials must lie in 1 … 9"):
        trials(START, count)


def fake(rewards):
    """Stands in for the runs: trial k of an objective earns what is given, or fails."""

    def run_all(configs, out, jobs, say, all_must_finish, processes=None):
        assert not all_must_finish
        assert {config.seed for config in configs.values()} == {SEED}
        found = {name: rewards[name.rpartition("-trial-")[0]][int(name[-1])] for name in configs}
        return {
            name: SimpleNamespace(summary={"tuned": {"reward": reward}})
            for name, reward in found.items()
            if reward is not None
        }

    return run_all


def test_the_highest_validation_reward_is_picked_and_all_trials_are_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(tuning, "run_all", fake({"spg": [0.1, 0.5, None, 0.5], "wd1": [0.3, 0.2, 0.4, 0.1]}))
    configs = {name: with_method(START, name) for name in ("spg", "wd1")}
    picked, records = tune(configs, 4, tmp_path, 1)
    assert picked == {"spg": trials(configs["spg"], 4)[1], "wd1": trials(configs["wd1"], 4)[2]}
    assert [(t.method, t.number) for t in records] == [(n, k) for n in ("spg", "wd1") for k in range(4)]
    assert [t.number for t in records if t.picked] == [1, 2]
    assert [t.reward for t in records][:4] == [0.1, 0.5, None, 0.5]
    assert records[1].changed == {"method.draws": 4}
    (note,) = on_the_edge(records)
    assert note.startswith(f"wd1 took the learning rate {START.optimizer.lr / 3:.3g}, the edge")


def test_a_method_whose_trials_all_failed_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(tuning, "run_all", fake({"spg": [None, None]}))
    with pytest.raises(DtmError, match="no trial of spg finished"):
        tune({"spg": with_method(START, "spg")}, 2, tmp_path, 1)


def test_trials_are_runs_and_the_picked_setting_goes_on(tiny, tmp_path):
    start = with_method(replace(tiny, budget="15e2tokens"), "wd1")
    for number, trial in enumerate(trials(start, 2)):  # as `run_all` would, without a process for each
        dtm.train(replace(trial, seed=SEED), out=tmp_path / f"wd1-trial-{number}")
    picked, records = tune({"wd1": start}, 2, tmp_path, jobs=2, say=lambda line: None)
    rewards = [dtm.Run.open(tmp_path / f"wd1-trial-{k}").summary["tuned"]["reward"] for k in (0, 1)]
    assert [trial.reward for trial in records] == rewards
    assert picked["wd1"] == trials(start, 2)[rewards.index(max(rewards))]
    assert dtm.Run.open(tmp_path / "wd1-trial-1").config.method.psi == 0.3
