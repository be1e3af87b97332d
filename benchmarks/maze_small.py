"""The numbers behind results/maze-small.json: python benchmarks/maze_small.py --out runs/maze-small.

Three seeds of the recipe, and the same with the control variates c = 1 and c = 0. The progress meter ends
the phases of all of them. A run lies in OUT/CONTROL-SEED; one that has finished is not repeated and one that
was stopped continues. On two cores, OMP_NUM_THREADS=1 and --jobs 2 take half the time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import dtm
from dtm import api
from dtm.comparison.jobs import run_all
from dtm.comparison.sweep import spread
from dtm.config import EvaluationConfig, configure_method
from dtm.config.serialise import update
from dtm.loop.assemble import assemble
from dtm.report.figures import annealing_figure
from dtm.writing import write_json
from study import curve, inputs, publish

RESULTS = Path(__file__).parents[1] / "results"
SEEDS = (0, 1, 2)
CONTROLS = {"adaptive": True, "one": False, "zero": False}
"""Control variates and whether the ratio guard is on; the first is the recipe's default."""
MEASURES = ("gap_closed", "valid_base", "valid_tuned", "coverage_ratio")
EVERY_TEST_PROMPT = EvaluationConfig(split="test", prompts=236, completions=16)
"""More than a run's own evaluation: each held-out pair of rooms once."""

Measures = dict[str, float]


def recipe(control: str, seed: int, smoke: bool) -> dtm.RunConfig:
    """The configuration of one run."""
    config = dtm.recipe("maze-small")
    changes = {"method": {"control_variate": control, "guard": CONTROLS[control]}}
    config = replace(update(config, changes, "maze-small"), seed=seed)
    if not smoke:
        return config
    return replace(
        config,
        tilt=replace(config.tilt, step=2.5, final=5.0, max_steps=5),
        replay=replace(config.replay, prompts=8, completions=4),
        optimizer=replace(config.optimizer, batch=16),
        evaluation=EvaluationConfig(prompts=8, completions=4),
    )


def measure(run: dtm.Run, setting: EvaluationConfig) -> dict[str, Measures]:
    """Base and tuned model on the larger test set, kept in the run's folder."""
    path = run.path / f"measures-{setting.prompts}x{setting.completions}.json"
    if not path.is_file():
        tuned = api.measure(run.assembly, run.model, setting)
        shared = replace(run.config, seed=0, method=configure_method("c-dtm"))  # what the base depends on
        write_json(path, {"base": measure_base(shared, setting), "tuned": tuned.measures, "best": tuned.best})
    measures: dict[str, Measures] = json.loads(path.read_text(encoding="utf-8"))
    return measures


@cache
def measure_base(config: dtm.RunConfig, setting: EvaluationConfig) -> Measures:
    """The base is the same for every run, so one process measures it once."""
    assembly = assemble(config)
    return api.measure(assembly, assembly.base, setting).measures


def quantities(measured: dict[str, Any]) -> Measures:
    """What the README quotes, from one run's measures."""
    base, tuned, best = measured["base"], measured["tuned"], measured["best"]
    return {
        "gap_closed": (tuned["reward"] - base["reward"]) / (best - base["reward"]),
        "valid_base": base["valid"],
        "valid_tuned": tuned["valid"],
        "coverage_ratio": tuned["coverage"] / base["coverage"],
        "reward": tuned["reward"],
    }


def spreads(rows: Sequence[Measures]) -> dict[str, Measures]:
    """Mean, lowest and highest over seeds, of every measure."""
    return {name: spread([row[name] for row in rows]) for name in rows[0]}


def markdown(comparison: Sequence[dict[str, Any]]) -> str:
    """One row for each control variate; the range over seeds in brackets."""
    names = (*MEASURES, "reward")
    lines = [
        f"| c | guard | {' | '.join(name.replace('_', ' ') for name in names)} |",
        "|---|---|" + "--:|" * 5,
    ]
    for row in comparison:
        cells = [f"{row[n]['mean']:.3f} ({row[n]['low']:.3f}–{row[n]['high']:.3f})" for n in names]
        lines.append(
            f"| {row['control_variate']} | {'on' if row['guard'] else 'off'} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def write_results(folder: Path, runs: dict[str, list[dtm.Run]], setting: EvaluationConfig) -> None:
    """The JSON, the two figures and the table."""
    measured = {control: [measure(run, setting) for run in of_seeds] for control, of_seeds in runs.items()}
    comparison = [
        {"control_variate": control, "guard": CONTROLS[control], **spreads([quantities(m) for m in rows])}
        for control, rows in measured.items()
    ]
    default, *_ = runs.values()
    made = [json.loads((run.path / "environment.json").read_text(encoding="utf-8")) for run in default]
    machine = {name: made[0][name] for name in ("processor", "platform", "threads", "gpu", "python", "torch")}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / "maze-small.json",
        {
            **{name: comparison[0][name] for name in MEASURES},
            "reward_base": measured["adaptive"][0]["base"]["reward"],
            "reward_best": measured["adaptive"][0]["best"],
            "seeds": [run.config.seed for run in default],
            "test": {"prompts": setting.prompts, "completions": setting.completions},
            "minutes": [run.summary["minutes"] for run in default],
            "commit": ", ".join(sorted({str(row["commit"]) for row in made})),
            "command": " ".join(["python", *sys.argv]),
            "machine": machine,
            "comparison": comparison,
        },
    )
    figure = annealing_figure(*(curve(run) for run in default), best=default[0].summary.get("best"))
    figure.savefig(folder / "maze-small.png", dpi=150)
    shutil.copy(default[0].folder.figures / "samples.png", folder / "maze-small-paths.png")
    names = ("maze-small.json", "maze-small.png", "maze-small-paths.png")
    read = inputs(run.config for of_seeds in runs.values() for run in of_seeds)
    publish("maze-small", folder / "maze-small.json", [folder / name for name in names], read)
    print(markdown(comparison))


def main() -> None:
    """Run what is missing, then write the results if nothing is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("runs/maze-small"), metavar="DIR", help="folder of the runs"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="runs side by side (default: 1)")
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    configs = {
        f"{control}-{seed}": recipe(control, seed, options.smoke) for control in CONTROLS for seed in SEEDS
    }
    done = run_all(configs, options.out, options.jobs)
    runs = {control: [done[f"{control}-{seed}"] for seed in SEEDS] for control in CONTROLS}
    setting = EvaluationConfig(split="test", prompts=8, completions=4) if options.smoke else EVERY_TEST_PROMPT
    write_results(options.out / "results" if options.smoke else RESULTS, runs, setting)


if __name__ == "__main__":
    main()
