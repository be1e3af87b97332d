"""Comparisons from start to end: what is run, what is refused, and what is written."""

from __future__ import annotations

import argparse
import io
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

import dtm
from dtm import api
from dtm.cli import main
from dtm.comparison.results import gather, interval, with_sampling
from dtm.comparison.settings import contestants, with_method
from dtm.comparison.table import markdown, tables
from dtm.errors import CheckpointError, ConfigError
from dtm.runs.folder import RunFolder

NAMES = ["c-dtm", "spg", "wd1"]


@pytest.fixture(scope="module")
def budgeted(tiny):
    return replace(tiny, budget="4e3tokens", optimizer=replace(tiny.optimizer, ema=None))


@pytest.fixture(scope="module")
def entries(budgeted, tmp_path_factory):
    """Three methods, two seeds."""
    folder = tmp_path_factory.mktemp("entries")
    configs = contestants(budgeted, NAMES, [("spg", {"updates": 2})])
    return {
        (name, seed): dtm.train(replace(config, seed=seed), out=folder / f"{name}-{seed}")
        for name, config in configs.items()
        for seed in (0, 1)
    }


def copied(run, folder, edit=None):
    """The same run elsewhere, with its fingerprint edited."""
    shutil.copytree(run.path, folder)
    made = dtm.Run(RunFolder(folder))
    if edit is not None:
        found = json.loads(made.folder.fingerprint.read_text())
        edit(found)
        made.folder.fingerprint.write_text(json.dumps(found))
    return made


# ── what is written ───────────────────────────────────────────────────────────────────────────────


def test_a_run_that_left_some_of_its_budget_is_named(entries, tmp_path):
    early = copied(entries["spg", 0], tmp_path / "early")
    summary = early.summary
    ended = {"spent_tokens": 1e3, "finished": "held-out reward has not risen for 3 evaluations"}
    (early.path / "summary.json").write_text(json.dumps(summary | ended))
    notes = gather([entries["c-dtm", 0], early]).notes
    assert notes == [
        "spg, seed 0: stopped with 25% of its budget spent, held-out reward has not risen for 3 evaluations "
        "(evaluation.patience)"
    ]


def test_a_recipes_patience_does_not_end_a_comparison():
    from dtm.cli.compare import _recipe
    from dtm.recipes import recipe

    assert recipe("llada-countdown").evaluation.patience is not None
    options = argparse.Namespace(recipe="llada-countdown", budget="1e4tokens")
    assert _recipe(options, []).evaluation.patience is None
    assert _recipe(options, ["--evaluation.patience", "2"]).evaluation.patience == 2


def test_rows_and_intervals_are_those_of_the_runs(entries):
    comparison = gather(list(entries.values()))
    assert comparison.methods == NAMES
    assert comparison.seeds == [0, 1]
    assert len(comparison.rows) == 6
    summary = comparison.summary()
    for name in NAMES:
        rows = comparison.of(name)
        runs = [entries[name, seed] for seed in (0, 1)]
        assert summary[name]["reward"] == interval([row.test["reward"] for row in rows])
        assert [row.cost["spent_tokens"] for row in rows] == [run.summary["spent_tokens"] for run in runs]
        assert all(row.cost["spent_tokens"] >= 4e3 and row.cost["peak_memory"] > 0 for row in rows)
        assert [row.validation for row in rows] == [run.summary["tuned"] for run in runs]
        assert all(row.finished == "spent its budget of 4e3tokens" for row in rows)
        assert [row.curve[-1]["spent_tokens"] for row in rows] == [row.cost["spent_tokens"] for row in rows]
    assert comparison.settings["spg"]["method.updates"] == 2
    assert comparison.notes == []
    made = comparison.to_json("dtm compare …")
    json.dumps(made)
    assert made["summary"]["spg"]["reward"]["mean"] == pytest.approx(
        sum(row["test"]["reward"] for row in made["rows"] if row["method"] == "spg") / 2
    )


def size(model) -> float:
    """A number that tells models apart."""
    return sum(float(parameter.detach().double().abs().sum()) for parameter in model.parameters())


