"""What the run page costs: python benchmarks/run_page.py --out runs/run-page --publish.

Two measurements: the seconds to write the page of a run with 10,000 steps and 10,000 samples (median of
five), and the share of an evaluation of maze-small that recording reveals takes. Seconds are of processor
time, so that other processes do not count.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import dtm
from dtm.config import LanguageConfig, RunConfig
from dtm.evaluation import evaluate
from dtm.evaluation.reveals import record
from dtm.loop.assemble import assemble
from dtm.report.page.write import write_page
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
    writers: list[Callable[[Event], None]] = [JsonLines(folder.metrics), SampleFiles(folder.samples)]
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
        begin = time.process_time()
        page = write_page(folder)
        seconds.append(time.process_time() - begin)
    return {
        "steps": STEPS,
        "samples": EVALUATIONS * EACH,
        "seconds": statistics.median(seconds),
        "bytes": page.stat().st_size,
    }


def recording(prompts: int) -> dict[str, float]:
    """Evaluate the base of maze-small; return its seconds of processor time, and the share for reveals."""
    config = dtm.recipe("maze-small")
    assembly = assemble(config)
    collector, model = assembly.collector(), assembly.base.eval()
    collector.engine.load(model)
    spent = [0.0]

    def timed(*given: Any) -> Any:
        begin = time.process_time()
        found = record(*given)
        spent[0] += time.process_time() - begin
        return found

    def evaluated(count: int) -> None:
        setting = replace(config.evaluation, prompts=count)
        evaluate.evaluate(collector, setting, torch.device(config.device), model)

    evaluated(1)  # the task computes its best rewards once
    begin = time.process_time()
    with mock.patch.object(evaluate, "record", timed):
        evaluated(prompts)
    whole = time.process_time() - begin
    return {"prompts": prompts, "seconds": whole, "reveals": spent[0] / whole}


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
    torch.set_num_threads(1)  # threads that wait for each other count as processor time
    found = {
        **provenance(None),
        "page": page_seconds(options.out / "long"),
        "evaluation": recording(8 if options.smoke else dtm.recipe("maze-small").evaluation.prompts),
    }
    path = (RESULTS if options.publish else options.out) / "run-page.json"
    write_json(path, found)
    if options.publish:
        publish("run-page", path, [path], {})
    print(json.dumps({part: found[part] for part in ("page", "evaluation")}, indent=2))


if __name__ == "__main__":
    main()
