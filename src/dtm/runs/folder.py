"""A run's folder: its files, and how to find a run again.

config.yaml       the resolved configuration
environment.json  versions, machine, commit, and the configuration at the start
fingerprint.json  hashes of all that determines the result, except the method
metrics.jsonl     one object per event
samples/          completions with rewards, from each evaluation
checkpoints/      step-N, complete or absent
figures/          the task's picture of the samples
report.html       the page of the run, made from the same files
model/            the tuned model, with a card
summary.json      base, tuned and best possible
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtm.config import RunConfig
from dtm.config.adapt import AdaptConfig
from dtm.config.legacy import is_legacy
from dtm.config.serialise import leaves, load_yaml, read_mapping, to_yaml
from dtm.errors import CheckpointError, ConfigError, nearest, require
from dtm.files import read_json
from dtm.runs.environment import environment
from dtm.runs.lock import LOCK
from dtm.writing import write_json, write_text

RUNS = Path("runs")
ENVIRONMENT = "environment.json"
PAGE = "report.html"
STARTING = {LOCK, f".{ENVIRONMENT}.partial", ENVIRONMENT, ".config.yaml.partial"}
"""Files that may remain from a start that was killed before the run existed."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @classmethod
    def create(cls, config: RunConfig | AdaptConfig, kind: str, out: str | Path | None) -> RunFolder:
        """Make a folder, by default ``runs/RECIPE-KIND-TIME``, and write the resolved configuration."""
        path = new_path(config.recipe, kind, out)
        require_new(path)
        folder = cls(make_folder(path))
        started = {"kind": kind, **environment(), "config": leaves(config)}
        write_json(path / ENVIRONMENT, started)
        write_text(folder.config, to_yaml(config))  # written last: it makes the folder a run
        return folder

    @classmethod
    def find(cls, path: Path) -> RunFolder:
        """Find an existing run; the error of a wrong path lists the existing runs."""
        if not (path / "config.yaml").is_file():
            here = [str(p.parent) for p in path.parent.glob("*/config.yaml")]
            here += [str(p.parent) for p in RUNS.glob("*/config.yaml")]
            known = nearest(str(path), set(here)) if here else "There are no runs here yet."
            raise CheckpointError(f"no run in {path}. {known}")
        return cls(path)

    @classmethod
    def latest(cls, recipe: str, kind: str) -> RunFolder:
        """Find the newest unfinished run of a recipe in ``runs/``, else the newest finished one."""
        found = cls._all(recipe, kind)
        require(
            bool(found),
            f"no earlier run of {recipe!r} under {RUNS}/ to resume; name its folder with --out, "
            "or leave --resume out to start one",
            CheckpointError,
        )
        return max(found, key=lambda one: (not one.is_finished, one.config.stat().st_mtime))

    @classmethod
    def pretrained(cls, recipe: str) -> RunFolder | None:
        """The newest finished pretraining of a recipe under ``runs/``, if there is one."""
        return cls._newest(recipe, "pretrain")

    @classmethod
    def adapted(cls, source: str) -> RunFolder | None:
        """The newest finished adaptation of a source under ``runs/``, if there is one."""
        return cls._newest(source, "adapt")

    @classmethod
    def _newest(cls, recipe: str, kind: str) -> RunFolder | None:
        finished = [folder for folder in cls._all(recipe, kind) if folder.is_finished]
        return max(finished, key=lambda folder: folder.summary.stat().st_mtime, default=None)

    @classmethod
    def _all(cls, recipe: str, kind: str) -> list[RunFolder]:
        """The runs of a recipe and a command under ``runs/``."""
        found = [cls(path.parent) for path in RUNS.glob("*/config.yaml")]
        return [folder for folder in found if folder.kind == kind and folder.recipe == recipe]

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """File with command and machine of the start (see `started`)."""
        return self.path / ENVIRONMENT

    @property
    def metrics(self) -> Path:
        """File with every event of the run."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints, which `--resume` reads."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Folder of the finished model."""
        return self.path / "model"

    @property
    def samples(self) -> Path:
        """Completions with rewards, one file for each evaluation."""
        return self.path / "samples"

    @property
    def figures(self) -> Path:
        """The task's picture of the samples, as PNG."""
        return self.path / "figures"

    @property
    def page(self) -> Path:
        """Curves, samples and the denoising movie as one HTML file."""
        return self.path / PAGE

    @property
    def summary(self) -> Path:
        """Base, tuned and best possible."""
        return self.path / "summary.json"

    @property
    def is_finished(self) -> bool:
        """False for a run that was stopped (or is still going)."""
        return self.summary.is_file()

    @property
    def fingerprint(self) -> Path:
        """File with the fingerprint: all that determines the result, except the method."""
        return self.path / "fingerprint.json"

    @property
    def started(self) -> dict[str, Any]:
        """Command, versions, machine and configuration of the start; empty if the file is missing."""
        return read_object(self.environment) if self.environment.exists() else {}

    @property
    def kind(self) -> str:
        """The command that started the run; for old runs, from the folder's name."""
        try:
            return str(self.started["kind"])
        except (CheckpointError, KeyError):
            return "pretrain" if "-pretrain-" in self.path.name else "train"

    @property
    def recipe(self) -> str | None:
        """The recipe's name; None if the configuration cannot be read."""
        try:
            return str(read_mapping(self.config)["recipe"])
        except (ConfigError, KeyError):
            return None

    def finished(self, path: Path) -> Path:
        """Return ``path``; raise an error if the run has not finished."""
        require(
            path.exists(),
            f"{self.path} has not finished: it has no {path.name}. "
            f"Continue it with the command that started it and --resume --out {shlex.quote(str(self.path))}.",
            CheckpointError,
        )
        return path

    def require_resumable(self) -> None:
        """Raise an error for a run of release 0.1, whose checkpoints and noise differ."""
        require(
            not is_legacy(read_mapping(self.config)),
            f"{self.path} was started by dtm 0.1 and cannot be resumed by this release. A finished run can "
            "still be sampled, evaluated and exported. To finish this one, install dtm 0.1, or start again.",
            CheckpointError,
        )

    def read_config(self) -> RunConfig:
        """Read the configuration of the run's start, or of its latest continuation."""
        require(
            self.kind != "adapt",
            f"{self.path} is an adaptation, which tunes nothing: there is no run to show or to export. "
            f"Use its model, {self.model}, with `dtm train --model.base`, `dtm sample` or `dtm eval`",
        )
        require(
            "recipe" in read_mapping(self.config),
            f"{self.config} is damaged: it has no recipe. Restore it; environment.json has every setting.",
            CheckpointError,
        )
        return load_yaml(self.config, RunConfig())


