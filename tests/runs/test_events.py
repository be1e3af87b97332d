"""metrics.jsonl: whole lines, each step once, in numbers that JSON can hold."""

from __future__ import annotations

import errno
import json
import math
import time
import tracemalloc

import pytest

from dtm.errors import DtmWarning, StorageError
from dtm.runs import events
from dtm.runs.events import Event, JsonLines, SampleFiles, newest_first, read_events, read_lines


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def write(path, *steps, **values):
    log = JsonLines(path)
    for step in steps:
        log(Event("step", step, {"tilt": 0.0, **values}))


def test_events_come_back_by_kind_in_order(path):
    log = JsonLines(path)
    log(Event("step", 1, {"tilt": 0.0, "loss": 0.5}))
    log(Event("evaluation", 1, {"tilt": 0.0, "reward": 0.1}))
    log(Event("step", 2, {"tilt": 0.0, "loss": 0.4}))
    assert [row["loss"] for row in read_events(path, "step")] == [0.5, 0.4]
    assert read_events(path, "evaluation") == [{"event": "evaluation", "step": 1, "tilt": 0.0, "reward": 0.1}]


def test_a_torn_last_line_is_dropped_before_the_next_is_written(path):
    write(path, 1, 2)
    path.write_text(path.read_text() + '{"event": "step", "st')
    write(path, 3)
    assert [row["step"] for row in read_events(path, "step")] == [1, 2, 3]


def test_a_file_of_one_torn_line_is_begun_again(path):
    path.write_text('{"event"')
    write(path, 1)
    assert [row["step"] for row in read_events(path, "step")] == [1]


def test_a_torn_last_line_does_not_keep_the_rest_from_being_read(path):
    """A run that was killed can be looked at before it is resumed."""
    write(path, 1, 2)
    path.write_text(path.read_text() + '{"event": "step", "st')
    assert [row["step"] for row in read_events(path, "step")] == [1, 2]


@pytest.mark.parametrize(
    "damage", [b"\x00\xff", b'{"event": "step"', b"[1]", b"null", b'{"event": "step"}', b""]
)
def test_a_damaged_line_is_left_out_with_a_warning(damage, path):
    write(path, 1, 2, 3)
    lines = path.read_bytes().split(b"\n")
    lines[1] = damage
    path.write_bytes(b"\n".join(lines))
    with pytest.warns(DtmWarning, match=r"metrics.jsonl: 1 damaged lines are skipped, the first is line 2"):
        rows = read_events(path, "step")
    assert [row["step"] for row in rows] == [1, 3]


def test_of_many_damaged_lines_the_first_is_named(path):
    path.write_bytes(b"{\n" * 3 + b'{"event": "step", "step": 1}\n' + b"{\n" * 2)
    for read in (newest_first(path), read_lines(path, ("event", "step"))):
        with pytest.warns(
            DtmWarning, match=r"metrics.jsonl: 5 damaged lines are skipped, the first is line 1$"
        ):
            assert [row["step"] for row in read] == [1]


def test_the_memory_for_damaged_lines_does_not_grow_with_their_number(path, monkeypatch):
    monkeypatch.setattr(events, "CHUNK", 1024)
    path.write_bytes(b"{\n" * 20_000)
    for read in (newest_first(path), read_lines(path, ("event", "step"))):
        tracemalloc.start()
        with pytest.warns(DtmWarning, match="20000 damaged lines"):
            assert list(read) == []
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 400_000


def test_a_line_much_longer_than_a_part_is_read_in_linear_time(path, monkeypatch):
    monkeypatch.setattr(events, "CHUNK", 64)
    write(path, 1, text="x" * 2_000_000)
    begin = time.process_time()
    assert [row["step"] for row in read_events(path, "step")] == [1]
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("content", [None, ""])
def test_lost_rows_are_reported_when_a_run_is_resumed(content, path):
    log = JsonLines(path)
    if content is not None:
        path.write_text(content)
    with pytest.warns(DtmWarning, match="has lost the rows of 7 steps"):
        log(Event("resumed", 7, {}))


