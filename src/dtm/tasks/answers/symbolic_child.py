"""The process that `symbolic` asks: pairs of answers on its input, "equal" or "different" on its output.

Run as a script; it imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys

MEMORY = 4 << 30
"""Bytes of address space, so that a run-away expression ends this process and not the machine."""


def main(deadline: float) -> None:
    """Answer until the input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    _limit_memory()
    from math_verify import parse, verify

    def judge(answer: str, gold: str) -> bool:
        left, right = (parse(f"${text}$", parsing_timeout=None) for text in (gold, answer))
        return bool(left and right and verify(left, right, timeout_seconds=None))

    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        answer, gold = json.loads(line)
        _arm(deadline + 1)
        try:
            verdict = judge(answer, gold)
        except Exception:  # whatever computer algebra makes of it: it has not been shown to be equal
            verdict = False
        _arm(0)
        print("equal" if verdict else "different", file=replies, flush=True)


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system has such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _arm(seconds: float) -> None:
    """Let the system end this process after so long, should nobody be left to do it; 0 disarms."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


if __name__ == "__main__":
    main(float(sys.argv[1]))
