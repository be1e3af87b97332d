"""The comparisons behind results/compare/: python benchmarks/compare.py --data-dir DATA --jobs 9.

The paper's methods on Sudoku and Countdown at equal tokens, each tuned by as many trials, some runs side
by side; then DTM and SPG on Sudoku at equal wall-clock, one run at a time, with the settings picked before.
The table of countdown-tokens has the accuracy on items that need × or ÷ beside that of the base. Bases are
pretrained unless --out holds them. Whatever has finished is kept. --smoke is all of it in miniature.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from dtm.cli import main as dtm
from study import publish

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
    for found in folder.glob("compare.*"):
        shutil.copy(found, results / f"{name}{found.suffix}")
    publish(f"compare/{name}", results / f"{name}.json", results.glob(f"{name}.*"))
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
    parser.add_argument("--trials", default="6", metavar="N", help="of each method (default: 6)")
    parser.add_argument("--jobs", default="9", metavar="J", help="runs side by side (default: 9)")
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().smoke:
        parser.set_defaults(**BRIEF)
    options = parser.parse_args()
    small, shape = (list(SMALL), SHAPE) if options.smoke else ([], [])
    if options.data_dir is not None:
        small += ["--task.data-dir", str(options.data_dir)]
    results = options.out / "results" if options.smoke else RESULTS
    common = ["--seeds", options.seeds, *small]
    tuned = ["--methods", options.methods, "--budget", options.tokens, "--jobs", options.jobs]
    tuned += ["--tune", "--trials", options.trials]
    folders = {}
    for recipe in ("sudoku-mini", "countdown-mini"):
        start = ["--model.base", base(recipe, options.out, [*small, *shape]), *common]
        name = f"{recipe.removesuffix('-mini')}-tokens"
        folders[recipe] = compare(name, recipe, options.out, results, *tuned, *start)
    clock = ["--methods", "c-dtm,spg", "--budget", options.seconds]
    clock += picked(folders["sudoku-mini"], ("c-dtm", "spg"))
    start = ["--model.base", base("sudoku-mini", options.out, [*small, *shape]), *common]
    compare("sudoku-seconds", "sudoku-mini", options.out, results, *clock, *start)


if __name__ == "__main__":
    main()