def test_a_full_disk_is_an_error_that_names_the_file(path, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    log = JsonLines(path)
    monkeypatch.setattr(type(path), "open", full)
    with pytest.raises(StorageError, match=r"cannot write .*metrics.jsonl: No space left on device"):
        log(Event("step", 1, {}))


def test_repeated_steps_count_once_the_last_time(path):
    write(path, 1, 2, 3, loss=1.0)
    write(path, 2, 3, 4, loss=2.0)
    rows = read_events(path, "step")
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0)]


def test_steps_of_a_stopped_attempt_that_are_not_yet_repeated_are_left_out(path):
    write(path, 1, 2, 3, 4, 5, loss=1.0)
    write(path, 3, loss=2.0)
    assert [(row["step"], row["loss"]) for row in read_events(path, "step")] == [(1, 1.0), (2, 1.0), (3, 2.0)]


def test_rows_after_the_step_of_a_resume_are_left_out_before_their_kind_is_written_again(path):
    log = JsonLines(path)
    write(path, 1, 2, 3)
    log(Event("evaluation", 3, {"tilt": 0.0}))
    write(path, 4, 5)
    log(Event("evaluation", 5, {"tilt": 1.0}))
    log(Event("audit", 5, {"tilt": 1.0, "falls_back": "off"}))
    log(Event("resumed", 3, {"tilt": 0.0}))
    write(path, 4)
    assert [row["step"] for row in read_events(path, "step")] == [1, 2, 3, 4]
    assert [row["step"] for row in read_events(path, "evaluation")] == [3]
    assert read_events(path, "audit") == []


def test_the_lowest_step_of_several_resumes_counts_for_the_rows_before_them(path):
    log = JsonLines(path)
    for kind, step in (("phase", 2), ("phase", 6), ("resumed", 2), ("phase", 5), ("resumed", 5)):
        log(Event(kind, step, {"tilt": float(step)}))
    assert [row["step"] for row in read_events(path, "phase")] == [2, 5]


def test_a_step_repeated_after_a_resume_counts_once_the_last_time(path):
    log = JsonLines(path)
    log(Event("evaluation", 3, {"tilt": 0.0, "reward": 0.1}))
    log(Event("resumed", 3, {"tilt": 0.0}))
    log(Event("evaluation", 3, {"tilt": 0.0, "reward": 0.2}))
    assert [row["reward"] for row in read_events(path, "evaluation")] == [0.2]


@pytest.mark.parametrize("chunk", [1, 2, 7, 50, 1000])
def test_a_log_is_read_backwards_in_parts_of_any_size(chunk, path, monkeypatch):
    monkeypatch.setattr(events, "CHUNK", chunk)
    write(path, 1, 2, 3, 4)
    end = path.stat().st_size
    path.write_text(path.read_text() + '{"event": "step", "st')
    write(path, 5)
    assert [row["step"] for row in newest_first(path)] == [5, 4, 3, 2, 1]
    assert [row["step"] for row in newest_first(path, end)] == [4, 3, 2, 1]


def test_evaluations_of_two_tilts_at_one_step_both_count(path):
    log = JsonLines(path)
    for tilt in (0.0, 1.0, 1.0):
        log(Event("evaluation", 0, {"tilt": tilt}))
    assert [row["tilt"] for row in read_events(path, "evaluation")] == [0.0, 1.0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_json_cannot_hold_become_null(value, path):
    write(path, 1, absorbed=value)
    (line,) = path.read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["absorbed"] is None


def test_samples_go_to_a_file_of_their_own(path, tmp_path):
    event = Event("samples", 7, {"tilt": 2.5, "prompts": [[1, 2]], "completions": [[3]], "rewards": [0.5]})
    JsonLines(path)(event)
    assert not path.exists()
    SampleFiles(tmp_path / "samples")(event)
    lines = (tmp_path / "samples" / "step-00000007-tilt-0002.5000.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"prompt": [1, 2], "completion": [3], "reward": 0.5}]
