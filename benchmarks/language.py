"""The language study: an adapted SmolLM2, tuned on Countdown, Sudoku and GSM8K, with controls and ablations.

    python benchmarks/language.py adapt --data-dir DATA --out DIR     # makes DIR/full, and DIR/block if asked
    python benchmarks/language.py base --data-dir DATA --out DIR      # measures them
    python benchmarks/language.py tune --data-dir DATA --out DIR --jobs 3 --minutes 15 --only countdown,rft
    python benchmarks/language.py all --data-dir DATA --out DIR --jobs 9 --minutes 25   # these three
    python benchmarks/language.py table --out DIR                     # writes results/language/summary.json

Every job is one process: it trains, measures the published test items, and writes DIR/rows/NAME-SEED.json.
The three tasks come first, then controls, then ablations. ``all`` measures the base beside the first jobs;
its ``--minutes`` include the adaptation. Jobs that have a row are not run again. A job that fails, for
example because too many share the memory, starts once more after the others. After ``--minutes`` no job
starts, and running jobs end with the phases they have completed; a row has their number. ``--smoke`` runs a
tiny size of everything on a CPU, with a source given by ``--source``. On test items a row stops at its end
token.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dtm
from dtm import Run, api
from dtm.comparison.sweep import spread
from dtm.config import EvaluationConfig, PretrainConfig, RunConfig
from dtm.config.adapt import SHARES, AdaptConfig, CorpusConfig
from dtm.config.serialise import update
from dtm.errors import require
from dtm.evaluation.protocol import Examination, examine
from dtm.evaluation.subject import ModelFiles, Subject
from dtm.loop.assemble import assemble
from dtm.models.transformer import Transformer
from dtm.pretraining.adaptation import adapt
from dtm.runs.folder import RunFolder
from dtm.writing import write_json
from study import called, commits, curve, inputs, machine, publish

RESULTS = Path(__file__).parents[1] / "results" / "language"
SEEDS = (0, 1, 2)
TASKS = {"countdown": (128, 256), "sudoku": (128,), "gsm8k": (256,)}
"""Task → lengths of the completions on test items; the first one is the headline."""

Changes = Mapping[str, Any]
REJECTION: Changes = {
    "method": {"control_variate": "zero", "guard": False, "prompt_baseline": False},
    "tilt": {"step": 10.0, "final": 30.0},
}
"""Rejection fine-tuning is c-DTM at c = 0 and a large h: e^{hr} leaves the right rollouts alone."""
JOBS: dict[str, tuple[str, Changes]] = {
    "countdown": ("smollm-countdown", {}),
    "sudoku": ("smollm-sudoku", {}),
    "gsm8k": ("smollm-gsm8k", {}),
    "rft": ("smollm-countdown", REJECTION),
    "block": ("smollm-countdown", {"model": {"base": "block"}, "decoding": {"cache": "prefix"}}),
    "full-weights": ("smollm-countdown", {"adapter": {"rank": None}, "optimizer": {"lr": 2e-4}}),
    "two-tokens": ("smollm-countdown", {"decoding": {"tokens_per_step": 2, "certainty": None}}),
    "long-phases": ("smollm-countdown", {"tilt": {"max_steps": 60}}),
    "h-1.5": ("smollm-countdown", {"tilt": {"step": 1.5}}),
    "h-6": ("smollm-countdown", {"tilt": {"step": 6.0}}),
    "c-zero": ("smollm-countdown", {"method": {"control_variate": "zero"}}),
    "c-adaptive": ("smollm-countdown", {"method": {"control_variate": "adaptive"}}),
    "any-order": ("smollm-countdown", {"method": {"block": "any-order", "after_end": True}}),
}
"""Name → recipe and changed fields. Ablations of h have as many steps per phase, so other numbers of steps.
Comparisons with other methods are `dtm compare`'s."""
SUPERVISED = "supervised"
"""A job without a recipe: the base trained on right answers to Countdown alone."""
SUPERVISED_STEPS = 450
"""Steps of 256 rows of 288 tokens or more: 33 million tokens, as many as three phases of `countdown` pass
through the models (11 million each at commit 31b596f)."""
ORDER = {**dict.fromkeys(TASKS, 0), "rft": 1, SUPERVISED: 1}
"""Job → rank; ablations come last."""
SMOKE: Changes = {
    "replay": {"prompts": 4, "completions": 2},
    "optimizer": {"batch": 4},
    "tilt": {"max_steps": 2},
    "evaluation": {"prompts": 2},
    "decoding": {"batch": 8},
    "task": {"completion_length": 32, "prompt_length": 8192},
}


