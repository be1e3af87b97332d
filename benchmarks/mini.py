"""The study of sudoku-mini and countdown-mini: python benchmarks/mini.py --data-dir DATA --jobs 6.

Pretrains both bases, tilts each with three seeds, and measures base and tuned models on the published test
items: results/sudoku-mini.json and results/countdown-mini.json. Then the ablations, each a figure in the
folder beside: the step h at equal compute, masks in the decoder's blocks against any-order ones, control
variates, and the effective length over training. Whatever has finished is kept, so a study that was stopped
goes on where it was.

On one H200, measured beside other runs: four minutes for the bases, two for the six tuned runs, ten for the
42 runs of the ablations. --smoke runs all of it in miniature on any machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import dtm
from dtm import api
from dtm.api import Run
from dtm.comparison.jobs import over_seeds, run_all
from dtm.comparison.sweep import spread
from dtm.config import EvaluationConfig, MiniConfig, RunConfig
from dtm.config.serialise import update
from dtm.loop.assemble import assemble
from dtm.loop.assembly import Assembly
from dtm.models.storage import load_model
from dtm.report.figures import LENGTH, comparison_figure
from dtm.runs.folder import kept_json
from dtm.writing import write_json
from study import called, commits, curve, in_rounds, inputs, machine, pretraining, publish, slug

RESULTS = Path(__file__).parents[1] / "results"
TASKS = ("sudoku-mini", "countdown-mini")
SEEDS = (0, 1, 2)
A, ROUND, ROUNDS = 12.0, 40, 8
"""Every ablation anneals to this tilt in so many rounds, each of fresh rollouts and so many updates."""
TUNED = "tuned"
"""The setting of the recipe itself."""
REFERENCE = "h 3"
"""What the other ablations differ from in one thing."""

Runs = Sequence[Run]
"""One setting's runs, a seed each."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How models are measured on the test items."""

    sampled: EvaluationConfig
    """At temperature 1, as rollouts are drawn."""
    greedy: EvaluationConfig
    """At temperature 0, as the published protocols decode."""


FULL = Sizes(
    sampled=EvaluationConfig(split="test", prompts=256, completions=8, temperature=1.0),
    greedy=EvaluationConfig(split="test", prompts=256, completions=1, temperature=0.0),
)
SMOKE = Sizes(
    sampled=EvaluationConfig(split="test", prompts=16, completions=2, temperature=1.0),
    greedy=EvaluationConfig(split="test", prompts=16, completions=1, temperature=0.0),
)


# ── what is run ──────────────────────────────────────────────────────────────────────────────────


def bases(data_dir: Path | None, smoke: bool) -> dict[str, RunConfig]:
    """The pretraining of each task."""
    chosen = {}
    for name in TASKS:
        config = dtm.recipe(name)
        assert isinstance(config.task, MiniConfig)
        config = replace(
            config, task=replace(config.task, data_dir=None if data_dir is None else str(data_dir))
        )
        chosen[name] = _small(config) if smoke else config
    return chosen


def tuned(base: RunConfig, model: Path) -> RunConfig:
    """The recipe on its base. Runs this short are over before compilation pays."""
    return replace(base, model=replace(base.model, base=str(model)), compile="off")


def ablations(config: RunConfig, smoke: bool) -> dict[str, RunConfig]:
    """Every ablation by name."""
    chosen = {f"h {h:g}": _annealed(config, h) for h in (1.5, 3.0, 6.0, 12.0)}
    reference = chosen[REFERENCE]
    variants: dict[str, dict[str, Any]] = {
        "any-order masks": {"block": "any-order"},
        "c one": {"control_variate": "one", "guard": False},
        "c zero": {"control_variate": "zero", "guard": False},
    }
    for name, changes in variants.items():
        chosen[name] = update(reference, {"method": changes}, name)
    return {name: _small(setting) for name, setting in chosen.items()} if smoke else chosen


