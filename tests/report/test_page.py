"""The data and the HTML of a page, without a browser."""

from __future__ import annotations

import itertools
import json
import re
import time
import warnings

import pytest
from page_runs import HOSTILE, SPENT, data_in, rows_of, write_run

import dtm
from dtm.cli import main
from dtm.config import LanguageConfig, ModelConfig, RewardConfig, RunConfig
from dtm.errors import DtmError, DtmWarning
from dtm.report.page import write
from dtm.report.page.curves import Thinner
from dtm.report.page.data import SAMPLES, PageRun, page_data
from dtm.report.page.samples import Evaluated, histogram, moved, spread_out, stratified
from dtm.runs.events import Event
from dtm.runs.folder import RunFolder
from dtm.runs.interrupts import Interrupted


def only_run(folder) -> dict:
    return page_data([PageRun(folder, "run", "")], "run")["runs"][0]


def test_a_finished_run_has_a_page_with_its_curves_samples_and_movie(finished):
    found = data_in(finished.folder.page.read_text("utf-8"))["runs"][0]
    assert found["verdict"]["text"].startswith(("Learnt: the held-out reward rose", "Not learnt"))
    assert {"reward", "valid", "absorbed", "ess", "speed", "memory"} <= {
        chart["id"] for chart in found["charts"]
    }
    assert dict(found["facts"])["Recipe"] == "maze-small"
    assert [len(row) for row in found["scene"]["walls"]] == [7] * 7
    first, *_, last = found["movies"][0]["replays"]
    assert (first["step"], last["step"]) == (0, 8)
    assert {one["step"] for one in found["samples"]["rows"]} == {0, 4, 8}
    table = found["tables"]["evaluation"]
    inside = zip(table["reward_low"], table["reward"], table["reward_high"], strict=True)
    assert all(low <= mean <= high for low, mean, high in inside)


def test_a_page_does_not_tell_the_folders_of_the_machine(finished, tmp_path):
    assert str(finished.path.parent) not in finished.folder.page.read_text("utf-8")
    rows = [rows_of(["a"], [0.0])] * 2
    folders = [
        write_run(
            tmp_path / "private" / place / "run",
            rows,
            task=LanguageConfig(kind="custom", data="/somewhere/private/rows.jsonl"),
            model=ModelConfig(base=f"/somewhere/private/{place}/first/model"),
            reward=RewardConfig(function="/somewhere/private/lengths.py:shorter"),
        )
        for place in ("here", "there")
    ]
    subjects = write.subjects_of(folders)
    assert [(one.name, one.group) for one in subjects] == [
        ("here/run", "model.base first/model (1)"),
        ("there/run", "model.base first/model (2)"),
    ]
    page = write.page_of(subjects, "runs")
    assert "private" not in page
    (run, _) = data_in(page)["runs"]
    assert dict(run["facts"])["Base"] == "first/model"
    for setting in ("base: first/model", "data: rows.jsonl", "function: lengths.py:shorter"):
        assert f"{setting}\n" in run["config"]


def test_a_page_has_settings_without_paths_as_they_are_written(tmp_path):
    folder = write_run(tmp_path / "run", [rows_of(["a"], [0.0])], budget="1m")
    assert only_run(folder)["config"] == folder.config.read_text("utf-8")


def test_a_run_of_an_earlier_release_has_a_page_without_a_movie(tmp_path):
    found = only_run(write_run(tmp_path / "run", [rows_of(["a", "b"], [0.0, 1.0])] * 2))
    assert found["movies"] == []
    assert [chart["id"] for chart in found["charts"]] == ["reward", "absorbed", "ess", "loss", "memory"]
    assert found["verdict"] == {
        "kind": "unfinished",
        "text": "Not finished, at step 20: held-out reward stayed from 0.5 to 0.5 so far.",
    }


def test_a_run_that_was_stopped_has_the_page_of_its_last_step(tiny, tmp_path):
    def stop(event):
        if event.step == 6:
            raise Interrupted("SIGTERM")

    run = dtm.train(tiny, out=tmp_path / "run", callbacks=[stop])
    assert data_in(run.folder.page.read_text("utf-8"))["runs"][0]["verdict"]["text"].startswith(
        "Not finished, at step 6: held-out reward"
    )


