"""Processor time of the same run at an older commit and now: python benchmarks/against.py COMMIT.

The run is `dtm train maze-small` with one phase of 120 steps on one thread. It is started from a checkout of
the commit and from this tree in turn, and the seconds of processor time of the whole process are compared:
other processes of the machine hardly change them. The default commit is the last one without support for
several processes; the result, results/against.json, shows what that support costs a run of one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dtm.writing import write_json
from study import provenance, publish

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "against.json"
ONE_PROCESS = "1e0791c~1"
"""The last commit at which `dtm` refuses a second process."""
RUN = (
    *("train", "maze-small", "--tilt.max-steps", "120", "--tilt.step", "2", "--tilt.final", "2"),
    *("--tilt.absorbed", "never", "--evaluation.prompts", "16"),
)
SMOKE = ("--tilt.max-steps", "2", "--replay.prompts", "2", "--optimizer.batch", "8")


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check a commit out in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), commit], check=True, capture_output=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def processor_seconds(tree: Path, flags: tuple[str, ...]) -> float:
    """Run once with the code of a tree, on one thread, and return its processor time."""
    with tempfile.TemporaryDirectory() as scratch:
        run = subprocess.Popen(
            [sys.executable, "-m", "dtm", *RUN, *flags, "--out", f"{scratch}/run"],
            cwd=scratch,
            env=os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(run.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 3):  # 3: nothing learnt
        raise SystemExit(f"{tree}: the run ended with {os.waitstatus_to_exitcode(status)}; see above")
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run both in turn, and write their times and the median of the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", nargs="?", default=ONE_PROCESS)
    parser.add_argument("--pairs", type=int, default=5, help="runs of each")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    made, flags = provenance(None), SMOKE if options.smoke else ()
    before, now = list[float](), list[float]()
    with checkout(options.commit) as old:
        for pair in range(options.pairs):
            sides = [(before, old), (now, ROOT)]
            for seconds, tree in sides if pair % 2 == 0 else reversed(sides):
                seconds.append(processor_seconds(tree, flags))
            print(f"{before[-1]:.1f} s before, {now[-1]:.1f} s now", flush=True)
    ratios = [later / earlier for earlier, later in zip(before, now, strict=True)]
    write_json(
        options.out,
        {
            "against": options.commit,
            "before_seconds": before,
            "now_seconds": now,
            "ratio": {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)},
            **made,
        },
    )
    if options.out.resolve() == RESULTS:
        publish("against", RESULTS, [RESULTS], {})


if __name__ == "__main__":
    main()