def test_measures_are_those_of_test_prompts_for_the_base_and_every_run(entries, tmp_path, monkeypatch):
    """In place of an evaluation the model's size is returned, so that no two models measure alike."""
    runs = [copied(entries[name, 0], tmp_path / name) for name in ("c-dtm", "wd1")]
    for kept in tmp_path.glob("*/test*.json"):
        kept.unlink()
    splits = []

    def measure(assembly, model, evaluation):
        splits.append(evaluation.split)
        return SimpleNamespace(measures={"reward": size(model)})

    monkeypatch.setattr(api, "measure", measure)
    comparison = gather(runs)
    assert splits == ["test"] * 3
    assert comparison.base == {"reward": size(runs[0].assembly.base)}
    for run, row in zip(runs, comparison.rows, strict=True):
        assert row.test == {"reward": size(run.model)} != comparison.base
        assert row.validation == run.summary["tuned"]
        assert comparison.summary()[row.method]["reward"]["mean"] == row.test["reward"]


def test_a_run_that_fell_back_to_exact_rollouts_is_named(entries, tmp_path):
    other = copied(entries["spg", 0], tmp_path / "exact")
    summary = other.summary | {"exact_because": "too few tokens agree"}
    (other.path / "summary.json").write_text(json.dumps(summary))
    (note,) = gather([entries["c-dtm", 0], other]).notes
    assert note == f"{other.path} changed to exact rollouts: too few tokens agree"


def test_seeds_that_differ_in_more_than_their_prompts_are_refused(entries, tmp_path):
    def edit(found):
        found["items"]["contents"] = "other"

    other = copied(entries["c-dtm", 1], tmp_path / "other", edit)
    with pytest.raises(ConfigError, match="differ in more than the seed"):
        gather([entries["c-dtm", 0], other])


def test_test_prompts_are_asked_once(entries, monkeypatch):
    before = gather(list(entries.values()))
    monkeypatch.setattr("dtm.comparison.results._tested", lambda *_: pytest.fail("asked again"))
    assert gather(list(entries.values())) == before


def test_the_interval_is_students_over_seeds():
    """For 1, 2, 3: s = 1, n = 3, t = 4.3027."""
    found = interval([1.0, 2.0, 3.0])
    assert [found[name] for name in ("mean", "low", "high")] == pytest.approx(
        [2, 2 - 2.48414, 2 + 2.48414], abs=1e-4
    )
    assert interval([0.5]) == {"mean": 0.5, "low": None, "high": None}


def test_the_figure_has_a_band_for_each_method_against_what_was_spent(entries):
    figure = gather(list(entries.values())).figures()["compare"]
    reward = next(axes for axes in figure.axes if axes.get_title() == "Mean reward")
    assert figure.get_supxlabel() == "tokens through the models (measured on validation prompts)"
    assert len(reward.collections) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == NAMES
    for line in reward.lines[:3]:
        assert line.get_xdata()[0] == 0
        assert line.get_xdata()[-1] >= 4e3


def test_the_table_has_the_base_and_every_method(entries):
    text = markdown(gather(list(entries.values())))
    assert "| base |" in text
    for name in NAMES:
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
        # reward, valid, reward of valid, coverage, length, and the reward against the first method's
        assert line.count(" ± ") == 5 + (name != NAMES[0])
    reward = gather(list(entries.values())).summary()["spg"]["reward"]
    assert f"| spg | {reward['mean']:.3f} ± {reward['high'] - reward['mean']:.3f} |" in text
    memory = [int(line.split("|")[-2]) for line in text.splitlines() if line.startswith("| spg |")]
    assert all(10 < value < 10_000 for value in memory)
    assert "| reward − c-dtm's |" in text
    assert "± half of the 95 % interval (Student's t)" in text
    assert "resident set of the process" in text


