"""Equal trials for every objective, and the best of them by validation reward."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

import dtm
from dtm.comparison import tuning
from dtm.comparison.extension import EXTENSIONS, between, beyond, with_value
from dtm.comparison.settings import differing, with_method
from dtm.comparison.tuning import SEED, grid_size, trials, tune, tuning_notes
from dtm.config import METHODS
from dtm.errors import ConfigError, DtmError
from dtm.loop.registry import is_own

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

    def run_all(configs, out, jobs, say, all_must_finish, processes=None, track=None):
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
    (note,) = tuning_notes(records)
    assert note.startswith(f"wd1: the best learning rate, {START.optimizer.lr / 3:.3g}, is the edge")


def lines(said):
    return [line for line in said if "edge" in line]


def test_a_rate_at_the_edge_is_followed_and_every_method_gets_as_many_trials(monkeypatch, tmp_path):
    """wd1's best has three times the rate, then nine times; spg's is inside and goes on with its grid."""
    rewards = {"wd1": [0.1, 0.1, 0.1, 0.1, 0.1, 0.5, 0.6, 0.4], "spg": [0.5, *[0.0] * 5, 0.1, 0.2]}
    monkeypatch.setattr(tuning, "run_all", fake(rewards))
    configs, said = {name: with_method(START, name) for name in ("wd1", "spg")}, []
    picked, records = tune(configs, 6, tmp_path, 1, said.append)
    rate = START.optimizer.lr
    tried = {name: [trial for trial in records if trial.method == name] for name in configs}
    assert [len(found) for found in tried.values()] == [8, 8]
    assert [trial.changed.get("optimizer.lr") for trial in tried["wd1"][5:]] == pytest.approx(
        [3 * rate, 9 * rate, 27 * rate]
    )
    assert picked["wd1"].optimizer.lr == pytest.approx(9 * rate)
    assert [trial.reason for trial in tried["wd1"][5:]] == ["grid", *["beyond the edge of optimizer.lr"] * 2]
    assert [trial.reason for trial in tried["spg"][5:]] == ["grid", *["as many trials as the others"] * 2]
    whole = trials(configs["spg"], 9)
    expected = [
        {field: tuning.leaves(new)[field] for field in differing(whole[0], new)} for new in whole[6:8]
    ]
    assert [trial.changed for trial in tried["spg"][6:]] == expected
    assert len(lines(said)) == 2
    assert tuning_notes(records) == [
        "grids were extended, the best setting being at an edge (wd1): 8 trials of each method"
    ]


def test_extensions_end_and_the_table_says_what_is_still_at_the_edge(monkeypatch, tmp_path):
    monkeypatch.setattr(tuning, "run_all", fake({"wd1": [0.1, *[0.0] * 4, 0.5, 0.6, 0.7, 0.8, 0.9]}))
    picked, records = tune({"wd1": with_method(START, "wd1")}, 6, tmp_path, 1, lambda line: None)
    assert len(records) == 6 + EXTENSIONS
    assert picked["wd1"].optimizer.lr == pytest.approx(81 * START.optimizer.lr, rel=0.01)
    extended, still = tuning_notes(records)
    assert extended.endswith("9 trials of each method")
    assert still.endswith("is the edge of its grid")


def test_a_knob_with_three_values_is_followed_too():
    start = with_method(START, "wd1")
    grid = trials(start, 6)
    field, further = beyond(grid, next(config for config in grid if config.method.psi == 3.0))
    assert (field, further.method.psi) == ("method.psi", 9.0)
    assert further.optimizer.lr == start.optimizer.lr
    assert beyond(grid, grid[0]) is None
    assert beyond(grid[:2], grid[1]) is None  # two values have no inside


def test_an_edge_that_the_method_sets_is_left_alone():
    """ε must lie below 1."""
    start = with_method(START, "gdpo")
    grid = [with_value(start, "method.epsilon", value) for value in (0.2, 0.5, 0.9)]
    assert beyond(grid, grid[2]) is None
    assert beyond(grid, grid[0])[1].method.epsilon == pytest.approx(0.08)
    counts = [with_value(start, "method.updates", value) for value in (2, 4, 12)]
    assert beyond(counts, counts[2])[1].method.updates == 36
    assert beyond(counts, counts[0])[1].method.updates == 1


def test_a_used_up_grid_goes_on_beside_the_best_towards_its_better_neighbour():
    start = with_method(START, "spg")
    grid = trials(start, grid_size(start))
    rewards = [0.0] * len(grid)
    rewards[0], rewards[2], rewards[5] = 0.9, 0.1, 0.3  # rates 1, 1/3 and 3 of the default settings
    rate = start.optimizer.lr
    assert between(grid, rewards, 0).optimizer.lr == pytest.approx(rate * 3**0.5, rel=0.01)
    rewards[2] = 0.5
    assert between(grid, rewards, 0).optimizer.lr == pytest.approx(rate / 3**0.5, rel=0.01)
    assert between(grid[:1], rewards[:1], 0).optimizer.lr == pytest.approx(2 * rate)


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
