"""The option --threads, and the default number of threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from dtm.capacity.threads import BusyTime, choose, cores
from dtm.distributed import launched
from dtm.errors import require

if TYPE_CHECKING:
    from dtm.runs.folder import RunFolder

OMP = "OMP_NUM_THREADS"
HELP = "threads of the CPU (default: as many as cores are free, or OMP_NUM_THREADS)"
WATCH = BusyTime.start()
"""Counts busy cores from the start of the command, while it imports and parses."""


def add_threads(add: Callable[..., object]) -> None:
    """Add the option --threads."""
    add("--threads", type=int, metavar="N", help=HELP)


def set_threads(asked: int | None, found: RunFolder | None = None) -> None:
    """Set the number of threads, and print it if it is not torch's default.

    A run that is continued on as many processes keeps its number of threads: with another number, sums are
    taken in another order and the last digits differ.
    """
    import torch

    require(asked is None or asked >= 1, f"--threads must be at least 1, got {asked}")
    most = torch.get_num_threads()
    number, notice = asked or most, ""
    started = {} if found is None else found.started
    is_alike = isinstance(started.get("threads"), int) and started.get("processes", 1) == launched()
    if asked is None and is_alike:
        number = max(1, started["threads"])
        if number != most:
            notice = (
                f"threads: {number}, as at the start of the run; --threads N changes it, and the last digits "
                "of results with it"
            )
    elif asked is None and OMP not in os.environ:
        free = WATCH.free_cores()
        number = choose(free, most)
        if number < most:
            notice = f"threads: {number}, because {free:.1f} of {cores()} cores are free; --threads N sets it"
    torch.set_num_threads(number)
    if notice:
        print(notice, flush=True)


def share_threads(asked: int | None, jobs: int) -> None:
    """Set the threads of the processes that this command starts; a single process sets its own."""
    require(asked is None or asked >= 1, f"--threads must be at least 1, got {asked}")
    if asked is None and jobs > 1 and OMP not in os.environ:
        asked = max(1, choose(WATCH.free_cores(), cores()) // jobs)
        print(f"threads: {asked} for each run; --threads N sets it", flush=True)
    if asked is not None:
        os.environ[OMP] = str(asked)  # read by the processes that are started
