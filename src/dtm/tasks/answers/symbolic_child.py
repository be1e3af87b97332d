"""The worker process of `symbolic`: reads pairs of answers, and answers whether they are equal.

Run as a script with the descriptor of its pipe; it imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
from multiprocessing.connection import Connection

MEMORY = 4 << 30
"""Limit of address space in bytes, so that a huge expression ends only this process."""


def main(connection: Connection, longest: float) -> None:
    """Answer until the pipe is closed; the system kills the process ``longest`` seconds into a request."""
    with contextlib.suppress(ValueError, OSError):  # not every system has such limits
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from math_verify import parse, verify

    def judge(answer: str, gold: str) -> bool:
        left, right = (parse(f"${text}$", parsing_timeout=None) for text in (gold, answer))
        return bool(left and right and verify(left, right, timeout_seconds=None))

    connection.send("ready")
    while True:
        answer, gold = connection.recv()
        signal.setitimer(signal.ITIMER_REAL, longest)
        try:
            verdict = judge(answer, gold)
        except Exception:  # any error of computer algebra: not shown to be equal
            verdict = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send(verdict)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, OSError):
        main(Connection(int(sys.argv[1])), float(sys.argv[2]))
