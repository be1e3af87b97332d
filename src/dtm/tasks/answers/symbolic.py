"""Check with `math-verify`, in a separate process, whether two LaTeX answers are mathematically equal.

Computer algebra on a model's text, such as ``9^{9^{9^9}}``, may never end or use all memory, and cannot be
interrupted in its own process. Each comparison has a deadline. After the first, possibly on a busy machine,
it is tried again with a longer deadline; after the second it is reported as undecided.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

from dtm.errors import ConfigError, DtmError, install_extra, require
from dtm.workers import Gone, Late, Worker

DEADLINES = (5.0, 10.0)
"""Deadlines in seconds of a comparison and of its second try."""
MAX_CHARACTERS = 500
"""Longest answer that is checked, in characters; the data set's gold answers are less than half as long."""


def equal(answer: str, gold: str) -> bool | None:
    """Return whether the answers are equal; None if all tries exceed their deadline."""
    if max(len(answer), len(gold)) > MAX_CHARACTERS or "\0" in answer:
        return False
    return _judge().ask(answer, gold)


def require_installed() -> None:
    """Raise an error with the install command if `math-verify` is not installed."""
    require(
        importlib.util.find_spec("math_verify") is not None,
        "the rules 'fixed' compare MATH answers with the package math-verify, which is not installed. "
        f"Install it with: {install_extra('math')}, or use --rules d1, spg or dtm",
        ConfigError,
    )


class Judge:
    """The worker process that compares answers."""

    def __init__(self, deadlines: tuple[float, ...] = DEADLINES) -> None:
        self.deadlines = deadlines
        self._worker = Worker(self._serve)

    def ask(self, answer: str, gold: str) -> bool | None:
        """Return whether the answers are equal; None if all tries time out, False if memory runs out."""
        for deadline in self.deadlines:
            try:
                self._worker.start()
            except (Late, Gone):
                raise DtmError(
                    "math-verify is installed but does not start; try: python -c 'import math_verify'"
                ) from None
            try:
                return bool(self._worker.ask((answer, gold), deadline))
            except Late:
                continue
            except Gone:
                return False
        return None

    def close(self) -> None:
        """Stop the worker process, if there is one."""
        self._worker.close()

    def _serve(self, connection: Connection) -> None:
        """Replace the forked process by a new interpreter, whose memory can be limited."""
        pipe, nowhere = connection.fileno(), os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(pipe, True)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        # By path, so that the child is this very file; -P keeps its neighbours from shadowing other modules.
        script, longest = str(Path(__file__).with_name("symbolic_child.py")), max(self.deadlines) + 1
        os.execv(sys.executable, [sys.executable, "-P", script, str(pipe), str(longest)])


@cache
def _judge() -> Judge:
    return Judge()


os.register_at_fork(after_in_child=_judge.cache_clear)  # a process has its own judge
