"""Choose the number of CPU threads of a run: as many as there are idle cores.

Threads that wait for a core hold up all others at the end of each operation: two runs of two threads on two
cores can be ten times slower than two runs of one. The kernel counts the idle time of each core
(``/proc/stat``); on other systems torch's own choice is kept.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
SHORTEST = 0.25
"""Shortest time over which idle cores are counted, in seconds."""


@dataclass(frozen=True, slots=True)
class BusyTime:
    """Counters of busy time: of the allowed cores since boot, and of this process since its start."""

    at: float
    busy: float
    """Busy seconds of all cores that this process may use; nan if the system does not count them."""
    own: float
    """CPU seconds of this process."""

    @classmethod
    def start(cls) -> BusyTime:
        """Read the counters."""
        own = time.process_time()
        try:
            counted = Path("/proc/stat").read_text(encoding="ascii").splitlines()
            return cls(time.perf_counter(), _busy(counted, os.sched_getaffinity(0)), own)
        except (OSError, AttributeError, ValueError):
            return cls(time.perf_counter(), float("nan"), own)

    def free_cores(self) -> float:
        """Return how many cores other processes have left idle since `start`; nan if unknown."""
        time.sleep(max(0.0, SHORTEST - (time.perf_counter() - self.at)))
        now = BusyTime.start()
        others = (now.busy - self.busy) - (now.own - self.own)
        if math.isnan(others):
            return others
        return min(cores() - max(0.0, others) / (now.at - self.at), quota())


def _busy(counted: list[str], allowed: set[int]) -> float:
    """Seconds that the allowed cores have worked, from the lines of ``/proc/stat``.

    >>> _busy(["cpu  9 9 9 9 9 9 9 9", "cpu0 100 0 50 7 9 0 0 0", "cpu1 4 0 0 7 9 0 0 0"], {0}) == 150 / TICKS
    True
    """
    ticks = 0
    for line in counted:
        name, *values = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in allowed:
            user, nice, system, _idle, _waiting, *interrupts = map(int, values[:8])
            ticks += user + nice + system + sum(interrupts)
    return ticks / TICKS


def cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Return the CPU limit of the container, in cores; inf without a limit."""
    try:
        allowed, period = path.read_text(encoding="ascii").split()
        return float(allowed) / float(period)
    except (OSError, ValueError):  # no such file, or "max"
        return float("inf")


def choose(free: float, most: int) -> int:
    """Return the number of threads for ``free`` cores: at least one, at most torch's own choice.

    >>> [choose(free, most=8) for free in (0.2, 3.4, 7.9, 16.0, float("nan"))]
    [1, 3, 8, 8, 8]
    """
    return most if math.isnan(free) else max(1, min(most, round(free)))
