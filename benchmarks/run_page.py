"""What the run page costs: python benchmarks/run_page.py --out runs/run-page --publish.

Two measurements: the seconds to write the page of a run with 10,000 steps and 10,000 samples (median of
five), and the shares of a run of maze-small that recording reveals and writing its page take.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import dtm
from dtm.config import LanguageConfig, RunConfig
from dtm.evaluation import evaluate
from dtm.report.page.write import RunPage, write_page
from dtm.runs.events import Event, JsonLines, SampleFiles
from dtm.runs.folder import RunFolder
from dtm.writing import write_json
from study import provenance, publish

RESULTS = Path(__file__).parents[1] / "results"
STEPS, EVALUATIONS, EACH = 10_000, 10, 1_000
"""Steps, evaluations, and samples of an evaluation."""
PROMPTS, LENGTH = 125, 200
"""Prompts of an evaluation, and characters of a completion."""
REPEATS = 5


def long_run(path: Path) -> RunFolder:
    """Write the folder of a long run, as training would."""
    shutil.rmtree(path, ignore_errors=True)
    task = LanguageConfig(kind="custom", data="rows.jsonl")
    folder = RunFolder.create(RunConfig(recipe="long", task=task), "train", path)
    writers = [JsonLines(folder.metrics), SampleFiles(folder.samples)]
    prompts = [f"prompt {row % PROMPTS}" for row in range(EACH)]
    for step in range(STEPS + 1):
        cost = {"tilt": float(step), "seconds": float(step), "spent_tokens": step}
        events = [Event("step", step, {**cost, "phase": 0, "h": 1.0, "loss": 1.0, "ess": 0.5, "lr": 0.1})]
        if step % (STEPS // (EVALUATIONS - 1)) == 0:
            completions = [f"{step} {row} ".ljust(LENGTH, "x") for row in range(EACH)]
            drawn = {"prompts": prompts, "completions": completions, "rewards": [0.5] * EACH}
            events += [
                Event("evaluation", step, {**cost, "reward": 0.5}),
                Event("samples", step, cost | drawn),
            ]
        for event in events:
            for write in writers:
                write(event)
    return folder


def page_seconds(path: Path) -> dict[str, Any]:
    """Write the page of a long run several times; return the median of the seconds, and its size."""
    folder, seconds = long_run(path), []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        page = write_page(folder)
        seconds.append(time.perf_counter() - begin)
    return {
        "steps": STEPS,
        "samples": EVALUATIONS * EACH,
        "seconds": statistics.median(seconds),
        "bytes": page.stat().st_size,
    }


class Stopwatch:
    """Total seconds of the calls of a function."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on(self, place: Any, name: str) -> AbstractContextManager[Any]:
        """Time the calls of ``place.name`` within a context."""
        usual: Callable[..., Any] = getattr(place, name)

        def timed(*given: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return usual(*given, **named)
            finally:
                self.seconds += time.perf_counter() - begin

        return mock.patch.object(place, name, timed)


def shares(path: Path, smoke: bool) -> dict[str, float]:
    """Run maze-small; return the shares of its seconds for recorded reveals and for pages."""
    shutil.rmtree(path, ignore_errors=True)
    config = dtm.recipe("maze-small")
    if smoke:
        from maze_small import recipe

        config = recipe("adaptive", 0, smoke=True)
    reveals, pages = Stopwatch(), Stopwatch()
    begin = time.perf_counter()
    with reveals.on(evaluate, "record"), pages.on(RunPage, "write"):
        dtm.train(config, out=path)
    whole = time.perf_counter() - begin
    return {"seconds": whole, "reveals": reveals.seconds / whole, "pages": pages.seconds / whole}


def main() -> None:
    """Measure, and write results/run-page.json with --publish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("runs/run-page"), metavar="DIR", help="folder of the runs"
    )
    parser.add_argument(
        "--publish", action="store_true", help="write results/run-page.json, not OUT/run-page.json"
    )
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    found = {
        **provenance(),
        "page": page_seconds(options.out / "long"),
        "training": shares(options.out / "maze-small", options.smoke),
    }
    path = (RESULTS if options.publish else options.out) / "run-page.json"
    write_json(path, found)
    if options.publish:
        publish("run-page", path, [path])
    print(json.dumps({part: found[part] for part in ("page", "training")}, indent=2))


if __name__ == "__main__":
    main()
