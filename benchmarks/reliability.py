"""Measure reliability, one command for each part; the results fill docs/reliability.md.

    python benchmarks/reliability.py kills      # kill -9 of five commands, half an hour
    python benchmarks/reliability.py faults     # damaged files, full disks, bad rewards, ten minutes
    python benchmarks/reliability.py inputs     # damaged models, settings, data and flags, ten minutes
    python benchmarks/reliability.py soak --minutes 60
    python benchmarks/reliability.py fuzz       # parsers of answers on random texts
    python benchmarks/reliability.py mutations  # benchmarks/mutate.py, half an hour
    python benchmarks/reliability.py pages      # writes the tables of README.md and docs/

Sizes are tiny and all runs are on one CPU thread. Each part writes results/reliability/PART.json and an entry
in the manifest. Linux is needed for the disks of `faults`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtm.runs.environment import environment
from dtm.writing import write_json
from pages import PAGES, fill
from study import called, publish

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "reliability"


def kills(options: argparse.Namespace) -> dict[str, Any]:
    """Kill −9 at random moments."""
    from reliability_kills import campaigns, run

    with _world() as world:
        return {each.name: run(each, world, options.seed) for each in campaigns(world, options.scale)}


def faults(options: argparse.Namespace) -> dict[str, Any]:
    """Inject faults."""
    from reliability_faults import run

    with _world() as world:
        return run(world, options.seed)


def inputs(options: argparse.Namespace) -> dict[str, Any]:
    """Try bad inputs."""
    from reliability_inputs import run

    with _world() as world:
        return run(world, options.seed, options.scale)


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Train for long and watch."""
    from reliability_soak import run

    with _world() as world:
        return run(world, options.minutes)


def fuzz(options: argparse.Namespace) -> dict[str, Any]:
    """Read random texts with every parser and reward."""
    from fuzz_parsers import run

    return run(round(options.scale * 20_000), options.seed)


def mutations(options: argparse.Namespace) -> dict[str, Any]:
    """Mutate the source and run the tests, in a process that has not imported the package."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutations.json"
        # It exits with 1 where a mutation survived, and writes nothing if the tests fail without one.
        subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / "mutate.py"), "--out", str(path)], check=False
        )
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    part.__name__: part for part in (kills, faults, inputs, soak, fuzz, mutations)
}


class _world:
    """A temporary folder with a small world; a context."""

    def __enter__(self) -> Any:
        from reliability_world import World

        self.folder = tempfile.TemporaryDirectory()
        return World.make(Path(self.folder.name).resolve())

    def __exit__(self, *_: object) -> None:
        self.folder.cleanup()


def main() -> None:
    """Run one part and write its results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=[*PARTS, "pages"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer attempts than usual")
    parser.add_argument("--minutes", type=float, default=60.0, help="of the soak")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    if options.part == "pages":
        for page in PAGES:
            fill(ROOT / page, ROOT / "results")
        return
    begin, made = time.perf_counter(), environment()
    found = PARTS[options.part](options)
    head = {
        "command": called(),
        "commit": made["commit"],
        "machine": {key: made[key] for key in ("processor", "platform", "python", "torch")},
        "seeds": [options.seed],
        "minutes": round((time.perf_counter() - begin) / 60, 1),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.part}.json"
    write_json(path, {**head, "found": found})
    if options.out == RESULTS:
        publish(f"reliability/{options.part}", path, [path], {})


if __name__ == "__main__":
    main()
