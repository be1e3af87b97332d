"""The maze study behind results/maze/: python benchmarks/maze.py --jobs 3.

Pretrains two bases, a good one (recipe maze) and a weak one as in the paper (recipe maze-paper); tilts them
in every setting below with three seeds; measures base and tuned models on test pairs; and writes JSON,
figures and a table. Whatever has finished is kept, so a study that was stopped goes on where it was.
--smoke runs all of it in miniature on any machine.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import dtm
from dtm import api, tilts
from dtm.comparison.jobs import over_seeds, run_all
from dtm.comparison.sweep import spread
from dtm.config import EvaluationConfig, MazeConfig, RunConfig
from dtm.config.serialise import update
from dtm.evaluation.evaluate import Evaluation
from dtm.loop.assemble import assemble
from dtm.loop.assembly import Assembly
from dtm.models.storage import load_model
from dtm.report.figures import comparison_figure
from dtm.runs.folder import kept_json
from dtm.tasks.maze import MazeTask
from dtm.tasks.maze.figure import density_figure
from dtm.writing import write_json
from study import (
    called,
    commits,
    curve,
    finite,
    in_rounds,
    inputs,
    machine,
    made_at,
    pretraining,
    publish,
    slug,
)

RESULTS = Path(__file__).parents[1] / "results" / "maze"
SEEDS = (0, 1, 2)
A, ROUND, ROUNDS = 15.0, 100, 6
"""Every ablation anneals to this tilt, with as many rounds of fresh rollouts and updates as any other."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: on test pairs, for the densities of a few, and to weigh the base's rollouts."""

    test: EvaluationConfig
    pictures: EvaluationConfig
    base: EvaluationConfig


FULL = Sizes(
    test=EvaluationConfig(split="test", prompts=512, completions=8),
    pictures=EvaluationConfig(split="test", prompts=4, completions=128),
    base=EvaluationConfig(split="test", prompts=512, completions=32),
)
SMOKE = Sizes(
    test=EvaluationConfig(split="test", prompts=4, completions=2),
    pictures=EvaluationConfig(split="test", prompts=2, completions=2),
    base=EvaluationConfig(split="test", prompts=4, completions=4),
)


# ── what is run ──────────────────────────────────────────────────────────────────────────────────


def bases(smoke: bool) -> dict[str, RunConfig]:
    """The two pretrainings."""
    return {name: _small(dtm.recipe(name)) if smoke else dtm.recipe(name) for name in ("maze", "maze-paper")}


def settings(folders: Mapping[str, Path], smoke: bool) -> dict[str, RunConfig]:
    """Every setting by name; the first is the default recipe."""
    good, weak = (
        replace(dtm.recipe(name), model=replace(dtm.recipe(name).model, base=str(folders[name])))
        for name in ("maze", "maze-paper")
    )
    brisk = replace(  # faster to decode, and a learning rate that suits few updates
        good,
        decoding=replace(good.decoding, certainty=0.999),
        optimizer=replace(good.optimizer, lr=2e-4),
    )
    chosen = {"default": good}
    for h in (2.5, 7.5):
        for control in ("zero", "one", "adaptive"):
            chosen[f"c {control}, h {h:g}"] = _ablation(brisk, control, h)
    for control, h in (("one", 2.5), ("zero", 2.5), ("one", 7.5)):
        chosen[f"paper: c {control}, h {h:g}"] = _ablation(weak, control, h)
    chosen["paper base in blocks of 8: c adaptive, h 5"] = _ablation(
        replace(brisk, model=weak.model), "adaptive", 5.0
    )
    return {name: _small(config) for name, config in chosen.items()} if smoke else chosen


def _ablation(config: RunConfig, control: str, h: float) -> RunConfig:
    """A = 15 by steps of h, at equal training: a round is a fresh buffer and 100 updates, six in all.

    Updates have 384 rows, so that all of it fits into the minutes that one can spend.
    """
    changes = {"method": {"control_variate": control, "guard": control == "adaptive"}}
    rounds = in_rounds(config, h, A, updates=ROUND, rounds=ROUNDS, prompts=320, completions=8)
    return replace(
        update(rounds, changes, control),
        optimizer=replace(config.optimizer, batch=384),
        evaluation=EvaluationConfig(prompts=256, completions=4),
    )


def _small(config: RunConfig) -> RunConfig:
    """The same in miniature, to check the study itself."""
    task, step = config.task, config.tilt.step
    assert isinstance(task, MazeConfig)
    assert step != "auto"
    return replace(
        config,
        device="cpu",
        task=replace(task, size=7, completion_length=12),
        model=replace(config.model, width=64, layers=2, heads=2, ffn=96),
        tilt=replace(config.tilt, final=2 * step, max_steps=2),
        replay=replace(config.replay, prompts=4, completions=2),
        optimizer=replace(config.optimizer, batch=8),
        evaluation=EvaluationConfig(prompts=4, completions=2),
        pretrain=replace(config.pretrain, steps=800, batch=128, lr=5e-3, held_out=16),
    )


