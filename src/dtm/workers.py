"""Processes that answer calls under a deadline, whatever the code that they run does.

A thread cannot be stopped: a catastrophic regular expression or a huge power holds the interpreter, and with
it every other thread. A process can be killed. `Worker` forks one, so that closures and functions of a
notebook work as they are; a process that is late is killed together with the processes that it started.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, ClassVar, final

STARTUP = 120.0
"""Seconds for a process to start."""


class Late(Exception):
    """The process did not answer within the deadline, and was killed."""


class Gone(Exception):
    """The process ended instead of answering."""


@final
class Worker:
    """One process that answers one question at a time; the next question replaces one that was killed.

    ``serve`` runs in the process. It sends "ready", then answers what it receives until `EOFError`.
    """

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self._serve, self._lock = serve, threading.Lock()
        self._child: _Child | None = None

    def start(self) -> None:
        """Start the process now instead of with the first question."""
        with self._lock:
            self._running()

    def ask(self, question: Any, deadline: float) -> Any:
        """Return the answer to a question; raise `Late` after ``deadline`` seconds, `Gone` without an answer.

        Raises what `pickle` raises where the question cannot be sent.
        """
        message = pickle.dumps(question)
        with self._lock:
            child = self._running()
            return self._answer(child, message, deadline)

    def close(self) -> None:
        """End the process, and those that it started."""
        with self._lock:
            self._kill()

    def _running(self) -> _Child:
        if self._child is None:
            self._child = _Child(self._serve)
            self._answer(self._child, None, STARTUP)
        return self._child

    def _answer(self, child: _Child, message: bytes | None, deadline: float) -> Any:
        """Send the message, if any, and wait for an answer; kill the process where none comes."""
        answered = False
        try:
            if message is not None:
                child.connection.send_bytes(message)
            if not child.connection.poll(deadline):
                raise Late
            answer = child.connection.recv()
            answered = True
            return answer
        except (EOFError, OSError):
            raise Gone from None
        finally:
            if not answered:
                self._kill()

    def _kill(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None


class _Child:
    """A forked process with its end of a pipe; it ends with the object, or with the interpreter."""

    alive: ClassVar[weakref.WeakSet[_Child]] = weakref.WeakSet()

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self.connection, theirs = Pipe()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # none, broken, closed
                stream.flush()  # or the child would write the buffered text again
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the child uses none of them
            pid = os.fork()
        if pid == 0:
            try:
                _become_child([self.connection, *(other.connection for other in _Child.alive)])
                serve(theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(os.getpid(), signal.SIGKILL)  # with all that it started, if the owner is gone
                os._exit(0)
        theirs.close()
        self.end = weakref.finalize(self, _end, pid, self.connection, os.getpid())
        _Child.alive.add(self)


def _become_child(inherited: list[Connection]) -> None:
    """Leave the parent's group, signals, output and pipes: a pipe held open would hide its end."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for connection in inherited:
        connection.close()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


def _end(pid: int, connection: Connection, owner: int) -> None:
    """Kill a process and its group, and reap it; in a fork of the owner, do nothing."""
    if os.getpid() != owner:
        return
    connection.close()
    for kill in (os.killpg, os.kill):  # the group exists once the process has left its parent's
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def end_after(seconds: float) -> None:
    """Let the system end this process after so long, should nobody be left to do it; 0 disarms."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
