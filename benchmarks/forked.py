"""Commands of `dtm` in forks of this process: a fork starts in milliseconds, because torch is imported.

A command has a session of its own, so that it can be killed alone or with the processes that it started.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import torch
import tyro  # noqa: F401, imported once for all forks

import dtm.api
import dtm.comparison.results
import dtm.pretraining.adaptation
import dtm.report.display  # noqa: F401
from dtm.cli import main

LIMIT = 120.0
"""Seconds after which a command counts as hung."""
torch.set_num_threads(1)  # a fork has the threads of its parent's pool, but none of them runs
os.environ["OMP_NUM_THREADS"] = "1"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int | None
    """Its exit code, minus the signal that ended it; None: it hung."""
    said: str

    @property
    def has_traceback(self) -> bool:
        """Whether it printed a traceback, died of a signal that nobody sent, or hung."""
        return "Traceback (most recent call last)" in self.said or self.code is None or self.code < 0

    @property
    def outcome(self) -> str:
        """Finished, refused with a sentence, or broken."""
        if self.has_traceback or self.code not in (0, 2, 3):
            return "broken"
        return "refused" if self.code == 2 else "finished"


@dataclass(slots=True)
class Command:
    """A running command."""

    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    output: IO[str] = field(init=False)
    process: int = field(init=False)
    code: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.process = os.fork()
        if self.process == 0:
            _become(self.arguments, self.folder, self.environment, self.output)

    def has_ended(self) -> bool:
        """Whether the process is gone; its exit code is then known."""
        if self.code is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if process else None
        return self.code is not None

    def wait(self, limit: float = LIMIT) -> Ended:
        """How it ended; a command that does not end in time is killed, and hung."""
        end = time.perf_counter() + limit
        while not self.has_ended() and time.perf_counter() < end:
            time.sleep(0.005)
        code = self.code if self.has_ended() else None
        if code is None:
            self.kill(everything=True)
        self.output.seek(0)
        return Ended(code, self.output.read())

    def kill(self, everything: bool) -> None:
        """Kill −9: the process alone, or with all that it started."""
        # In its first moments the fork is still in this process's group, and has started nothing.
        leads_group = os.getpgid(self.process) == self.process
        (os.killpg if everything and leads_group else os.kill)(self.process, signal.SIGKILL)
        while not self.has_ended():
            time.sleep(0.002)


def call(arguments: Sequence[str], folder: Path, **environment: str) -> Ended:
    """Run a command to its end."""
    return Command(arguments, folder, environment).wait()


def _become(arguments: Sequence[str], folder: Path, environment: Mapping[str, str], output: IO[str]) -> None:
    """Run the command in this fork and exit with its code."""
    code = 1
    try:
        os.setsid()
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        os.environ.update(environment)
        sys.argv = ["dtm", *arguments]
        code = main(arguments)
    except SystemExit as ended:  # of the parser
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