def require_new(path: Path) -> None:
    """Raise an error for a folder that holds a run or other files, or that cannot be made; do not make it."""
    require(
        not (path / "config.yaml").exists(),
        f"{path} already holds a run. Continue it with --resume, or choose another folder with --out.",
        CheckpointError,
    )
    found = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    require(
        found <= STARTING,
        f"{path} exists and holds no run: it is not empty. Choose another folder with --out.",
        CheckpointError,
    )
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    require(
        there.is_dir() and os.access(there, os.W_OK),
        f"no folder can be made at {path}: {there} is "
        f"{'not writable' if there.is_dir() else 'a file'}. Choose another place",
    )


def require_parent(path: Path) -> None:
    """Raise an error if the parent folder for several runs is itself a run or a model."""
    found = [name for name in ("config.yaml", "config.json", "adapter_config.json") if (path / name).exists()]
    require(
        not found,
        f"{path} is a run or a model (it has {', '.join(found)}): choose another folder with --out",
        CheckpointError,
    )


def make_folder(path: Path) -> Path:
    """Make the folder and its parents, and check that it is writable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigError(
            f"no folder can be made at {path}: {problem.strerror}. Choose another place"
        ) from None
    require(os.access(path, os.W_OK), f"{path} is not writable. Choose another place")
    return path


def kept_json(path: Path, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the value of ``make()``, computed once and then read back from the file."""
    if not path.is_file():
        write_json(path, make())
    return read_object(path)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object that a run has written; a damaged file is an error with a remedy."""
    with reading(path):
        found = read_json(path, CheckpointError)
        if not isinstance(found, dict):
            raise TypeError("not a JSON object")
    return found


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context for reading a run's file: errors about its contents name the file and the remedy."""
    remedy = "Restore it, or delete it and continue the run with --resume."
    try:
        yield
    except CheckpointError as problem:
        if remedy in str(problem):
            raise
        raise CheckpointError(f"{problem}. {remedy}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        reason = f"it has no {problem}" if isinstance(problem, KeyError) else problem
        raise CheckpointError(f"{path} is damaged: {reason}. {remedy}") from None


def new_path(recipe: str, kind: str, out: str | Path | None) -> Path:
    """Return the folder of a new run: ``out``, or ``runs/RECIPE-KIND-TIME``."""
    return Path(out) if out else unused(RUNS / f"{recipe}-{kind}-{time.strftime('%Y%m%d-%H%M%S')}")


def unused(path: Path) -> Path:
    """Return ``path``, or the first of path-2, path-3, … that does not exist."""
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