FIGURES = {
    "step": {f"h = {h:g}": f"h {h:g}" for h in (1.5, 3.0, 6.0, 12.0)},
    "interpolant": {"masks in the decoder's blocks": REFERENCE, "any-order masks": "any-order masks"},
    "control-variate": {"adaptive c, guard": REFERENCE, "c = 1": "c one", "c = 0": "c zero"},
}
"""Which ablations a figure compares, by the name that its legend gives them."""


def _annealed(config: RunConfig, h: float) -> RunConfig:
    """To A by steps of h, at equal training: rounds of fresh rollouts are shared out among the phases."""
    return replace(
        in_rounds(config, h, A, updates=ROUND, rounds=ROUNDS, prompts=128, completions=16),
        optimizer=replace(config.optimizer, batch=256),
        evaluation=replace(config.evaluation, completions=2),
    )


def _name(task: str, setting: str) -> str:
    return f"{task}-{slug(setting)}"


def _small(config: RunConfig) -> RunConfig:
    """The same in miniature, to check the study itself."""
    return replace(
        config,
        device="cpu",
        model=replace(config.model, width=64, layers=2, heads=2, ffn=128),
        tilt=replace(config.tilt, max_steps=2),
        replay=replace(config.replay, prompts=4, completions=2),
        optimizer=replace(config.optimizer, batch=8),
        evaluation=EvaluationConfig(prompts=8, completions=2),
        pretrain=replace(config.pretrain, steps=300, batch=128, lr=5e-3, held_out=16),
    )


# ── what is measured ─────────────────────────────────────────────────────────────────────────────


def measure(assembly: Assembly, model: dtm.Denoiser, sizes: Sizes) -> dict[str, Any]:
    """Test measures of a model at temperature 1, and under "greedy" at 0."""
    return {
        **api.measure(assembly, model, sizes.sampled).measures,
        "greedy": api.measure(assembly, model, sizes.greedy).measures,
    }


def measured_base(config: RunConfig, sizes: Sizes) -> dict[str, Any]:
    """The measures of a base, kept beside it."""
    folder = Path(str(config.model.base))
    return kept_json(
        folder.parent / _measures(sizes), lambda: measure(assemble(config), load_model(folder), sizes)
    )


def measured_run(run: Run, sizes: Sizes) -> dict[str, Any]:
    """The measures of a tuned model, kept in its run's folder."""
    return kept_json(run.path / _measures(sizes), lambda: measure(run.assembly, run.model, sizes))


def _measures(sizes: Sizes) -> str:
    return f"test-{sizes.sampled.prompts}x{sizes.sampled.completions}.json"


def measured(runs: Mapping[str, Runs], sizes: Sizes) -> dict[str, dict[str, Any]]:
    """For every setting the spread of its measures over the seeds."""
    return {name: spreads([measured_run(run, sizes) for run in of_seeds]) for name, of_seeds in runs.items()}