def test_a_run_that_has_only_begun_has_a_page(tmp_path):
    folder = RunFolder.create(RunConfig(recipe="mine"), "train", tmp_path / "run")
    found = only_run(folder)
    assert found["verdict"]["text"] == "Not finished, at step 0."
    assert (found["charts"], found["samples"]["rows"], found["moved"]) == ([], [], None)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_model_can_leave_the_data(tmp_path, text):
    folder = write_run(tmp_path / "run", [rows_of([text], [1.0], prompt=text)] * 2)
    page = write.page_of([PageRun(folder, text, text)], text)
    clean = write.page_of([PageRun(folder, "x", "x")], "x")
    assert page.isascii() or not clean.isascii()
    for mark in ("<script", "</script", "<!--", "<img"):
        assert page.lower().count(mark) == clean.lower().count(mark)
    (run,) = data_in(page)["runs"]
    shown = run["samples"]["rows"][0]["completion"]
    assert shown == text or (len(text) > 2000 and shown.startswith(text[:2000]) and "98,000 more" in shown)


def test_scripts_and_styles_are_allowed_by_their_hash_alone():
    page = write.render({"title": "t", "runs": []})
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    _, style, script = write.assets()
    assert f"script-src '{write._hash(script)}'" in policy
    assert f"style-src '{write._hash(style)}'" in policy
    assert f"<script>{script}</script>" in page
    assert "unsafe" not in policy
    assert "connect-src 'none'" in policy
    assert "connect-src 'self'" in write.render({"title": "t", "runs": []}, live=True)


def test_samples_are_taken_evenly_over_the_rewards_of_each_evaluation():
    rows = [{"prompt": k, "completion": str(k), "reward": (37 * k) % 1000 / 1000} for k in range(1000)]
    chosen = stratified([Evaluated(0, 0.0, rows), Evaluated(5, 1.0, rows[:3])], 22)
    first = [row["reward"] for one, row in chosen if one.step == 0]
    assert first == pytest.approx([k / 10 for k in range(11)], abs=2e-3)
    assert len(chosen) == 11 + 3


def test_a_page_says_of_how_many_samples_it_shows_some(tmp_path):
    rows = [{"prompt": k, "completion": "x", "reward": k / 5000} for k in range(5000)]
    found = only_run(write_run(tmp_path / "run", [rows, rows]))["samples"]
    assert found["total"] == 10_000
    assert SAMPLES // 2 <= len(found["rows"]) <= SAMPLES


def test_a_histogram_counts_every_sample_once():
    few = [{"prompt": 0, "completion": "", "reward": r} for r in (0.0, 0.0, 1.0)]
    many = [{"prompt": 0, "completion": "", "reward": k / 100} for k in range(101)]
    assert histogram([Evaluated(0, 0.0, few)])["counts"] == [[2, 1]]
    counts = histogram([Evaluated(0, 0.0, few), Evaluated(1, 1.0, many)])["counts"]
    assert [sum(row) for row in counts] == [3, 101]
    assert counts[0][-1] == 1  # the highest reward belongs to the last bin
    assert histogram([]) is None


def test_mass_moves_from_answers_that_are_given_less_often():
    before = Evaluated(0, 0.0, rows_of(["bad", "bad", "bad", "good"], [0, 0, 0, 1]))
    after = Evaluated(9, 1.0, rows_of(["good", "good", "good", "new"], [1, 1, 1, 0.5]))
    found = moved([before, after])
    assert found["share"] == pytest.approx(0.75)
    gained = [(one["row"]["completion"], one["before"], one["after"]) for one in found["gained"]]
    assert gained == [("good", 0.25, 0.75), ("new", 0.0, 0.25)]
    assert [one["row"]["completion"] for one in found["lost"]] == ["bad"]
    assert moved([before]) is None


def test_the_interval_of_the_reward_is_over_prompts_and_not_over_their_completions():
    rows = [*rows_of(["a"] * 50, [0.0] * 50, "p"), *rows_of(["a"] * 50, [1.0] * 50, "q")]
    low, high = Evaluated(0, 0.0, rows).interval
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.5, 0.5 + 1.96 * 0.5))
    assert Evaluated(0, 0.0, rows[:50]).interval == (None, None)


