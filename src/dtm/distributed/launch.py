"""Start the processes of a run on this machine, and end all of them if one fails.

This does what ``torchrun --standalone`` does, with the exit codes of `dtm`: it sets the same variables. A
signal is passed on to every process once, so that the run saves itself. The standard input of each process is
a pipe that closes when this one ends, however it ends.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from dtm.errors import require

GRACE = 30.0
"""Seconds until the other processes are killed after one has failed."""
POLL = 0.05
"""Seconds between polls."""
COMMAND = ["-m", "dtm"]
"""Arguments with which the interpreter runs `dtm`."""


def launch(arguments: Sequence[str], processes: int, variables: Mapping[str, str]) -> int:
    """Run ``dtm ARGUMENTS`` in several processes; return the exit code of the first that fails, or 0.

    ``variables`` are added to the environment of each.
    """
    require(processes >= 1, f"--processes must be at least 1, got {processes}")
    port = _free_port()
    running = [
        _start(arguments, {**variables, **environment(rank, processes, port)}) for rank in range(processes)
    ]

    def forward(number: int, frame: FrameType | None) -> None:
        for process in running:
            if process.poll() is None:
                process.send_signal(number)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _wait(running)
    finally:
        for process in running:
            process.kill()
            process.wait()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _start(arguments: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    threads = max(1, (os.cpu_count() or 1) // int(variables["WORLD_SIZE"]))
    return subprocess.Popen(
        [sys.executable, *COMMAND, *arguments],
        stdin=subprocess.PIPE,
        env={"OMP_NUM_THREADS": str(threads), **os.environ, **variables},
        process_group=0,  # a Ctrl-C of the terminal comes once, through this process
    )


def environment(rank: int, processes: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets for one process of several on this machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _wait(running: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended, or until `GRACE` seconds after the first failure."""
    failed, deadline = 0, math.inf
    while None in [process.poll() for process in running] and time.monotonic() < deadline:  # polls all
        time.sleep(POLL)
        failed = failed or _failure(running)
        if failed and deadline == math.inf:
            deadline = time.monotonic() + GRACE
    failed = failed or _failure(running)
    return 128 - failed if failed < 0 else failed  # as a shell reports a signal


def _failure(running: Sequence[subprocess.Popen[bytes]]) -> int:
    """Return the code of a process that has failed, or 0; say if a signal has ended one."""
    codes = {process.returncode: rank for rank, process in enumerate(running) if process.returncode}
    worst = min(codes, default=0)
    if worst < 0:
        name = signal.Signals(-worst).name
        print(f"dtm: process {codes[worst]} was ended by {name}", file=sys.stderr, flush=True)
    return worst


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