@pytest.mark.parametrize(("width", "count"), [(70, 2), (80, 1), (45, 3)])
def test_a_narrow_terminal_gets_more_tables_and_no_broken_cells(entries, width, count):
    found = gather(list(entries.values()))
    parts = tables(found, width)
    assert [part.columns[1].header for part in parts] == ["base"] * len(parts)
    assert [column.header for part in parts for column in part.columns[2:]] == NAMES
    assert len(parts) == count
    console = Console(width=width, record=True, file=io.StringIO())
    for part in parts:
        console.print(part)
    text = console.export_text()
    for name in NAMES:
        reward = found.summary()[name]["reward"]
        assert f"{reward['mean']:.3f} ± {reward['high'] - reward['mean']:.3f}" in text
    assert max(map(len, text.splitlines())) <= width


def test_rewards_are_compared_with_the_first_method_seed_by_seed(entries):
    found = gather(list(entries.values()))
    reward = {(row.method, row.seed): row.test["reward"] for row in found.rows}
    against = found.against_first()
    assert list(against) == NAMES[1:]
    for name in NAMES[1:]:
        differences = [reward[name, seed] - reward[NAMES[0], seed] for seed in (0, 1)]
        assert against[name] == interval(differences)
    assert found.to_json("dtm compare …")["against_first"] == against
    assert "reward − " not in markdown(gather([entries["spg", seed] for seed in (0, 1)]))


def test_steered_sampling_of_the_base_stands_beside_the_methods(entries, tmp_path, monkeypatch):
    monkeypatch.setattr("dtm.comparison.sampled.ROLLOUTS", 16)
    runs = [copied(entries[name, 0], tmp_path / name) for name in ("c-dtm", "spg")]
    plain = gather(runs)
    found = with_sampling(plain, runs, "best-of-4,smc-2", None)
    beside = found.beside
    assert beside.methods == ["best-of-4", "smc-2"]
    assert beside.tilted.tilt == runs[0].summary["tilt"]  # c-dtm's, not the iterations of spg
    assert beside.tilted.low < beside.tilted.mean < beside.tilted.high
    assert beside.tilted.rollouts == 16
    (best,), (smc,) = beside.of("best-of-4"), beside.of("smc-2")
    assert best.test.keys() == smc.test.keys() == plain.base.keys()
    assert best.test["reward"] > plain.base["reward"]
    assert best.rewards == 4
    assert best.tokens > 3 * beside.tokens
    assert smc.forwards > 2 * beside.forwards * 0.8
    lines = markdown(found).splitlines()
    (head,) = [line for line in lines if line.endswith("| passes per answer | rewards per answer |")]
    rows = {line.split(" | ")[0][2:]: line for line in lines if line.startswith("| ")}
    assert rows["best-of-4"].endswith(" | 4 |")
    assert rows["c-dtm"].endswith(" | 0 |")
    assert {line.count("|") for line in rows.values()} == {head.count("|")}
    (law,) = [name for name in rows if name.startswith("tilted law, a = ")]
    assert beside.tilted.poor
    assert f"| {beside.tilted.mean:.3f} |" in rows[law]  # no interval of weights that rest on few rollouts
    rich = replace(found, beside=replace(beside, tilted=replace(beside.tilted, poor=0)))
    assert f"{beside.tilted.mean:.3f} ± {beside.tilted.high - beside.tilted.mean:.3f}" in markdown(rich)
    assert sum("tokens per answer" in note for note in found.notes) == 2
    json.dumps(found.to_json("dtm compare …"))
    monkeypatch.setattr("dtm.api.steer", lambda *_: pytest.fail("asked again"))
    assert with_sampling(plain, runs, "best-of-4,smc-2", None) == found
    assert "passes per answer" not in markdown(plain)


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("group", "field", "said"),
    [
        ("settings", "decoding.temperature", "decoding.temperature: 1.0 → other"),
        ("settings", "budget", "budget: 4e3tokens → other"),
        ("items", "contents", "other questions or gold answers"),
        ("training", "order", "other training prompts, or another order of them"),
        ("reward", "source", "another version of the function"),
        ("model", "values", "other weights"),
        ("numerics", "precision", "precision: float32 → other"),
    ],
)
def test_runs_that_differ_in_more_than_the_method_are_refused(group, field, said, entries, tmp_path):
    other = copied(entries["spg", 0], tmp_path / "other", lambda found: found[group].update({field: "other"}))
    with pytest.raises(ConfigError, match="differ in more than the method") as caught:
        gather([entries["c-dtm", 0], other])
    assert said in str(caught.value)


