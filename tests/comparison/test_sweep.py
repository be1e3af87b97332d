"""Many runs: what is finished is kept, what was stopped goes on, and what fails is named."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import dtm
from dtm.cli import main
from dtm.cli.sweep import _grid, _with_both
from dtm.comparison.jobs import over_seeds, run_all
from dtm.comparison.sweep import spread, sweep_table
from dtm.errors import CheckpointError, ConfigError, DtmError


def test_seeds_come_outermost_so_that_every_setting_has_a_first_result_early(tiny):
    names = list(over_seeds({"a": tiny, "b": tiny}, [0, 7]))
    assert names == ["a-0", "b-0", "a-7", "b-7"]
    assert over_seeds({"a": tiny}, [7])["a-7"].seed == 7


def test_a_spread_is_mean_lowest_and_highest():
    assert spread([1.0, 4.0, 1.0]) == {"mean": 2.0, "low": 1.0, "high": 4.0}


def test_a_failing_run_stops_no_other_and_finished_ones_are_kept(tiny, tmp_path):
    broken = replace(tiny, reward=replace(tiny.reward, function="no_such_module:reward"))
    configs, said = {"good": tiny, "bad": broken}, []
    with pytest.raises(DtmError, match="1 of 2 runs did not finish") as problem:
        run_all(configs, tmp_path, jobs=2, say=said.append)
    assert "bad.log" in str(problem.value)
    assert "no_such_module" in (tmp_path / "bad.log").read_text()
    made = (tmp_path / "good" / "summary.json").stat().st_mtime_ns
    assert any("good: validation prompts: reward" in line for line in said)
    runs = run_all({"good": tiny}, tmp_path)
    assert runs["good"].is_finished
    assert (tmp_path / "good" / "summary.json").stat().st_mtime_ns == made
    with pytest.raises(CheckpointError, match=r"another configuration \(seed"):
        run_all({"good": replace(tiny, seed=5)}, tmp_path)


@pytest.mark.slow
def test_bases_are_pretrained_side_by_side_and_kept(tiny, tmp_path):
    short = replace(tiny, pretrain=replace(tiny.pretrain, steps=3))
    configs, said = {"a": short, "b": replace(short, seed=1)}, []
    runs = run_all(configs, tmp_path, jobs=2, say=said.append, verb="pretrain")
    assert all((run.folder.model / "model.safetensors").is_file() for run in runs.values())
    assert [run.events("step")[-1]["step"] for run in runs.values()] == [3, 3]
    assert said[0] == f"2 of 2 runs are to be done, 2 at a time, in {tmp_path}"
    assert all("held_out_bound" in line for line in said[1:])
    assert said[1].endswith(" left")
    assert not said[2].endswith(" left")
    run_all(configs, tmp_path, say=said.append, verb="pretrain")
    assert len(said) == 3


def test_a_grid_is_trained_and_summed_up_in_a_table(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--model.base", tiny.model.base, "--task.size", "7", "--task.completion-length", "5"]
    flags += [
        "--tilt.max-steps",
        "2",
        "--tilt.final",
        "1",
        "--evaluation.prompts",
        "2",
        "--replay.prompts",
        "2",
    ]
    vary = ["--vary", "tilt.step=0.5,1", "--seeds", "1", "--jobs", "2", "--out", "grid"]
    monkeypatch.setattr("dtm.loop.plan.time_estimate", lambda assembly: "about a minute")
    assert main(["sweep", "maze-small", *flags, *vary, "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert "tilt.step=0.5-0  new" in planned
    assert "2 of 2 runs are to be done, 2 at a time" in planned
    assert not (tmp_path / "grid").exists()
    assert main(["sweep", "maze-small", *flags, *vary]) == 0
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "grid" / "sweep.json").read_text())
    assert found["rows"].keys() == {"tilt.step=0.5", "tilt.step=1"}
    assert found["seeds"] == [0]
    lines = list(csv.DictReader((tmp_path / "grid" / "sweep.csv").open()))
    assert [(line["setting"], line["seed"]) for line in lines] == [(name, "0") for name in found["rows"]]
    assert float(lines[0]["reward"]) == found["rows"]["tilt.step=0.5"]["reward"]["mean"]
    assert "| tilt.step=1 | " in (tmp_path / "grid" / "sweep.md").read_text()
    assert '"group":"tilt.step=1"' in (tmp_path / "grid" / "report.html").read_text()
    assert "tilt.step=0.5" in printed
    assert "tilt.step=1" in printed
    assert (tmp_path / "grid" / "tilt.step=1-0" / "summary.json").is_file()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_narrow_terminal_cuts_no_setting_and_breaks_no_number(width):
    names = [f"optimizer.lr=3e-4 tilt.step={step}" for step in (0.25, 0.5)]
    one = {"mean": 0.455, "low": 0.412, "high": 0.498}
    measures = ("reward", "valid", "reward_of_valid", "coverage", "length", "gap_closed")
    rows = {name: dict.fromkeys(measures, one) for name in names}
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(sweep_table(rows, [0, 1], width))
    text = console.export_text()
    assert text.count("optimizer.lr=3e-4") == 2
    assert text.count("tilt.step=0.25 ") == 1
    assert text.count("tilt.step=0.5 ") == 1
    assert text.count("0.455") == text.count("(0.412–0.498)") == 12
    assert all(measure.replace("_", " ") in text for measure in measures)


def test_a_folder_that_holds_no_run_is_left_alone(tiny, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(CheckpointError, match="exists and holds no run"):
        run_all({"mine": tiny}, tmp_path)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"


def test_a_missing_base_is_found_before_the_first_run(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lost = replace(tiny, model=replace(tiny.model, base="smollm2"))
    with pytest.raises(ConfigError, match="there is no adapted smollm2"):
        run_all({"lost": lost}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_finished_run_needs_no_base(tiny, tmp_path):
    shutil.copytree(tiny.model.base, tmp_path / "base")
    moved = replace(tiny, model=replace(tiny.model, base=str(tmp_path / "base")))
    first = run_all({"one": moved}, tmp_path / "out")["one"]
    shutil.rmtree(tmp_path / "base")
    assert run_all({"one": moved}, tmp_path / "out")["one"].summary == first.summary
    with pytest.raises(DtmError, match="model"):
        run_all({"one": moved, "two": replace(moved, seed=1)}, tmp_path / "out")


def test_the_error_of_a_failed_run_says_why(tiny, tmp_path):
    code = "def reward(prompts, completions, **columns): raise ValueError('why not')"
    (tmp_path / "bad.py").write_text(code)
    bad = replace(tiny, reward=replace(tiny.reward, function=f"{tmp_path / 'bad.py'}:reward"))
    with pytest.raises(DtmError, match=r"mine: .*mine\.log: .*why not"):
        run_all({"mine": bad}, tmp_path / "out")


def test_runs_are_not_put_into_a_run_or_a_model(tiny, finished):
    for folder in (finished.path, Path(tiny.model.base)):
        with pytest.raises(CheckpointError, match="is a run or a model"):
            run_all({"mine": tiny}, folder)
        assert not (folder / "mine").exists()


def test_booleans_and_texts_can_be_varied():
    grid = _grid(["method.guard=true,false", "method.control-variate=one"])
    cells = [
        _with_both(dtm.recipe("maze-small"), change, [], "dtm sweep", name) for name, change in grid.items()
    ]
    assert [config.method.guard for config in cells] == [True, False]
    assert {config.method.control_variate for config in cells} == {"one"}


@pytest.mark.parametrize(("step", "final"), [(1.0, 2.0), (40.0, 80.0)])
def test_flags_and_varied_values_need_to_fit_only_together(step, final):
    start = dtm.recipe("maze-small")
    change, flags = {"tilt": {"step": step}}, ["--tilt.final", str(final)]
    cell = _with_both(start, change, flags, "dtm sweep", "")
    assert (cell.tilt.step, cell.tilt.final) == (step, final)


def test_flags_and_varied_values_that_do_not_fit_are_refused(capsys):
    assert main(["sweep", "maze-small", "--vary", "tilt.step=1,3", "--tilt.final", "2"]) == 2
    assert "tilt.step must lie in (0, 2]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("varied", "flags", "said"),
    [
        ("tilt.step=1,3", ["--tilt.step", "2"], "tilt.step: given by a flag and varied"),
        ("method.guard=true,false", ["--method.no-guard"], "method.guard: given by a flag"),
        ("reward.function=a:f,b:f", ["--reward", "c:f"], "reward.function: given by a flag"),
        ("model.width=32,64", [], "--model.width: the base model has a fixed shape"),
    ],
)
def test_what_would_make_cells_alike_is_refused(varied, flags, said, capsys):
    assert main(["sweep", "maze-small", "--vary", varied, *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_range_may_be_half_varied_and_half_given():
    change, flags = {"reward": {"low": -1.0}}, ["--reward.high", "1"]
    cell = _with_both(dtm.recipe("maze-small"), change, flags, "dtm sweep", "")
    assert cell.reward.declared == (-1.0, 1.0)


@pytest.mark.parametrize("flags", [["--seed", "5"], ["--vary", "seed=3,4"]])
def test_seeds_are_asked_for_in_one_way_alone(flags, capsys):
    assert main(["sweep", "maze-small", *flags]) == 2
    assert "--seeds N" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["tilt.step", "=1,2", "tilt.step="])
def test_a_field_without_values_is_refused(text, capsys):
    assert main(["sweep", "maze-small", "--vary", text]) == 2
    assert "write FIELD=V1,V2" in capsys.readouterr().err