def test_long_curves_keep_their_mean_and_their_last_place():
    rows = [{"step": k + 1, "loss": float(k % 7), "absorbed": None, "why": "x"} for k in range(10_000)]
    thinner = Thinner(len(rows), 300)
    for row in reversed(rows):
        thinner.add(row)
    short = thinner.rows
    assert len(short) == 300
    assert short[-1]["step"] == 10_000
    assert sum(row["loss"] for row in short) / 300 == pytest.approx(3, abs=0.02)
    assert spread_out(10, 4) == [0, 3, 6, 9]


def test_a_page_that_fails_is_warned_of_once_and_stops_nothing(tmp_path):
    page = write.RunPage(RunFolder(tmp_path / "nowhere"))

    def three_phases():
        for _ in range(3):
            page.not_before = 0.0
            page(Event("phase", 1, {}))

    notice = r"report\.html was not written: .*make it later with `dtm report"
    with pytest.warns(DtmWarning, match=notice) as seen:
        three_phases()
    assert len(seen) == 1


def test_a_page_waits_until_it_takes_less_than_a_hundredth_of_the_time(tmp_path, monkeypatch):
    clock, written = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def slow(folder):
        written.append(clock[0])
        clock[0] += 0.5

    monkeypatch.setattr(write, "write_page", slow)
    page = write.RunPage(RunFolder(tmp_path))
    for second in range(200):
        clock[0] = float(second)
        page(Event("samples", second, {}))
        page(Event("step", second, {}))
    assert written == [0.0, 51.0, 102.0, 153.0]


def test_curves_have_the_means_of_the_whole_log(tmp_path):
    folder = write_run(tmp_path / "run", [rows_of(["a", "b"], [0.0, 1.0])] * 2, steps=1000)
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["event"] == "step"]
    edges = [round(place * 1000 / 300) for place in range(301)]
    means = [sum(losses[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    table = only_run(folder)["tables"]["step"]
    assert table["step"] == edges[1:]
    assert table["loss"] == pytest.approx(means, rel=1e-5)


def test_runs_are_grouped_by_the_settings_that_differ(tmp_path):
    rows = [rows_of(["a"], [0.0])]
    folders = [
        write_run(tmp_path / f"{lr}-{seed}", rows, seed=seed, budget=lr)
        for lr in ("1m", "2m")
        for seed in (0, 1)
    ]
    assert [one.group for one in write.subjects_of(folders)] == ["budget 1m"] * 2 + ["budget 2m"] * 2
    assert [one.group for one in write.subjects_of(folders[:2])] == ["1m-0", "1m-1"]


def test_the_command_writes_one_page_and_compares_several(tmp_path, capsys):
    folders = [write_run(tmp_path / name, [rows_of(["a"], [0.0])] * 2) for name in ("first", "second")]
    assert main(["report", str(folders[0].path)]) == 0
    assert [run["name"] for run in data_in(folders[0].page.read_text())["runs"]] == ["first"]
    assert main(["report", *(str(folder.path) for folder in folders)]) == 0
    assert [run["name"] for run in data_in((tmp_path / "report.html").read_text())["runs"]] == [
        "first",
        "second",
    ]
    assert f"page: {tmp_path / 'report.html'}" in capsys.readouterr().out
    assert main(["report", str(folders[0].path), "--out", str(tmp_path)]) == 2
    assert "is a folder: name a file" in capsys.readouterr().err


def test_a_folder_that_is_no_training_run_is_refused(tmp_path):
    folder = RunFolder.create(RunConfig(recipe="mine"), "pretrain", tmp_path / "run")
    with pytest.raises(DtmError, match="is a run of dtm pretrain; a page shows runs of dtm train"):
        write.write_page(folder)


def test_damaged_lines_and_files_leave_a_page(tmp_path):
    folder = write_run(tmp_path / "run", [rows_of(["a"], [0.5])] * 2)
    with folder.metrics.open("a") as file:
        file.write('{"event": "step"\n{"event": "step", "step": 21, "loss": null, **')
    (folder.samples / "notes.txt").write_text("mine")
    (folder.path / "environment.json").write_text("{")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DtmWarning)
        found = only_run(folder)
    assert len(found["tables"]["step"]["loss"]) == 20
    assert SPENT["spent_tokens"] in found["tables"]["step"]["spent_tokens"]