# ── what is measured ─────────────────────────────────────────────────────────────────────────────


def measure(assembly: Assembly, model: dtm.Denoiser, sizes: Sizes) -> dict[str, Any]:
    """Test measures of a model, and sampled paths of a few pairs."""
    tested = api.measure(assembly, model, sizes.test)
    drawn = api.measure(assembly, model, sizes.pictures)
    samples = [list(pair) for pair in zip(drawn.prompts, drawn.completions, strict=True)]
    return {**tested.measures, "best": tested.best, "samples": samples}


def measured_run(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """The measures of a finished run, kept in its folder."""
    run = dtm.Run.open(folder)
    return kept_json(
        folder / f"test-{sizes.test.prompts}.json", lambda: measure(run.assembly, run.model, sizes)
    )


def measured_base(config: RunConfig, sizes: Sizes) -> dict[str, Any]:
    """The same for a base under a configuration's decoder, and all its rewards for the effective tilt."""

    def fresh() -> dict[str, Any]:
        assembly, model = assemble(config), load_model(Path(str(config.model.base)))
        wide = api.measure(assembly, model, sizes.base)
        return {**measure(assembly, model, sizes), "rewards": wide.rewards, "groups": _groups(wide)}

    return kept_json(_base_file(config, sizes), fresh)


def _base_file(config: RunConfig, sizes: Sizes) -> Path:
    decoding = config.decoding
    setting = f"{decoding.order}-{decoding.block}-{decoding.certainty}-{sizes.test.prompts}"
    return Path(str(config.model.base)).parent / f"test-{setting}.json"


def measure_all(
    chosen: Mapping[str, RunConfig], runs: Mapping[str, dtm.Run], sizes: Sizes, jobs: int
) -> None:
    """Every base and every run, some side by side; what is measured is kept and read back later."""
    spawned = get_context("spawn")  # a process that has used the GPU must not be forked
    with ProcessPoolExecutor(jobs, mp_context=spawned) as pool:
        configs = {_base_file(config, sizes): config for config in chosen.values()}
        work = [pool.submit(measured_base, config, sizes) for config in configs.values()]
        work += [pool.submit(measured_run, run.path, sizes) for run in runs.values()]
        for done in work:
            done.result()


def _groups(evaluation: Evaluation) -> list[int]:
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(prompt, len(numbers)) for prompt in evaluation.prompts]


def best_of(base: Mapping[str, Any]) -> dict[str, float]:
    """The mean reward of the best of each pair's paths, named by their number."""
    rewards, groups = torch.tensor(base["rewards"]), torch.tensor(base["groups"])
    best = torch.full((int(groups.max()) + 1,), -torch.inf).scatter_reduce(0, groups, rewards, "amax")
    return {f"best_of_{len(rewards) // len(best)}": float(best.mean())}


def quantities(base: Mapping[str, Any], tuned: Mapping[str, Any], minutes: float) -> dict[str, float]:
    """What a row of the table says of one run."""
    rewards, groups = torch.tensor(base["rewards"]), torch.tensor(base["groups"])
    room = base["best"] - base["reward"]
    return {
        "gap_closed": (tuned["reward"] - base["reward"]) / room if room > 0 else math.nan,
        "reward": tuned["reward"],
        "valid": tuned["valid"],
        "coverage_ratio": tuned["coverage"] / base["coverage"] if base["coverage"] else math.nan,
        "effective_tilt": tilts.effective_tilt(rewards, groups, tuned["reward"]),
        "minutes": minutes,
    }


# ── what is written ──────────────────────────────────────────────────────────────────────────────


