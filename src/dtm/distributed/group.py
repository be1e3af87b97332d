"""The verbs of a group of processes, and the group of one.

The invariant is that a run does not depend on the number of processes:

    share       rows are distributed by their global number
    gather      results come back in the order of the rows, so every process holds the same
    together    an error or a signal in one process takes effect in all of them, at the same place
    accumulate  gradients are sums over all rows, and equal everywhere afterwards

Between two verbs all processes hold the same values, so that they take the same decisions.
"""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, final

from dtm.errors import ConfigError, DtmError, require

if TYPE_CHECKING:
    from torch import nn

Value = TypeVar("Value")
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables with which torchrun starts a process."""


class Group(ABC):
    """The processes of a run, seen from one of them."""

    rank: int = 0
    """The number of this process, from 0."""
    size: int = 1
    """Processes."""
    neighbours: int = 1
    """Processes on this machine."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that prints and writes files."""
        return self.rank == 0

    def share(self, count: int, unit: int = 1) -> range:
        """Return the range of rows, out of ``count``, of this process.

        Ranges follow the order of the processes and differ by one ``unit`` of rows at most; a unit is never
        split. The first process has the most rows; others may have none.
        """
        whole, more = divmod(count // unit, self.size)
        start = self.rank * whole + min(self.rank, more)
        return range(start * unit, (start + whole + (self.rank < more)) * unit)

    def largest_share(self, count: int, unit: int = 1) -> range:
        """Return the range of rows of the first process, which is the largest."""
        return range(-(-(count // unit) // self.size) * unit)

    def parts(self, count: int, size: int, unit: int = 1) -> Iterator[slice]:
        """Yield this process's share of ``count`` rows in slices of at most ``size``."""
        mine = self.share(count, unit)
        for start in range(mine.start, mine.stop, size):
            yield slice(start, min(start + size, mine.stop))

    @abstractmethod
    def gather(self, value: Value) -> list[Value]:
        """Return the values of all processes, in their order. Tensors must be on the CPU."""

    @abstractmethod
    def together(self, work: Callable[[], Value]) -> list[Value]:
        """Run ``work`` in every process; return the results in the order of the processes.

        If it raises in one, all raise: that process its own error, the others an error of the same kind with
        its message. ``work`` must call no other verb.
        """

    def by_first(self, work: Callable[[], Value]) -> Value:
        """Run ``work`` in the first process alone; return its result, or raise its error, in all."""
        return self.together(lambda: work() if self.is_first else None)[0]  # type: ignore[return-value]

    @abstractmethod
    def accumulate(
        self,
        parameters: Sequence[nn.Parameter],
        backward: Callable[[], list[Value]],
        in_order: bool = False,
    ) -> list[Value]:
        """Run ``backward`` and sum the gradients over all processes; return its results in order.

        ``in_order``: the processes take turns, and each adds the gradients of its rows to the sum of the rows
        before. Equal bit for bit for any number of processes if ``backward`` takes one row at a time; without
        it, equal up to the order of summation.
        """


@final
class Alone(Group):
    """One process: every verb is the identity."""

    def gather(self, value: Value) -> list[Value]:
        """Return the value."""
        return [value]

    def together(self, work: Callable[[], Value]) -> list[Value]:
        """Run the work."""
        return [work()]

    def accumulate(
        self,
        parameters: Sequence[nn.Parameter],
        backward: Callable[[], list[Value]],
        in_order: bool = False,
    ) -> list[Value]:
        """Run ``backward``."""
        return backward()


ALONE = Alone()


def launched() -> int:
    """Return the number of processes that this one was started as a part of."""
    try:
        return int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        raise ConfigError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}, not a number of processes") from None


def is_first_process() -> bool:
    """Return whether this process prints; works before the group exists."""
    return launched() == 1 or os.environ.get("RANK", "0") == "0"


@functools.cache
def current() -> Group:
    """Return the group that this process belongs to; it is joined at the first call.

    The group is that of torchrun, or of `dtm.distributed.launch`, which sets the same variables.
    """
    if launched() == 1:
        return ALONE
    missing = [name for name in VARIABLES if name not in os.environ]
    require(
        not missing,
        f"WORLD_SIZE is {launched()}, and {', '.join(missing)} is not set: start the processes with torchrun "
        "or with --processes, or unset WORLD_SIZE to run one",
    )
    from dtm.distributed.processes import Processes

    return Processes()


def mark_shared(problem: Exception) -> Exception:
    """Mark an error that all processes raise, so that only the first prints it."""
    problem.shared = True  # type: ignore[attr-defined]
    return problem


def was_shared(problem: BaseException | None) -> bool:
    """Return whether all processes raise this error or its cause."""
    while problem is not None:
        if getattr(problem, "shared", False):
            return True
        problem = problem.__cause__
    return False


def failure(problem: Exception, rank: int) -> tuple[type[Exception], str]:
    """Return kind and message of an error for the other processes.

    Our own errors keep their kind; another library's becomes a `DtmError` that names it.
    """
    kind: Any = type(problem)
    if kind.__module__.partition(".")[0] == "dtm":
        return kind, f"process {rank}: {problem}"
    return DtmError, f"process {rank} failed: {kind.__name__}: {problem}"
