"""Mutation testing: apply one small fault at a time, and check that a test fails.

`mutations.yaml` lists the faults by package: the text to replace, which must occur exactly once in its file,
the replacement, and the tests that should notice. Every fault is applied to a temporary copy of `src`; the
working tree is never edited. A fault that no test notices is a survivor.

    python benchmarks/mutate.py                              # all, about ten minutes on one core
    python benchmarks/mutate.py --only masking --out mutations.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

for name in ("torch._dynamo", "safetensors.torch", "scipy.stats", "matplotlib.backends.backend_agg", "tyro"):
    import_module(name)  # once for all runs of the tests: most of a short one is imports
ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
TABLE = Path(__file__).with_name("mutations.yaml")
TIMEOUT = 300.0
"""Seconds after which tests that do not end count as failed."""


class MutationError(Exception):
    """A mutation that does not apply, or tests that do not run."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A small fault, and the tests that should notice it."""

    package: str
    name: str
    file: str
    """Path below ``src/dtm``."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Arguments of pytest."""

    def apply(self, source: Path) -> str:
        """Write the fault into a copy of ``src``; return the original text of the file."""
        path = source / "dtm" / self.file
        text = path.read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != 1 or self.old == self.new:
            raise MutationError(f"{self.name}: {self.file} has {self.old!r} {found} times instead of once")
        self._write(path, text.replace(self.old, self.new))
        return text

    def revert(self, source: Path, text: str) -> None:
        """Put the original text back."""
        self._write(source / "dtm" / self.file, text)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        for cached in path.parent.glob(f"__pycache__/{path.stem}.*"):  # of one size and second, if unlucky
            cached.unlink()


def read_table(path: Path = TABLE) -> list[Mutation]:
    """All mutations, in the order of the file."""
    table = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [
        Mutation(package, row["name"], row["file"], row["old"], row["new"], tuple(row["tests"].split()))
        for package, rows in table.items()
        for row in rows
    ]


def passes(source: Path, tests: Iterable[str], limit: float = TIMEOUT) -> bool:
    """Whether tests pass against a copy of ``src``; tests that cannot be collected are an error.

    They run in a fork of this process, which has imported torch but not dtm.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        child = multiprocessing.get_context("fork").Process(target=_test, args=(source, [*tests], output))
        child.start()
        child.join(limit)
        if child.exitcode is None:
            child.kill()
            return False
        output.seek(0)
        if child.exitcode not in (0, 1):
            raise MutationError(f"{' '.join(tests)} did not run:\n{output.read()[-3000:]}")
    return child.exitcode == 0


def _test(source: Path, tests: list[str], output: IO[str]) -> None:
    """Run pytest and exit with its code."""
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(source)  # for the processes that tests start
    sys.path.insert(0, str(source))
    # A test must notice by itself: shapes are not checked, and the package is imported sooner.
    os.environ["JAXTYPING_DISABLE"] = "1"
    plain = ["-o", "addopts=", "-m", "not slow and not gpu", "-p", "no:cacheprovider"]
    sys.exit(int(pytest.main(["-x", "-q", *plain, *tests])))


def run(mutations: Iterable[Mutation]) -> dict[str, bool]:
    """Whether each mutation was killed, by name; an error if the tests fail without any."""
    chosen, killed = list(mutations), {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        every = dict.fromkeys(test for mutation in chosen for test in mutation.tests)
        if not passes(source, every, limit=20 * TIMEOUT):
            raise MutationError("the tests fail without a mutation")
        for number, mutation in enumerate(chosen, start=1):
            text = mutation.apply(source)
            killed[mutation.name] = not passes(source, mutation.tests)
            mutation.revert(source, text)
            verdict = "killed" if killed[mutation.name] else "SURVIVED"
            print(f"[{number}/{len(chosen)}] {mutation.package}: {mutation.name}: {verdict}", flush=True)
    return killed


def report(mutations: Iterable[Mutation], killed: Mapping[str, bool]) -> dict[str, Any]:
    """Counts and the share killed by package, and the survivors."""
    packages: dict[str, dict[str, Any]] = {}
    for mutation in mutations:
        row = packages.setdefault(mutation.package, {"mutations": 0, "killed": 0})
        row["mutations"] += 1
        row["killed"] += killed[mutation.name]
    for row in packages.values():
        row["share"] = round(row["killed"] / row["mutations"], 4)
    return {
        "mutations": len(killed),
        "killed": sum(killed.values()),
        "packages": packages,
        "survivors": [name for name, is_killed in killed.items() if not is_killed],
    }


def main() -> int:
    """Run the mutations and print what survived; exit with 1 if any did."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", default=[""], help="packages and names that contain one of these"
    )
    parser.add_argument("--out", type=Path, help="write the counts and the survivors as JSON")
    options = parser.parse_args()
    chosen = [m for m in read_table() if any(text in f"{m.package}: {m.name}" for text in options.only)]
    if not chosen:
        parser.error(f"no mutation contains {' or '.join(options.only)}")
    found = report(chosen, run(chosen))
    for package, row in found["packages"].items():
        print(f"{package:<12}{row['killed']:>4} of {row['mutations']:>3} killed  {row['share']:.1%}")
    print(f"{'all':<12}{found['killed']:>4} of {found['mutations']:>3} killed")
    for name in found["survivors"]:
        print(f"survived: {name}")
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 1 if found["survivors"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MutationError as problem:
        sys.exit(f"mutate: {problem}")