def adapt_bases(options: argparse.Namespace) -> None:
    """Make the bases, with full attention and, if asked, block-causal attention."""
    for attention in options.attention:
        config = AdaptConfig(source=options.source, attention=attention)
        corpus = replace(config.corpus, data_dir=str(options.data_dir))
        config = replace(config, corpus=corpus)
        if options.smoke:
            pretrain = replace(config.pretrain, steps=2, batch=4, held_out=4)
            small = replace(corpus, general=0.0, workers=0, lengths=(1024, 2048, 4096))
            config = replace(config, corpus=small, pretrain=pretrain, measured=2)
        elif options.warm:
            pretrain = replace(config.pretrain, steps=4, batch=48, held_out=48)
            small = replace(config.corpus, general=0.0, workers=0)
            config = replace(config, corpus=small, pretrain=pretrain, measured=0)
        folder = adapt(config, out=options.out / attention, resume="auto")
        require(folder.is_finished, f"the adaptation in {folder.path} was stopped: run this again")


def tune(options: argparse.Namespace) -> None:
    """Run jobs side by side, each in a process of its own, until all are done or the time is over."""
    names = options.only or [
        name for name in (*JOBS, SUPERVISED) if name != "block" or name in options.attention
    ]
    rows = options.out / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    jobs = sorted(((name, seed) for seed in SEEDS for name in names), key=lambda job: ORDER.get(job[0], 2))
    waiting = [job for job in jobs if not row_path(options.out, *job).is_file()]
    running: dict[subprocess.Popen[bytes], tuple[str, int]] = {}
    failed: set[tuple[str, int]] = set()
    # Every process compiles with as many workers as there are cores, unless it is told.
    shared = {"TORCHINDUCTOR_COMPILE_THREADS": str(max(1, (os.cpu_count() or 1) // options.jobs))}
    end, is_over = time.monotonic() + 60 * options.minutes, False
    while running or (waiting and time.monotonic() < end):
        for process in [process for process in running if process.poll() is not None]:
            ended = running.pop(process)
            print(f"{ended[0]}-{ended[1]}: exit {process.returncode}", flush=True)
            if process.returncode and ended not in failed:
                failed.add(ended)
                waiting.append(ended)
        if time.monotonic() >= end and not is_over:
            is_over = True
            for process in running:
                process.terminate()
        while not is_over and waiting and len(running) < options.jobs:
            name, seed = waiting.pop(0)
            asked = [*sys.argv[2:], "--name", name, "--seed", str(seed)]
            with (rows / f"{name}-{seed}.log").open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, __file__, "job", *asked],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=shared | os.environ,
                )
            running[process] = name, seed
        time.sleep(0.5)
    if waiting:
        print(f"not run: {', '.join(f'{name}-{seed}' for name, seed in waiting)}")


def whole_study(options: argparse.Namespace) -> None:
    """Adapt, then tune, and measure the base beside the first jobs.

    The source takes more than a minute to write its instructions. Meanwhile a few steps of another adaptation
    compile its passes, and torch keeps them on disk.
    """
    begin = time.monotonic()
    asked = sys.argv[2:]
    compiling = subprocess.Popen(
        [sys.executable, __file__, "adapt", *asked, "--warm", "--out", str(options.out / "compile")]
    )
    # A process of its own, whose end gives the memory of the adaptation back.
    subprocess.run([sys.executable, __file__, "adapt", *asked], check=True)
    compiling.wait()  # it has ended long before, unless everything is small
    measure = [sys.executable, __file__, "base", *asked]
    base = subprocess.Popen(measure)
    options.minutes -= (time.monotonic() - begin) / 60
    try:
        tune(options)
    finally:
        failed = base.wait()
    if failed:  # beside other jobs it may have run out of memory
        subprocess.run(measure, check=True)


def job(options: argparse.Namespace) -> None:
    """Train one setting with one seed and measure it."""
    name, seed, out = options.name, options.seed, options.out
    if name == SUPERVISED:
        supervised(options)
        return
    config = job_config(name, seed, options)
    folder = out / "runs" / f"{name}-{seed}"
    is_there = (folder / "config.yaml").is_file()
    run = Run.open(folder) if is_there else None
    if run is None or not run.is_finished:  # a finished run may have been given another end
        run = api.train(config, out=folder, resume=is_there)
    if not run.is_finished:
        reached = run.events("phase")
        require(bool(reached), f"{name}-{seed} was stopped before its first phase ended")
        final = reached[-1]["tilt"] + reached[-1]["h"]
        config = replace(config, tilt=replace(config.tilt, final=final))
        run = api.train(config, out=folder, resume=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is trained is measured
    task = config.task.kind
    setting = EvaluationConfig(split="test", prompts=2 if options.smoke else 256, completions=1)
    model = run.model
    assert isinstance(model, Transformer)
    row = {
        "name": name,
        "seed": seed,
        "tilt": run.events("stopped")[-1]["tilt"],
        "phases": len(run.events("phase")),
        "minutes": run.summary["minutes"],
        "validation": curve(run),
        "test": on_test(str(run.path), task, options),
        "cost": api.tuning_cost(run.assembly, model, setting),
        "samples": run.sample(2, 1),
        "commit": commits([run]),
    }
    write_json(row_path(out, name, seed), row)


def supervised(options: argparse.Namespace) -> None:
    """Train the base on right answers to Countdown, and measure it: what a corpus of solutions would give."""
    shares = {share: float(share == "countdown") for share in SHARES}
    corpus = CorpusConfig(**shares, data_dir=str(options.data_dir), worked=1.0)  # type: ignore[arg-type]
    corpus = replace(corpus, workers=1)
    steps, batch = SUPERVISED_STEPS, 256
    if options.smoke:
        corpus = replace(corpus, workers=0, lengths=(1024, 2048, 4096))
        steps, batch = 2, 4
    config = AdaptConfig(
        source=str(options.out / "full" / "model"),
        seed=options.seed,
        measured=0,
        corpus=corpus,
        pretrain=PretrainConfig(
            steps=steps,
            batch=batch,
            micro_batch=64,
            settle=1.0,
            after_end=False,
            lr=1e-4,
            held_out=64,
        ),
    )
    folder = adapt(config, out=options.out / "runs" / f"{SUPERVISED}-{options.seed}", resume="auto")
    require(folder.is_finished, f"{SUPERVISED}-{options.seed} was stopped before its end")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is trained is measured
    row = {
        "name": SUPERVISED,
        "seed": options.seed,
        "minutes": json.loads(folder.summary.read_text())["minutes"],
        "validation": [],
        "test": on_test(str(folder.model), "countdown", options),
    }
    write_json(row_path(options.out, SUPERVISED, options.seed), row)


def job_config(name: str, seed: int, options: argparse.Namespace) -> RunConfig:
    """The configuration of a job."""
    recipe, changes = JOBS[name]
    base = changes.get("model", {}).get("base", "full")
    config = update(dtm.recipe(recipe), changes, name)
    config = replace(
        config,
        seed=seed,
        model=replace(config.model, base=str(options.out / base / "model")),
        task=update(config.task, {"data_dir": str(options.data_dir)}, name),
    )
    if options.smoke:
        config = update(config, SMOKE, "sizes")
        config = update(config, {"tilt": {"final": config.tilt.step}}, "sizes")
    return config


def on_test(model: str, task: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measures on the published test items, by length."""
    subject = Subject.load(ModelFiles.find(model), "auto", "auto")
    lengths, limit = TASKS[task], 2 if options.smoke else None
    found = {}
    for length in (32,) if options.smoke else lengths:
        exam = Examination(task=task, length=length, batch=256, limit=limit, until_end=True)
        found[str(length)] = dict(examine(subject, exam, options.data_dir).measures)
    return found


def base_rows(options: argparse.Namespace) -> None:
    """Measure the bases on the test items: as tuned models are, and pass@k on Countdown at temperature 1."""
    for attention in options.attention:
        folder = options.out / attention
        path = folder / "base.json"
        row: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        tasks = [task for task in TASKS if task in (options.only or TASKS)]
        row |= {task: on_test(str(folder / "model"), task, options) for task in tasks}
        name = "block" if attention == "block" else "countdown"
        assembly = assemble(job_config(name, 0, options))
        setting = EvaluationConfig(split="test", prompts=256, completions=64, temperature=1.0)
        if options.smoke:
            setting = replace(setting, prompts=2, completions=2)
        row["sampled"] = dict(api.measure(assembly, assembly.base, setting).measures)
        write_json(path, row)


def row_path(out: Path, name: str, seed: int) -> Path:
    """Where a job writes its result."""
    return out / "rows" / f"{name}-{seed}.json"


def table(options: argparse.Namespace) -> None:
    """Gather all rows into results/language, with means and ranges over seeds."""
    rows = [json.loads(path.read_text()) for path in sorted((options.out / "rows").glob("*.json"))]
    adapted = json.loads((options.out / "full" / "summary.json").read_text())
    base = json.loads((options.out / "full" / "base.json").read_text())
    folders = sorted((options.out / "runs").glob("*"))
    runs = {path.name: dtm.Run(RunFolder(path)) for path in folders if SUPERVISED not in path.name}
    measured = {f"{row['name']}-{row['seed']}" for row in rows}
    unmeasured = {name: curve(run) for name, run in runs.items() if name not in measured}
    commit = options.commit or commits(runs.values())
    summary: dict[str, Any] = {
        "adapt_minutes": spread([adapted.get("preparation_minutes", 0.0) + adapted["minutes"]]),
        "adapt_tokens_per_s": spread([adapted["tokens_per_second"]]),
        "seeds": sorted({row["seed"] for row in rows}),
        "commit": commit,
        "command": called(),
        "machine": machine(runs.values()),
    }
    for task in TASKS:
        own = [row for row in rows if row["name"] == task]
        measure = "cells" if task == "sudoku" else "accuracy"
        if own:
            summary[f"{task}_{measure}"] = spread([headline(row["test"]) for row in own])
            summary[f"{task}_minutes"] = spread([row["minutes"] for row in own])
            summary[f"{task}_seeds"] = sorted(row["seed"] for row in own)
        if task in base:
            summary[f"{task}_base"] = spread([headline(base[task])])
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_json(RESULTS / "summary.json", summary)
    for row in rows:
        row["commit"] = commit
    found = {"adapted": adapted, "base": base, "rows": rows, "unmeasured": unmeasured}
    write_json(RESULTS / "rows.json", found)
    read = inputs(run.config for run in runs.values())
    publish("language", RESULTS / "summary.json", [RESULTS / "summary.json", RESULTS / "rows.json"], read)


def headline(by_length: Mapping[str, Mapping[str, float]]) -> float:
    """Accuracy at the first length."""
    return next(iter(by_length.values()))["accuracy"]


STAGES = {
    "adapt": adapt_bases,
    "base": base_rows,
    "tune": tune,
    "all": whole_study,
    "job": job,
    "table": table,
}


def main() -> None:
    """Run one stage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    parser.add_argument("--data-dir", type=Path, help="folder with the benchmarks' data sets")
    parser.add_argument("--source", default="smollm2", help="what is adapted")
    parser.add_argument("--attention", nargs="+", default=["full"], choices=["full", "block"])
    parser.add_argument("--jobs", type=int, default=3, help="jobs side by side")
    parser.add_argument("--minutes", type=float, default=20.0, help="no job starts or continues after this")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        help="jobs (of base: tasks), with commas between",
    )
    parser.add_argument("--name", choices=[*JOBS, SUPERVISED], help="of one job")
    parser.add_argument("--seed", type=int, help="of one job")
    parser.add_argument("--commit", help="of table: the commit of a tree that was copied without its history")
    parser.add_argument("--smoke", action="store_true", help="a tiny size of everything, for a CPU")
    parser.add_argument("--warm", action="store_true", help="of adapt: a few steps, to compile the passes")
    options = parser.parse_args()
    STAGES[options.stage](options)


if __name__ == "__main__":
    main()
