"""The comparisons behind results/compare/.

    python benchmarks/compare.py --data-dir DATA --jobs 9      # one GPU
    python benchmarks/compare.py --data-dir DATA --laptop      # two CPU cores, half an hour
    python benchmarks/compare.py --data-dir DATA --laptop --newer    # two to three hours

On a GPU: the paper's methods on Sudoku and Countdown at equal tokens, each tuned by as many trials, several
runs in parallel; then DTM and SPG on Sudoku at equal wall-clock, one run at a time, with the settings
picked before. On Sudoku c-DTM has short phases; the published results of sudoku-tokens are older than that.
Countdown's table has the accuracy on items that need × or ÷ beside that of the base.

On a laptop: c-DTM, SPG and VRPO on Sudoku at equal tokens, without trials, from a base of 0.2M parameters.
With --newer: these, wd1 and the methods that are newer than the paper, from this base at half of the tokens,
each tuned by as many trials, beside the base steered by the reward.

Bases are pretrained unless --out holds them. Finished runs are kept. --smoke runs everything in miniature.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from dtm.cli import main as dtm
from dtm.runs.folder import RunFolder
from study import inputs, publish

RESULTS = Path(__file__).parents[1] / "results" / "compare"
METHODS = "c-dtm,spg,wd1,diffu-grpo,unigrpo,gdpo,vrpo"
SHAPE = shlex.split("--model.width 32 --model.layers 1 --model.heads 2 --model.ffn 48")
"""The base of a run that checks the study itself."""
SMALL = shlex.split("""
    --device cpu
    --pretrain.steps 40 --pretrain.batch 32 --pretrain.held-out 16
    --replay.prompts 8 --replay.completions 4 --optimizer.batch 16 --tilt.max-steps 4
    --evaluation.prompts 8 --evaluation.completions 2
""")
"""The other fields of such a run."""
LAPTOP = shlex.split("""
    --model.width 64 --model.layers 4 --model.ffn 176
    --pretrain.steps 2500 --pretrain.batch 256 --pretrain.lr 3e-3
""")
"""The base of the comparison on a laptop."""
ROOM = shlex.split("""
    --replay.prompts 64 --optimizer.batch 256
    --set c-dtm.tilt.max-steps=30 --set c-dtm.tilt.absorbed=never
