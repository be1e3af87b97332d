"""Whether two LaTeX answers are equal mathematics, checked by `math-verify` in its own process.

Computer algebra on a model's text can take forever, or all memory, and cannot be interrupted from within:
``9^{9^{9^9}}`` is one short line. The process has a deadline for each question; one that misses it is killed,
the answer counts as different, and the next question starts a new process.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import queue
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

from dtm.errors import ConfigError, require

DEADLINE = 5.0
"""Seconds for one question."""
STARTUP = 120.0
"""Seconds for the process to start."""
GONE = "gone"
MAX_CHARACTERS = 500
"""Longer answers are not checked: no gold answer of the data set is half as long."""


def equal(answer: str, gold: str) -> bool:
    """Whether the answers are equal; False where that cannot be settled within the deadline."""
    if max(len(answer), len(gold)) > MAX_CHARACTERS or "\0" in answer:
        return False
    return _judge().ask(answer, gold)


def require_installed() -> None:
    """Refuse where `math-verify` is not installed, with the command to install it."""
    require(
        importlib.util.find_spec("math_verify") is not None,
        "the rules 'fixed' compare MATH answers with the package math-verify, which is not installed. "
        "Install it with: pip install 'discrete-tilt-matching[math]', or use --rules d1, spg or dtm",
        ConfigError,
    )


class Judge:
    """The worker process, and its replacement."""

    def __init__(self, deadline: float = DEADLINE) -> None:
        self.deadline = deadline
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._replies: queue.Queue[str] = queue.Queue()

    def ask(self, answer: str, gold: str) -> bool:
        """One question, one at a time; a dead or late process answers no."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps([answer, gold]) + "\n")
                process.stdin.flush()
                reply = self._replies.get(timeout=self.deadline)
            except (queue.Empty, OSError):
                reply = GONE
            if reply == GONE:
                self._stop()
            return reply == "equal"

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._stop()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        # By path, so that the child is this very file; -P keeps its neighbours from shadowing other modules.
        child = [sys.executable, "-P", str(Path(__file__).with_name("symbolic_child.py")), str(self.deadline)]
        self._process = subprocess.Popen(
            child,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="ascii",
        )
        self._replies = queue.Queue()
        threading.Thread(target=_forward, args=(self._process, self._replies), daemon=True).start()
        try:
            ready = self._replies.get(timeout=STARTUP)
        except queue.Empty:
            ready = "slow"
        require(
            ready == "ready",
            "math-verify is installed but does not start; try: python -c 'import math_verify'",
        )
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _forward(process: subprocess.Popen[str], replies: queue.Queue[str]) -> None:
    """Forward the process's output, and its end."""
    assert process.stdout is not None
    for line in process.stdout:
        replies.put(line.strip())
    replies.put(GONE)


@cache
def _judge() -> Judge:
    judge = Judge()
    atexit.register(judge.close)
    return judge