def spreads(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean, lowest and highest of every measure, of those under "greedy" too."""
    return {
        name: spreads([row[name] for row in rows])
        if isinstance(value, dict)
        else spread([row[name] for row in rows])
        for name, value in rows[0].items()
    }


# ── what is written ──────────────────────────────────────────────────────────────────────────────


def write_tuned(out: Path, task: str, runs: Mapping[str, Runs], sizes: Sizes, command: str) -> None:
    """TASK.json with the base against the recipe, and how accuracy and effective length went."""
    base = runs[TUNED][0].config
    found = {"base": spreads([measured_base(base, sizes)]), **measured(runs, sizes)}
    made, curves = pretraining(Path(str(base.model.base))), {"": [curve(run) for run in runs[TUNED]]}
    told = {**found, "pretraining": made, "curves": curves[""]}
    _write(out / f"{task}.json", told, runs, sizes, command)
    _draw(out / task / "tuned.png", comparison_figure(curves, curves[""][0][0]["best"]))
    _draw(out / task / "length.png", comparison_figure(curves, panels=LENGTH))
    drawn = [out / task / name for name in ("tuned.png", "length.png")]
    publish(task, out / f"{task}.json", [out / f"{task}.json", *drawn], _inputs(runs))
    print(markdown(task, found))


def write_ablations(out: Path, task: str, runs: Mapping[str, Runs], sizes: Sizes, command: str) -> None:
    """TASK/ablations.json and a figure for each comparison."""
    found = measured(runs, sizes)
    _write(out / task / "ablations.json", {"tilt": A, "settings": found}, runs, sizes, command)
    curves = {name: [curve(run) for run in of_seeds] for name, of_seeds in runs.items()}
    best = curves[REFERENCE][0][0]["best"]
    for figure, names in FIGURES.items():
        compared = {label: curves[name] for label, name in names.items()}
        _draw(out / task / f"{figure}.png", comparison_figure(compared, best))
    head, drawn = out / task / "ablations.json", [out / task / f"{figure}.png" for figure in FIGURES]
    publish(f"{task}/ablations", head, [head, *drawn], _inputs(runs))
    print(markdown(task, found))


def _write(
    path: Path, found: Mapping[str, Any], runs: Mapping[str, Runs], sizes: Sizes, command: str
) -> None:
    everything = [run for of_seeds in runs.values() for run in of_seeds]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            **found,
            "seeds": list(SEEDS),
            "test": {"prompts": sizes.sampled.prompts, "completions": sizes.sampled.completions},
            "minutes": spread([run.summary["minutes"] for run in everything]),
            "command": command,
            "commit": commits(everything),
            "machine": machine(everything),
        },
    )


def _inputs(runs: Mapping[str, Runs]) -> dict[str, str]:
    return inputs(run.config for of_seeds in runs.values() for run in of_seeds)


def _draw(path: Path, figure: Figure) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def markdown(task: str, settings: Mapping[str, Mapping[str, Any]]) -> str:
    """One row for each setting; the range over seeds in brackets."""
    first = next(iter(settings.values()))
    names = [name for name in ("accuracy", "solved", "accuracy_mul_div", "reward", "length") if name in first]
    lines = [f"| {task} | {' | '.join(n.replace('_', ' ') for n in names)} | greedy accuracy |"]
    lines.append("|---|" + "--:|" * (len(names) + 1))
    for setting, row in settings.items():
        cells = [row[name] for name in names] + [row["greedy"]["accuracy"]]
        shown = [f"{cell['mean']:.3f} ({cell['low']:.3f}–{cell['high']:.3f})" for cell in cells]
        lines.append(f"| {setting} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="published data sets; without, the test is generated"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/mini"), metavar="DIR", help="folder of the runs"
    )
    parser.add_argument("--jobs", type=int, default=6, metavar="J", help="runs side by side (default: 6)")
    parser.add_argument("--only", metavar="TEXT", default="", help="just the runs whose name holds this text")
    parser.add_argument("--pretrain-only", action="store_true", help="stop after the two bases")
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    pretrained = run_all(bases(options.data_dir, options.smoke), options.out, options.jobs, verb="pretrain")
    if options.pretrain_only:
        return
    recipes = {task: tuned(run.config, run.folder.model) for task, run in pretrained.items()}
    sizes, out = (SMOKE, options.out / "results") if options.smoke else (FULL, RESULTS)
    command = called()
    halves = (
        ({task: {TUNED: config} for task, config in recipes.items()}, write_tuned),
        ({task: ablations(config, options.smoke) for task, config in recipes.items()}, write_ablations),
    )
    names = [_name(task, name) for settings, _ in halves for task in TASKS for name in settings[task]]
    if not any(options.only in name for name in names):
        parser.error(f"--only: no name holds {options.only!r}; there are {', '.join(names)}")
    for settings, write in halves:
        configs = {_name(task, name): config for task in TASKS for name, config in settings[task].items()}
        wanted = {name: config for name, config in configs.items() if options.only in name}
        runs = run_all(over_seeds(wanted, SEEDS), options.out, options.jobs)
        if len(wanted) < len(configs):
            print(f"{len(configs) - len(wanted)} settings left out: call it without --only for the results")
            continue
        for task, chosen in settings.items():
            of_task = {name: [runs[f"{_name(task, name)}-{seed}"] for seed in SEEDS] for name in chosen}
            write(out, task, of_task, sizes, command)


if __name__ == "__main__":
    main()