def test_a_run_that_really_differs_is_refused(entries, budgeted, tmp_path):
    warm = replace(budgeted, decoding=replace(budgeted.decoding, temperature=0.7))
    other = dtm.train(with_method(warm, "wd1"), out=tmp_path / "warm")
    with pytest.raises(ConfigError) as caught:
        gather([entries["c-dtm", 0], other])
    lines = str(caught.value).splitlines()[1:]
    assert lines == ["  settings that all share", "    decoding.temperature: 1.0 → 0.7"]


def test_another_commit_or_machine_is_a_note_unless_the_budget_is_time(entries, tmp_path):
    def elsewhere(found):
        found["hardware"]["processor"] = "other"

    other = copied(entries["spg", 0], tmp_path / "spg", elsewhere)
    (note,) = gather([entries["c-dtm", 0], other]).notes
    assert "processor" in note
    timed = []
    for run, edit in ((entries["c-dtm", 0], None), (entries["spg", 0], elsewhere)):
        made = copied(run, tmp_path / f"timed-{run.path.name}", edit)
        made.folder.config.write_text(made.folder.config.read_text().replace("4e3tokens", "5m"))
        timed.append(made)
    with pytest.raises(ConfigError, match="processor"):
        gather(timed)


def test_seeds_settings_and_doubles_are_looked_at(entries, budgeted, finished, tmp_path):
    runs = entries
    with pytest.raises(ConfigError, match=r"c-dtm has runs with the seeds \[0, 1\], spg with \[0\]"):
        gather([runs["c-dtm", 0], runs["c-dtm", 1], runs["spg", 0]])
    with pytest.raises(ConfigError, match="second run of spg with seed 0"):
        gather([runs["c-dtm", 0], runs["spg", 0], copied(runs["spg", 0], tmp_path / "spg-again")])
    with pytest.raises(ConfigError, match="had no budget"):
        gather([finished])
    with pytest.raises(ConfigError, match="no runs to compare"):
        gather([])
    other = copied(runs["spg", 1], tmp_path / "spg-1")
    config = other.folder.config
    config.write_text(config.read_text().replace("lr: 0.001", "lr: 0.002"))
    with pytest.raises(ConfigError, match=r"two settings of spg: optimizer\.lr differ"):
        gather([runs["spg", 0], other])
    unfinished = copied(runs["spg", 0], tmp_path / "unfinished")
    unfinished.folder.summary.unlink()
    with pytest.raises(CheckpointError, match="has not finished"):
        gather([unfinished])
    bare = copied(runs["spg", 0], tmp_path / "bare")
    bare.folder.fingerprint.unlink()
    with pytest.raises(CheckpointError, match="which a comparison needs"):
        gather([bare])


# ── the command ───────────────────────────────────────────────────────────────────────────────────


def flags(tiny) -> list[str]:
    """The tiny run as flags of the recipe."""
    return [
        *("--model.base", tiny.model.base, "--task.size", "7", "--task.completion-length", "5"),
        *("--tilt.max-steps", "4", "--tilt.step", "1", "--replay.prompts", "8", "--replay.completions", "4"),
        *("--replay.refresh-every", "2", "--optimizer.batch", "16", "--evaluation.prompts", "4"),
        *("--evaluation.completions", "2"),
    ]