""")
"""Phases of 1.4 million tokens: 12 million have room for eight. A phase of the recipe takes up to 7.6."""
ON_LAPTOP = {"methods": "c-dtm,spg,vrpo", "trials": "0", "jobs": "2"}
"""What the comparison on a laptop runs unless it is told otherwise: no trials, every method as it is."""
NEWER = {
    "methods": "c-dtm,spg,vrpo,wd1,gdsd,dmpo,espo,just-grpo,agrpo,d2",
    "tokens": "6e6tokens",
    "trials": "6",
    "jobs": "2",
    "also": "best-of-16,smc-16",
}
"""What --newer runs unless it is told otherwise."""
BRIEFLY = ("--evaluation.completions", "2")
"""Of sixty runs at this size, evaluations with eight completions would take most of the time."""
BRIEF = {
    "methods": "c-dtm,spg",
    "tokens": "2e3tokens",
    "seconds": "1s",
    "seeds": "1",
    "trials": "2",
    "jobs": "2",
}
"""What such a check runs unless it is told otherwise."""


def call(*arguments: str) -> None:
    """A command of the command line; what it cannot do ends the study."""
    print("dtm", *arguments, flush=True)
    if dtm(arguments):
        raise SystemExit(1)


def base(recipe: str, out: Path, small: Sequence[str]) -> str:
    """The pretrained base of a recipe, made if it is not there."""
    folder = out / f"{recipe}-base"
    if not (folder / "summary.json").is_file():
        resume = ["--resume"] if any(folder.glob("checkpoints/step-*")) else [*small]
        call("pretrain", recipe, "--out", str(folder), *resume)
    return str(folder / "model")


def compare(name: str, recipe: str, out: Path, results: Path, *arguments: str) -> Path:
    """One comparison; its table, figure and rows are copied to the results."""
    folder = out / name
    call("compare", recipe, "--out", str(folder), *arguments)
    results.mkdir(parents=True, exist_ok=True)
    copies = {folder / f"compare.{kind}": results / f"{name}.{kind}" for kind in ("json", "md", "png")}
    copies[folder / "diversity.png"] = results / f"{name}-diversity.png"
    for made, copy in copies.items():
        shutil.copy(made, copy)
    runs = [RunFolder(path.parent) for path in folder.rglob("config.yaml")]
    read = inputs(run.read_config() for run in runs)
    publish(f"compare/{name}", results / f"{name}.json", copies.values(), read)
    return folder


def picked(folder: Path, names: Sequence[str]) -> list[str]:
    """The settings that a tuned comparison picked, as flags."""
    trials = json.loads((folder / "compare.json").read_text(encoding="utf-8"))["tuning"]
    chosen = [trial for trial in trials if trial["picked"] and trial["method"] in names]
    fields = [(trial["method"], *change) for trial in chosen for change in trial["changed"].items()]
    return [part for name, field, value in fields for part in ("--set", f"{name}.{field}={value}")]


def main() -> None:
    """Run what is missing, then copy the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("runs/compare"), metavar="DIR", help="folder of the runs"
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="DATA", help="folder of the published test sets (default: our own)"
    )
    parser.add_argument("--methods", default=METHODS, metavar="A,B,…", help="default: the paper's")
    parser.add_argument(
        "--tokens", default="1.2e7tokens", metavar="B", help="budget of a run (default: 1.2e7tokens)"
    )
    parser.add_argument("--seconds", default="20s", metavar="B", help="of the wall-clock runs (default: 20s)")
    parser.add_argument("--seeds", default="3", metavar="N", help="default: 3")
    parser.add_argument("--trials", default="6", metavar="N", help="of each method (default: 6; 0: none)")
    parser.add_argument("--jobs", default="9", metavar="J", help="runs side by side (default: 9)")
    parser.add_argument("--laptop", action="store_true", help="the comparison for two CPU cores alone")
    parser.add_argument(
        "--newer",
        action="store_true",
        help="with --laptop: more methods, those newer than the paper included",
    )
    parser.add_argument("--also", metavar="A,B,…", help="of --newer: best-of-N, smc-N")
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.laptop:
        parser.set_defaults(**NEWER if asked.newer else ON_LAPTOP)
    if asked.smoke:
        parser.set_defaults(**BRIEF)
    if asked.newer and not asked.laptop:
        parser.error("--newer goes with --laptop")
    if asked.also is not None and not asked.newer:
        parser.error("--also goes with --newer")
    options = parser.parse_args()
    results = options.out / "results" if options.smoke else RESULTS
    common = list(SMALL) if options.smoke else ["--device", "cpu"] if options.laptop else []
    if options.data_dir is not None:
        common += ["--task.data-dir", str(options.data_dir)]
    shape = SHAPE if options.smoke else LAPTOP if options.laptop else []

    def tokens(recipe: str, suffix: str, *changes: str) -> Path:
        """A comparison at equal tokens, tuned if there are trials."""
        asked = ["--methods", options.methods, "--budget", options.tokens, "--jobs", options.jobs]
        asked += ["--seeds", options.seeds, *changes]
        asked += ["--tune", "--trials", options.trials] if options.trials != "0" else []
        asked += ["--model.base", base(recipe, options.out, [*common, *shape]), *common]
        return compare(f"{recipe.removesuffix('-mini')}-{suffix}", recipe, options.out, results, *asked)

    if options.laptop:
        more = [*BRIEFLY, "--also", options.also] if options.newer else []
        tokens("sudoku-mini", "newer" if options.newer else "laptop", *ROOM, *more)
        return
    tuned = tokens("sudoku-mini", "tokens", *ROOM)
    tokens("countdown-mini", "tokens")
    clock = ["--methods", "c-dtm,spg", "--budget", options.seconds, "--seeds", options.seeds, *ROOM]
    clock += picked(tuned, ("c-dtm", "spg"))
    clock += ["--model.base", base("sudoku-mini", options.out, [*common, *shape]), *common]
    compare("sudoku-seconds", "sudoku-mini", options.out, results, *clock)


if __name__ == "__main__":
    main()
