"""The manifest of results: what was changed by hand, and what is not one command at one commit, is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dtm.cli import main
from dtm.errors import DataError
from dtm.report.manifest import MANIFEST, Provenance, check, mark_old, record

MADE = Provenance(
    command="python benchmarks/maze.py --jobs 3",
    commit="0123abc",
    machine={"gpu": "one"},
    seeds=[0, 1],
    inputs={"base maze": "0" * 64},
)


@pytest.fixture
def results(tmp_path) -> Path:
    folder = tmp_path / "results"
    (folder / "maze").mkdir(parents=True)
    for name in ("summary.json", "curve.png"):
        (folder / "maze" / name).write_text("{}")
    record(folder, "maze", (folder / "maze").iterdir(), MADE)
    return folder


def test_results_as_their_command_wrote_them_are_fine(results, capsys):
    assert check(results) == []
    assert main(["results", "check", str(results)]) == 0
    assert capsys.readouterr().out == "1 tables, 2 files, 0 old tables, 0 problems\n"


def test_changed_missing_and_unknown_files_are_told(results, capsys):
    (results / "maze" / "summary.json").write_text("0.99")
    (results / "maze" / "curve.png").unlink()
    (results / "more.md").write_text("")
    assert check(results) == [
        "maze/curve.png of table maze is missing",
        "maze/summary.json was changed after table maze was written",
        "more.md belongs to no table",
    ]
    assert main(["results", "check", str(results)]) == 1
    assert "3 problems" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("commit", "0123abc, 4567def", "'0123abc, 4567def' is not one commit"),
        ("command", "the usual ones, in parts", "'the usual ones, in parts' is no command"),
        ("machine", {}, "it does not name the machine"),
        ("seeds", [], "it names no seeds: list them, or null where the command has none"),
        ("inputs", "none", "its inputs are no object of SHA-256 by name"),
        ("inputs", {"base": "0123"}, "its inputs are no object of SHA-256 by name"),
    ],
)
def test_a_table_of_other_than_one_command_at_one_commit_must_be_marked_as_old(results, field, value, told):
    path = results / MANIFEST
    entries = json.loads(path.read_text())
    entries["maze"][field] = value
    path.write_text(json.dumps(entries))
    assert check(results) == [f"table maze: {told}"]
    entries["maze"]["old"] = "made in parts"
    path.write_text(json.dumps(entries))
    assert check(results) == []


@pytest.mark.parametrize("field", ["seeds", "inputs"])
def test_seeds_and_inputs_may_be_none_but_not_left_out(field, results, capsys):
    path = results / MANIFEST
    entries = json.loads(path.read_text())
    entries["maze"][field] = None
    path.write_text(json.dumps(entries))
    assert check(results) == []
    assert main(["results", "check", str(results)]) == 0
    noted = "note: maze: inputs not recorded\n" in capsys.readouterr().out
    assert noted == (field == "inputs")
    del entries["maze"][field]
    path.write_text(json.dumps(entries))
    assert len(check(results)) == 1


def test_a_result_of_another_commit_than_its_entry_is_told(results):
    path = results / "maze" / "summary.json"
    for commit, problems in (("0123abc", 0), ("4567def", 1)):
        path.write_text(json.dumps({"commit": commit, "reward": 0.5}))
        record(results, "maze", (results / "maze").iterdir(), MADE)
        assert len(check(results)) == problems
    assert check(results) == ["maze/summary.json of table maze: it is of commit 4567def, not 0123abc"]
    path.write_text("reward 0.5")
    record(results, "maze", (results / "maze").iterdir(), MADE)
    assert check(results) == ["maze/summary.json of table maze: it is not JSON"]


def test_an_old_table_says_so_in_its_markdown(results, capsys):
    table = results / "maze" / "table.md"
    table.write_text("| 0.5 |\n")
    record(results, "maze", (results / "maze").iterdir(), replace(MADE, old="made in parts"))
    assert check(results) == [
        "maze/table.md of table maze: it does not say that it is old: run `dtm results mark`"
    ]
    for _ in range(2):  # a marked one is not marked again
        assert main(["results", "mark", str(results)]) == 0
        assert table.read_text() == "**Old:** made in parts.\n\n| 0.5 |\n"
        assert check(results) == []
    assert capsys.readouterr().out == "maze/table.md\nevery old table is marked\n"
    table.write_text("| 0.9 |\n")
    with pytest.raises(DataError, match=r"table\.md was changed after it was written"):
        mark_old(results)


def test_a_file_belongs_to_one_table(results):
    record(results, "again", [results / "maze" / "curve.png"], MADE)
    assert check(results) == ["maze/curve.png belongs to two tables, again and maze"]


def test_a_table_that_is_written_again_replaces_its_entry(results):
    (results / "maze" / "summary.json").write_text('{"new": 1}')
    record(results, "maze", (results / "maze").iterdir(), MADE)
    assert check(results) == []


@pytest.mark.parametrize(("text", "told"), [("[]", "is no manifest"), ("{", "cannot be read")])
def test_a_damaged_manifest_is_told(results, text, told):
    (results / MANIFEST).write_text(text)
    with pytest.raises(DataError, match=told):
        check(results)
    (results / MANIFEST).unlink()
    with pytest.raises(DataError, match=r"no .*manifest\.json"):
        check(results)


def test_the_published_results_are_what_their_commands_wrote():
    assert check(Path(__file__).parents[2] / "results") == []
