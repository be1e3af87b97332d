"""Start many runs, some at the same time, each as a separate process with its own folder.

A sweep can be stopped and started again at any time: runs that have finished are kept, runs that were
stopped continue. Several small models share one GPU well, because each leaves it idle between kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dtm.api import Run
from dtm.capacity.forecast import format_duration
from dtm.config import RunConfig
from dtm.config.serialise import obstacles, to_yaml
from dtm.errors import CheckpointError, DtmError, require
from dtm.loop.registry import check_settings
from dtm.recipes import RECIPES
from dtm.runs.bases import find_base, is_newest, located, no_base
from dtm.runs.folder import RunFolder, make_folder, reading, require_new, require_parent
from dtm.runs.interrupts import ENDS_WITH_PARENT, Interrupted, Interrupts
from dtm.runs.lock import locked
from dtm.writing import write_text

Say = Callable[[str], None]
Verb = Literal["train", "pretrain"]
POLL = 0.2
"""Seconds between polls of the running processes."""


def over_seeds(settings: Mapping[str, RunConfig], seeds: Sequence[int]) -> dict[str, RunConfig]:
    """Return a run ``NAME-SEED`` per setting and seed; all settings run with the first seed first."""
    return {
        f"{name}-{seed}": replace(config, seed=seed) for seed in seeds for name, config in settings.items()
    }


def run_all(
    configs: Mapping[str, RunConfig],
    out: Path,
    jobs: int = 1,
    say: Say = print,
    verb: Verb = "train",
    all_must_finish: bool = True,
    processes: int = 1,
    track: str | None = None,
) -> dict[str, Run]:
    """Train (or pretrain) every configuration in ``out/NAME``, ``jobs`` at a time; return the finished runs.

    Each run has ``processes`` processes. A run that fails does not stop the others; if all must finish, an
    error at the end names the failed runs with their logs. ``track`` is a tracker with a title,
    "wandb:TITLE"; it shows each run as TITLE-NAME.
    """
    require(jobs >= 1, f"jobs must be at least 1, got {jobs}")
    require(processes >= 1, f"--processes must be at least 1, got {processes}")
    waiting = [job for job in _checked_jobs(configs, out, verb) if not job.is_finished]
    total, failed = len(waiting), []
    running: list[_Job] = []
    begin = time.perf_counter()
    if total:
        say(f"{total} of {len(configs)} runs are to be done, {jobs} at a time, in {out}")
    with locked(make_folder(out)), Interrupts() as interrupts:
        try:
            while waiting or running:
                interrupts.check()
                while waiting and len(running) < jobs:
                    running.append(waiting.pop(0).start(processes, track))
                time.sleep(POLL)
                for job in [job for job in running if job.has_ended]:
                    running.remove(job)
                    done = total - len(waiting) - len(running)
                    say(f"[{done}/{total}] {job.name}: {job.verdict()}{_left(begin, done, total)}")
                    if not job.is_finished:
                        failed.append(job)
        except Interrupted:
            raise DtmError("stopped; every run has saved itself. The same command continues them") from None
        finally:
            _stop(running)
    if failed and all_must_finish:
        listed = "\n  ".join(f"{job.name}: {job.log}: {job.last_words()}" for job in failed)
        raise DtmError(
            f"{len(failed)} of {total} runs did not finish; see\n  {listed}\nThe same command tries again."
        )
    lost = {job.name for job in failed}
    return {name: Run.open(out / name) for name in configs if name not in lost}


def _left(begin: float, done: int, total: int) -> str:
    """Estimate the remaining time, at the rate so far."""
    if done == total:
        return ""
    seconds = (time.perf_counter() - begin) / done * (total - done)
    return f"; about {format_duration(seconds)} left"


def plan(configs: Mapping[str, RunConfig], out: Path) -> dict[str, str]:
    """Return the state of each run of `run_all`: finished, to be continued, or new; write nothing."""
    return {job.name: job.state for job in _checked_jobs(configs, out, "train")}


def _checked_jobs(configs: Mapping[str, RunConfig], out: Path, verb: Verb) -> list[_Job]:
    """Make a job for every configuration; raise an error for invalid settings or folders."""
    require_parent(out)
    if verb == "train":  # one base for all runs, even if another pretraining finishes meanwhile
        configs = {name: _with_base(config, RunFolder(out / name)) for name, config in configs.items()}
    found = [_Job(name, config, out / name, verb) for name, config in configs.items()]
    for job in found:
        check_settings(job.config)
        job.check()
    return found


def _with_base(config: RunConfig, run: RunFolder) -> RunConfig:
    """Return the configuration with the folder of its base filled in; raise an error if there is none.

    A finished run needs no base, which may be deleted by now.
    """
    config = located(config)
    try:
        base, folder = config.model.base, find_base(config)
    except DtmError:
        if not run.is_finished:
            raise
        return config
    if folder is None and base is None:
        raise no_base(config)
    if folder is None or not is_newest(base, folder):
        return config
    return replace(config, model=replace(config.model, base=str(folder.absolute())))


def _stop(jobs: Sequence[_Job]) -> None:
    """Signal all runs to save a checkpoint and stop; wait for them."""
    processes = [job.process for job in jobs if job.process is not None]
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def held_out_measures(run: Run) -> dict[str, float]:
    """Return the tuned model's measures and, if known, the share of the gap that it closed."""
    with reading(run.folder.summary):
        summary = run.summary
        closed = summary.get("gap_closed")
        return {**summary["tuned"], **({} if closed is None else {"gap_closed": closed})}


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
    def state(self) -> str:
        if self.is_finished:
            return "finished"
        return "to be continued" if self.folder.exists() else "new"

    @property
    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def check(self) -> None:
        """Raise an error if the folder has other contents than this run."""
        if not (self.folder / "config.yaml").is_file():
            require_new(self.folder)
            return
        changes = list(obstacles(RunFolder(self.folder).read_config(), self.config))
        require(
            not changes,
            f"{self.folder} holds a run of another configuration ({'; '.join(changes)}). "
            "Choose another folder with --out.",
            CheckpointError,
        )

    def start(self, processes: int = 1, track: str | None = None) -> _Job:
        """Start the run, or continue it if it was stopped; it stops when this process ends."""
        resumes = (self.folder / "config.yaml").is_file()
        # The file has every field, so a configuration without a recipe can start from any recipe.
        recipe = self.config.recipe if resumes or self.config.recipe in RECIPES else next(iter(RECIPES))
        command = [sys.executable, "-m", "dtm", self.verb, recipe, "--out", str(self.folder)]
        if resumes:
            command.append("--resume")
        if processes > 1:
            command += ["--processes", str(processes)]
        if track is not None:
            command += ["--track", f"{track}-{self.name}"]
        settings = self.folder.with_name(f"{self.name}.yaml")
        write_text(settings, to_yaml(self.config))
        command += ["--config", str(settings)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, ENDS_WITH_PARENT: "1"},
            )
        self.begin = time.perf_counter()
        return self

    def last_words(self) -> str:
        """Return the line of the log that says why the run has failed, or the last one."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        told = [line.removeprefix("dtm: ") for line in lines if line.startswith("dtm: ")]
        return (told or lines or ["no output"])[-1]

    def verdict(self) -> str:
        """Return a short text: the run's measures, or its log if it failed."""
        if not self.is_finished:
            return f"not finished, see {self.log}"
        run, split = Run.open(self.folder), f"{self.config.evaluation.split} prompts: "
        measured = held_out_measures(run) if self.verb == "train" else run.summary
        known = {name: value for name, value in measured.items() if value is not None}
        measures = "  ".join(f"{name} {value:.3f}" for name, value in known.items())
        minutes = (time.perf_counter() - self.begin) / 60
        return f"{split if self.verb == 'train' else ''}{measures}  ({minutes:.1f} min)"
