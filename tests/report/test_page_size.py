"""The size, memory and reads of a page: none of them grows with the run."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

from page_runs import SPENT, data_in, rows_of, write_run

from dtm.report.page import log, write
from dtm.report.page import samples as page_samples
from dtm.report.page.data import LEVELS, PageRun, page_data
from dtm.runs.events import Event, JsonLines, SampleFiles


def test_a_page_of_long_texts_stays_small_enough_for_an_e_mail(tmp_path):
    long = "\u202e\ufffd" * 2000
    texts, rewards = [f"{k} {long}" for k in range(160)], [float(k) for k in range(160)]
    folder = write_run(tmp_path / "run", [rows_of(texts, rewards, prompt=long)] * 2)
    subject = PageRun(folder, "run", "")
    assert len(write.render(page_data([subject], "run"))) > write.LARGEST
    page = write.page_of([subject], "run")
    assert len(page) <= write.LARGEST
    assert data_in(page)["runs"][0]["samples"]["rows"]


def test_every_level_of_detail_is_smaller_than_the_one_before(finished):
    subject = PageRun(finished.folder, "run", "")
    sizes = [len(write.render(page_data([subject], "run", level))) for level in range(LEVELS)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]


def peak_of(act: Callable[[], None]) -> int:
    """The most memory that was traced during an act, above that before it."""
    tracemalloc.start()
    act()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_the_memory_for_a_page_does_not_grow_with_the_run(tmp_path):
    folder = write_run(tmp_path / "run", [rows_of(["a", "b"], [0.0, 1.0])])
    page = write.RunPage(folder)
    writers = [JsonLines(folder.metrics), SampleFiles(folder.samples)]

    def emit(kind, step, **values):
        for writer in writers:
            writer(Event(kind, step, {"tilt": float(step), **values, **SPENT}))

    def train(begin, end):
        drawn = {"prompts": [[1], [2]], "completions": [[3], [4]], "rewards": [0.0, 1.0]}
        for step in range(begin, end):
            emit("rollouts", step, reward=0.5, per_second=9.0, skipped=0)
            emit("step", step, loss=1 / step, ess=0.5, grad_norm=0.1, lr=0.1)
            emit("phase", step, phase=step, h=1.0, steps=1, ess=0.5, absorbed=None, cause="few: raise it")
            emit("evaluation", step, reward=0.5, valid=1.0)
            emit("samples", step, **drawn)

    train(21, 420)  # beyond the points of a curve
    early = peak_of(page.write)
    train(420, 1620)
    late = peak_of(page.write)
    assert late < 1.25 * early
    found = data_in(folder.page.read_text("utf-8"))["runs"][0]
    assert found["tables"]["step"]["step"][-1] == 1619
    assert found["samples"]["total"] == 2 + 2 * (1620 - 21)
    assert not page.has_failed


def test_a_page_of_ten_thousand_steps_reads_each_file_a_fixed_number_of_times_and_stays_small(
    tmp_path, monkeypatch
):
    def written(steps, samples):
        rows = [{"prompt": k % 50, "completion": "x" * 100, "reward": k / samples} for k in range(samples)]
        return write_run(tmp_path / f"{steps}", [rows[::2], rows[1::2]], steps=steps)

    reads = []
    for module, name in ((log, "newest_first"), (page_samples, "read_lines")):
        usual = getattr(module, name)
        monkeypatch.setattr(
            module,
            name,
            lambda path, *given, usual=usual, **named: reads.append(path) or usual(path, *given, **named),
        )
    small, large = written(1_000, 1_000), written(10_000, 10_000)
    sizes = []
    for folder in (small, large):
        reads.clear()
        sizes.append(len(write.page_of([PageRun(folder, "run", "")], "run")))
        assert reads.count(folder.metrics) == 2  # the rows are counted, and then read
        assert all(reads.count(path) == 2 for path in folder.samples.iterdir())  # noted, and then kept
    assert sizes[1] < 1.1 * sizes[0]