def test_methods_are_compared_and_a_finished_comparison_runs_nothing(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = NAMES[:2]
    arguments = ["compare", "maze-small", "--methods", ",".join(names), "--seeds", "1", "--jobs", "2"]
    arguments += ["--budget", "2e3tokens", "--out", "two", "--set", "spg.draws=1", *flags(tiny)]
    assert main(arguments) == 0
    assert "test prompts, after 2e3tokens of rollouts and updates" in " ".join(
        capsys.readouterr().out.split()
    )
    out = tmp_path / "two"
    found = json.loads((out / "compare.json").read_text())
    assert found["command"].startswith("dtm compare maze-small --methods c-dtm,spg ")
    assert [row["method"] for row in found["rows"]] == names
    assert found["settings"]["spg"]["method.draws"] == 1
    assert (out / "compare.png").stat().st_size > 10_000
    assert (out / "diversity.png").stat().st_size > 10_000
    assert all(f'"group":"{name}"' in (out / "report.html").read_text() for name in names)
    made = {path: path.stat().st_mtime_ns for path in out.glob("*/summary.json")}
    for folder in ("comparison", "comparison-2"):  # the second does not write over the first
        assert main(["compare", "--runs", *(str(out / f"{name}-0") for name in names)]) == 0
        again = json.loads((tmp_path / "runs" / folder / "compare.json").read_text())
        assert [row["test"] for row in again["rows"]] == [row["test"] for row in found["rows"]]
    assert main(arguments) == 0
    assert made == {path: path.stat().st_mtime_ns for path in out.glob("*/summary.json")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "needs a recipe's name, or --runs"),
        (["maze-small"], "--budget is required: 5m"),
        (["maze-smal", "--budget", "5m"], "Did you mean 'maze-small'"),
        (["maze-small", "--budget", "5m", "--seed", "3"], "use --seeds N, for the seeds"),
        (["maze-small", "--budget", "5m", "--method", "spg"], "name all methods with --methods"),
        (["maze-small", "--budget", "5m", "--method.name=spg"], "name all methods with --methods"),
        (["maze-small", "--budget", "5m", "--evaluation.split", "test"], "on test prompts once, at the end"),
        (["maze-small", "--budget", "5m", "--seeds", "0"], "--seeds must be at least 1"),
        (["maze-small", "--budget", "5m", "--jobs", "0"], "jobs must be at least 1"),
        (["maze-small", "--budget", "5m", "--trials", "3"], "--trials needs --tune"),
        (
            ["maze-small", "--budget", "5m", "--settings", "nowhere.yaml"],
            "no configuration file at nowhere.yaml",
        ),
        (["maze-small", "--runs", "here"], "--runs compares finished runs: leave out maze-small"),
        (["--runs", "here", "--set", "spg.draws=4"], "--set is for starting runs"),
        (["--runs", "here"], "no run in here"),
        (["maze-small", "--budget", "5m", "--also", "smc16"], "write best-of-N or smc-N"),
        (["maze-small", "--budget", "5m", "--also", ","], "--also is empty"),
        (["maze-small", "--budget", "5m", "--also", "smc-4,smc-4"], "names a method twice"),
        (["maze-small", "--budget", "5m", "--also", "best-of-0"], "at least 1 completion"),
        (["maze-small", "--budget", "5m", "--also", "smc-4", "--methods", "spg"], "give a with --tilt A"),
        (["maze-small", "--budget", "5m", "--also", "smc-4", "--tilt", "-1"], "must be a number that is not"),
        (["maze-small", "--budget", "5m", "--tilt", "1"], "--tilt needs --also"),
        (
            ["maze-small", "--budget", "5m", "--also", "best-of-4", "--decoding.temperature", "0"],
            "set --decoding.temperature 1",
        ),
        (["--runs", "here", "--tilt.step", "1"], "as they are: leave out --tilt.step"),
    ],
)
def test_mistakes_are_answered_before_anything_runs(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_lists_the_runs_and_starts_none(tmp_path, capsys):
    out = tmp_path / "compared"
    flags = ["--methods", "c-dtm,spg", "--budget", "5m", "--seeds", "2", "--out", str(out), "--dry-run"]
    assert main(["compare", "maze-small", *flags]) == 0
    printed = capsys.readouterr().out
    assert "c-dtm-0  new" in printed
    assert "4 of 4 runs are to be done, 1 at a time" in printed
    assert "each: a budget of 5m" in printed
    assert not out.exists()