def write_results(
    out: Path,
    chosen: Mapping[str, RunConfig],
    runs: Mapping[str, dtm.Run],
    folders: Mapping[str, Path],
    sizes: Sizes,
    command: str,
) -> None:
    """summary.json, a JSON for every run, the figures and the table."""
    out.mkdir(parents=True, exist_ok=True)
    rows, curves = [], {}
    for name, config in chosen.items():
        base = measured_base(config, sizes)
        of_seeds = [runs[f"{name}-{seed}"] for seed in SEEDS]
        found = [quantities(base, measured_run(run.path, sizes), run.summary["minutes"]) for run in of_seeds]
        curves[name] = [curve(run) for run in of_seeds]
        rows.append(
            {
                "setting": name,
                "tilt": config.tilt.final,
                "base": {
                    **{key: base[key] for key in ("reward", "valid", "coverage", "best")},
                    **best_of(base),
                },
                **{key: finite(spread([row[key] for row in found])) for key in found[0]},
            }
        )
        for seed, run, row in zip(SEEDS, of_seeds, found, strict=True):
            told: dict[str, Any] = {"setting": name, "seed": seed, **finite(row)}
            told |= {"curve": curve(run), "environment": made_at(run)}
            write_json(out / f"{slug(name)}-{seed}.json", told)
    default = rows[0]
    write_json(
        out / "summary.json",
        {
            **{key: default[key] for key in ("gap_closed", "valid", "coverage_ratio", "minutes")},
            "effective_tilt": default["effective_tilt"],
            "seeds": list(SEEDS),
            "bases": {name: pretraining(folder) for name, folder in folders.items()},
            "test": {"prompts": sizes.test.prompts, "completions": sizes.test.completions},
            "rows": rows,
            "command": command,
            "commit": commits(runs.values()),
            "machine": machine(runs.values()),
        },
    )
    _write_figures(out, chosen, runs, curves, sizes)
    made = [out / f"{slug(name)}-{seed}.json" for name in chosen for seed in SEEDS]
    read = inputs(run.config for run in runs.values())
    publish("maze", out / "summary.json", [out / "summary.json", *made, *out.glob("*.png")], read)
    print(markdown(rows))


def _write_figures(
    out: Path,
    chosen: Mapping[str, RunConfig],
    runs: Mapping[str, dtm.Run],
    curves: Mapping[str, Sequence[Any]],
    sizes: Sizes,
) -> None:
    first = next(iter(chosen.values()))
    task = assemble(first).task
    assert isinstance(task, MazeTask)
    groups = {
        "default": ["default"],
        "good-base": [name for name in chosen if name.startswith("c ")],
        "paper-base": [name for name in chosen if name.startswith("paper")],
    }
    for figure, names in groups.items():
        best = curves[names[0]][0][0]["best"]
        drawn = comparison_figure({name: curves[name] for name in names}, best)
        drawn.savefig(out / f"{figure}.png", dpi=150)
        base = measured_base(chosen[names[0]], sizes)
        panels = [("base", base["samples"])]
        panels += [(name, measured_run(runs[f"{name}-{SEEDS[0]}"].path, sizes)["samples"]) for name in names]
        paths = [(name, task.valid_paths(samples)) for name, samples in panels]
        pairs = list(dict.fromkeys((tuple(p[0]), tuple(p[1])) for p, _ in base["samples"]))
        density_figure(task.maze, paths, pairs).savefig(out / f"{figure}-paths.png", dpi=150)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """One row for each setting; the range over seeds in brackets."""
    names = ("gap_closed", "reward", "valid", "coverage_ratio", "effective_tilt", "minutes")
    lines = [f"| setting | a | {' | '.join(n.replace('_', ' ') for n in names)} |", "|---|--:|" + "--:|" * 6]
    for row in rows:
        cells = [_cell(row[name], 1 if name in ("effective_tilt", "minutes") else 3) for name in names]
        lines.append(f"| {row['setting']} | {row['tilt']:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(value: Mapping[str, float | None], digits: int) -> str:
    mean, low, high = ("∞" if value[k] is None else f"{value[k]:.{digits}f}" for k in ("mean", "low", "high"))
    return f"{mean} ({low}–{high})"


def main() -> None:
    """Run what is missing, then write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("runs/maze"), metavar="DIR", help="folder of the runs"
    )
    parser.add_argument("--jobs", type=int, default=3, metavar="J", help="runs side by side (default: 3)")
    parser.add_argument("--only", metavar="TEXT", help="just the settings whose name begins with this text")
    parser.add_argument("--pretrain-only", action="store_true", help="stop after the two bases")
    parser.add_argument(
        "--bases",
        type=Path,
        metavar="DIR",
        help="folder of bases pretrained before; without, they are pretrained",
    )
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folders = {name: (options.bases or options.out) / name / "model" for name in bases(options.smoke)}
    chosen = settings(folders, options.smoke)
    wanted = {name: config for name, config in chosen.items() if name.startswith(options.only or "")}
    if not wanted:
        parser.error(f"--only: no setting begins with {options.only!r}; there are {', '.join(chosen)}")
    used = {setting.model.base for setting in wanted.values()}
    needed = {name: base for name, base in bases(options.smoke).items() if str(folders[name]) in used}
    if options.bases is None:  # one by one, or their minutes would mean nothing
        run_all(needed, options.out, jobs=1, verb="pretrain")
    if options.pretrain_only:
        return
    sizes, out = (SMOKE, options.out / "results") if options.smoke else (FULL, RESULTS)
    runs = run_all(over_seeds(wanted, SEEDS), options.out, options.jobs)
    measure_all(wanted, runs, sizes, options.jobs)
    if len(wanted) < len(chosen):
        print("no results yet: call it without --only to gather them")
        return
    write_results(out, chosen, runs, folders, sizes, called())


if __name__ == "__main__":
    main()
