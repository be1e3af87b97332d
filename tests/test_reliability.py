"""The measured reliability: the page shows what was measured, and nothing that was measured broke."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "reliability"
MADE = {"command": "python a.py", "commit": "0123abc", "minutes": 3.0, "machine": {"processor": "some CPU"}}


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("pages")
    sys.modules.pop("pages")


def measured(part: str) -> dict:
    path = RESULTS / f"{part}.json"
    if not path.is_file():
        pytest.skip(f"not measured yet: python benchmarks/reliability.py {part}")
    return json.loads(path.read_text())["found"]


def test_pages_are_filled_from_the_results(pages):
    seen = []
    for page in pages.PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        current = pages.filled(text, ROOT / "results", page)
        assert current == text, f"{page} is old: run `python benchmarks/reliability.py pages`"
        seen += [match[2] for match in pages.BLOCK.finditer(text)]
    assert sorted(seen) == sorted(pages.TABLES)


def test_a_typed_number_is_replaced(pages, tmp_path):
    found = {"train": {"kills": 3, "runs": 2, "equal": 1}, "sweep": {"kills": 4, "runs": 1, "equal": 1}}
    (tmp_path / "reliability").mkdir()
    (tmp_path / "reliability" / "kills.json").write_text(json.dumps({**MADE, "found": found}))
    text = pages.filled("before\n<!-- filled: kills -->\n| 99 |\n<!-- end -->\nafter", tmp_path)
    assert "99" not in text
    assert "| `dtm train` | 3 | 2 | 1 |\n" in text
    assert "| in all | 7 | 3 | 2 |\n" in text
    assert "`python a.py`, commit 0123abc, 3 minutes on one thread of some CPU.\n<!-- end -->\nafter" in text
    assert pages.filled(text, tmp_path) == text


def test_a_block_from_an_old_result_says_so(pages, tmp_path):
    (tmp_path / "reliability").mkdir()
    found = {"train": {"kills": 3, "runs": 2, "equal": 1}}
    (tmp_path / "reliability" / "kills.json").write_text(json.dumps({**MADE, "found": found}))
    entry = {"files": {"reliability/kills.json": "0"}, "old": "counted by hand"}
    (tmp_path / "manifest.json").write_text(
        json.dumps({"kills": entry, "other": {"files": {}, "old": "too"}})
    )
    empty = "<!-- filled: kills -->\n<!-- end -->"
    assert "*Older results, not regenerated since*: `kills`: counted by hand.\n<!-- end -->" in pages.filled(
        empty, tmp_path
    )
    (tmp_path / "manifest.json").write_text(json.dumps({"kills": entry | {"old": None}}))
    assert "Old" not in pages.filled(empty, tmp_path)


def test_a_value_in_a_sentence_is_replaced(pages, tmp_path):
    found = {"rows": [{"full pass": {"r": -0.1284}}], "minutes": 1234.5}
    (tmp_path / "a.json").write_text(json.dumps(found))
    text = "r = <!--= a.json rows.0.full pass.r .2f -->9<!--/--> in <!--= a.json minutes ,.0f --><!--/--> min"
    now = pages.filled(text, tmp_path)
    assert re.sub(r"<!--.*?-->", "", now) == "r = −0.13 in 1,234 min"
    assert pages.filled(now, tmp_path) == now


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a <!--= b.json rate .2f -->1<!--/-->", r"speed\.md: results have no file b\.json.*rate"),
        ("a <!--= a.json rows.3.mean .2f -->1<!--/-->", r"speed\.md: a\.json has no rows\.3\.mean"),
        ("a <!--= a.json rows.0.median .2f -->1<!--/-->", r"speed\.md: a\.json has no rows\.0\.median"),
        ("a <!--= a.json rows .2f -->1<!--/-->", r"speed\.md: rows of a\.json cannot be shown as \.2f"),
        ("a <!--= a.json rate -->1<!--/-->", r"speed\.md: not a value: a <!--= a\.json rate"),
        ("a <!--= a.json rate .2f -->1", r"speed\.md: not a value"),
        ("a\n- <!--= a.json rate .2f -->1<!--/-->", r"speed\.md: a line must not open with a value"),
    ],
)
def test_a_value_that_cannot_be_filled_is_an_error_with_page_and_path(pages, tmp_path, text, message):
    (tmp_path / "a.json").write_text(json.dumps({"rate": 2.0, "rows": [{"mean": 1.0}]}))
    with pytest.raises(LookupError, match=message):
        pages.filled(text, tmp_path, "speed.md")


def test_values_are_only_on_pages_that_are_filled(pages):
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        name = page.relative_to(ROOT).as_posix()
        assert name in pages.PAGES or "<!--=" not in page.read_text(encoding="utf-8"), name


def test_no_table_of_results_is_typed(pages):
    """A cell that opens with three decimals was measured; history in decisions.md stays as it was written."""
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = pages.BLOCK.sub("", page.read_text(encoding="utf-8"))
        typed = re.findall(r"^\|.*\|\s*\**[−+-]?\d+\.\d{3}\b.*$", text, re.MULTILINE)
        assert page.name == "decisions.md" or not typed, f"{page}: {typed}"


def test_no_result_in_a_sentence_is_typed(pages):
    """A number with three decimals was measured, and so was a rate or a bound in nats.

    Exceptions are settings, an error that follows from one, and shares of eight. Code shows examples.
    """
    measure = r"\d[\d,.]* (?:nats|(?:rows|tokens|rollouts|updates|steps|passes) per second)\b"
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = pages.BLOCK.sub("", page.read_text(encoding="utf-8"))
        text = re.sub(r"```.*?```", "", pages.pages_values.VALUE.sub("", text), flags=re.DOTALL)
        typed = {*re.findall(r"(?<![\w.])\d\.\d{3}(?![\d.])", text), *re.findall(measure, text)}
        assert page.name == "decisions.md" or typed <= {"0.999", "0.001", "0.375"}, f"{page}: {typed}"


def test_no_kill_cost_more_than_promised():
    rows = measured("kills")
    assert set(rows) == {"train", "pretrain", "adapt", "compare", "sweep"}
    assert sum(row["kills"] for row in rows.values()) >= 200
    assert all(row["equal"] == row["runs"] for row in rows.values())


def test_no_fault_and_no_input_broke_anything():
    for part in ("faults", "inputs"):
        assert all(row["broken"] == 0 for row in measured(part).values())
    assert measured("fuzz")["raised"] == 0


def test_a_long_run_takes_no_more_with_time():
    found = measured("soak")
    growth, last = found["growth_per_1000_steps"], found["last"]
    assert found["hours"] >= 0.5
    assert growth["resident_bytes"] < 0.01 * last["resident_bytes"]
    assert growth["open_files"] < 0.1
    assert growth["checkpoint_bytes"] < 0.01 * last["checkpoint_bytes"]


def test_nearly_all_mutations_are_noticed():
    found = measured("mutations")
    assert all(row["share"] >= 0.95 for row in found["packages"].values())
