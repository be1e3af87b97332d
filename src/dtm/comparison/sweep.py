"""Many runs, some side by side: each is a process of its own, in a folder of its own.

A sweep can be stopped and started again at any time: runs that have finished are kept, runs that were
stopped continue. Several small models share one GPU well, because each leaves it idle between kernels.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from rich.table import Table

from dtm.api import Run
from dtm.config import RunConfig
from dtm.config.serialise import obstacles, to_yaml
from dtm.errors import CheckpointError, DtmError, require
from dtm.loop.policies import check_settings
from dtm.recipes import RECIPES
from dtm.runs.bases import find_base, no_base
from dtm.runs.checkpoint import has_checkpoint
from dtm.runs.folder import RunFolder, write_text
from dtm.runs.interrupts import Interrupted, Interrupts

Say = Callable[[str], None]
Verb = Literal["train", "pretrain"]
POLL = 0.2
"""Seconds between polls of the running processes."""


def over_seeds(settings: Mapping[str, RunConfig], seeds: Sequence[int]) -> dict[str, RunConfig]:
    """``NAME-SEED`` for every setting and seed, seeds outermost: the first results cover all settings."""
    return {
        f"{name}-{seed}": replace(config, seed=seed) for seed in seeds for name, config in settings.items()
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, lowest and highest."""
    return {"mean": fmean(values), "low": min(values), "high": max(values)}


def run_all(
    configs: Mapping[str, RunConfig],
    out: Path,
    jobs: int = 1,
    say: Say = print,
    verb: Verb = "train",
    all_must_finish: bool = True,
) -> dict[str, Run]:
    """Train (or pretrain) every configuration in ``out/NAME``, ``jobs`` at a time; the finished runs.

    A run that fails does not stop the others; at the end the failures are named with their logs, as an error
    if all must finish.
    """
    require(jobs >= 1, f"jobs must be at least 1, got {jobs}")
    if verb == "train":  # all from one base, also if another pretraining ends while they go
        configs = {name: _with_base(config) for name, config in configs.items()}
    waiting = [_Job(name, config, out / name, verb) for name, config in configs.items()]
    for job in waiting:
        check_settings(job.config)
        job.check()
    waiting = [job for job in waiting if not job.is_finished]
    total, failed = len(waiting), []
    running: list[_Job] = []
    with Interrupts() as interrupts:
        try:
            while waiting or running:
                interrupts.check()
                while waiting and len(running) < jobs:
                    running.append(waiting.pop(0).start())
                time.sleep(POLL)
                for job in [job for job in running if job.has_ended]:
                    running.remove(job)
                    left = len(waiting) + len(running)
                    say(f"[{total - left}/{total}] {job.name}: {job.verdict()}")
                    if not job.is_finished:
                        failed.append(job)
        except Interrupted:
            raise DtmError("stopped; every run has saved itself, and the same command goes on") from None
        finally:
            _stop(running)
    if failed and all_must_finish:
        listed = "\n  ".join(f"{job.name}: {job.log}" for job in failed)
        raise DtmError(
            f"{len(failed)} of {total} runs did not finish; see\n  {listed}\nThe same command tries again."
        )
    lost = {job.name for job in failed}
    return {name: Run.open(out / name) for name in configs if name not in lost}


def _with_base(config: RunConfig) -> RunConfig:
    """The configuration with the folder of its base written down."""
    if config.model.base is not None:
        return config
    folder = find_base(config)
    if folder is None:
        raise no_base(config)
    return replace(config, model=replace(config.model, base=str(folder)))


def _stop(jobs: Sequence[_Job]) -> None:
    """Ask all runs to save themselves, then wait until each has."""
    processes = [job.process for job in jobs if job.process is not None]
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def sweep_table(
    settings: Sequence[str] | Mapping[str, object], seeds: Sequence[int], runs: Mapping[str, Run]
) -> Table:
    """Mean and range over seeds of each setting's held-out measures."""
    rows = {
        name: [{**run.summary["tuned"], **_gap(run)} for run in (runs[f"{name}-{seed}"] for seed in seeds)]
        for name in settings
    }
    measures = list(next(iter(rows.values()))[0])
    table = Table("held out", caption=f"mean (lowest–highest) over seeds {', '.join(map(str, seeds))}")
    for measure in measures:
        table.add_column(measure, overflow="fold")
    for name, found in rows.items():
        spreads = [spread([row[measure] for row in found]) for measure in measures]
        table.add_row(name, *(f"{s['mean']:.3f} ({s['low']:.3f}–{s['high']:.3f})" for s in spreads))
    return table


def _gap(run: Run) -> dict[str, float]:
    closed = run.summary.get("gap_closed")
    return {} if closed is None else {"gap_closed": closed}


@dataclass(slots=True)
class _Job:
    """One run of a sweep, before, during and after its process."""

    name: str
    config: RunConfig
    folder: Path
    verb: Verb
    process: subprocess.Popen[bytes] | None = None
    begin: float = 0.0

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.name}.log")

    @property
    def is_finished(self) -> bool:
        return RunFolder(self.folder).is_finished

    @property
    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def check(self) -> None:
        """Refuse a folder that holds something else than this run, before anything starts."""
        if not self.folder.exists():
            return
        require(
            (self.folder / "config.yaml").is_file(),
            f"{self.folder} exists and holds no run. Choose another folder with --out.",
            CheckpointError,
        )
        changes = list(obstacles(RunFolder(self.folder).read_config(), self.config))
        require(
            not changes,
            f"{self.folder} holds a run of another configuration ({'; '.join(changes)}). "
            "Choose another folder with --out.",
            CheckpointError,
        )

    def start(self) -> _Job:
        """Begin the run, or continue it if it was stopped after a checkpoint."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        # The file holds every field, so a configuration that comes from no recipe can start from any.
        recipe = self.config.recipe if self.config.recipe in RECIPES else next(iter(RECIPES))
        command = [sys.executable, "-m", "dtm", self.verb, recipe, "--out", str(self.folder)]
        if (self.folder / "config.yaml").is_file() and has_checkpoint(self.folder / "checkpoints"):
            command.append("--resume")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)  # killed before its first checkpoint
        settings = self.folder.with_name(f"{self.name}.yaml")
        write_text(settings, to_yaml(self.config))
        command += ["--config", str(settings)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self.begin = time.perf_counter()
        return self

    def verdict(self) -> str:
        """A short description of how it ended."""
        if not self.is_finished:
            return f"not finished, see {self.log}"
        summary = Run.open(self.folder).summary
        measured = summary["tuned"] if self.verb == "train" else summary
        known = {name: value for name, value in measured.items() if value is not None}
        measures = "  ".join(f"{name} {value:.3f}" for name, value in known.items())
        return f"{measures}  ({(time.perf_counter() - self.begin) / 60:.1f} min)"
