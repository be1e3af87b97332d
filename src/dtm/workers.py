"""Worker processes with a deadline for every call: code that hangs is killed.

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
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, ClassVar, final

STARTUP = 120.0
"""Deadline for a process to start, in seconds."""
POLL = 1.0
"""Seconds between looks whether a wait should stop."""
Check = Callable[[], None]
"""Function that is called at intervals and may raise to stop what is going on."""


def go_on() -> None:
    """Return: nothing stops the wait but its deadline."""


class Late(Exception):
    """The process did not answer within the deadline, and was killed."""


class Gone(Exception):
    """The process ended instead of answering."""


@final
class Worker:
    """One process that answers one request at a time; after a kill, the next request starts a new process.

    ``serve`` runs in the process. It sends "ready", then answers what it receives until `EOFError`.
    """

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self._serve, self._lock = serve, threading.Lock()
        self._child: _Child | None = None

    def start(self) -> None:
        """Start the process now, not at the first request."""
        with self._lock:
            self._running()

    def ask(self, question: Any, deadline: float, between: Check = go_on) -> Any:
        """Send a request and return the answer; raise `Late` after ``deadline`` seconds, `Gone` at its end.

        ``between`` is called about every second; if it raises, the process is killed. A request that cannot
        be pickled raises the error of `pickle`.
        """
        message = pickle.dumps(question)
        with self._lock:
            child = self._running()
            return self._answer(child, message, deadline, between)

    def close(self) -> None:
        """Kill the process and the processes that it started."""
        with self._lock:
            self._kill()

    def _running(self) -> _Child:
        if self._child is None:
            self._child = _Child(self._serve)
            self._answer(self._child, None, STARTUP, go_on)
        return self._child

    def _answer(self, child: _Child, message: bytes | None, deadline: float, between: Check) -> Any:
        """Send the message, if any, and wait for an answer; kill the process if none arrives."""
        answered = False
        try:
            if message is not None:
                child.connection.send_bytes(message)
            end = time.monotonic() + deadline
            while not child.connection.poll(min(POLL, max(end - time.monotonic(), 0.0))):
                if time.monotonic() >= end:
                    raise Late
                between()
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
    """A forked process and the pipe to it; it is killed when this object or the interpreter goes away."""

    alive: ClassVar[weakref.WeakSet[_Child]] = weakref.WeakSet()

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self.connection, theirs = Pipe()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # no stream, broken, closed
                stream.flush()  # or the child would write the buffered text again
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads; the child uses none
            pid = os.fork()
        if pid == 0:
            try:
                _become_child([self.connection, *(other.connection for other in _Child.alive)])
                serve(theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(ProcessLookupError):  # the child and the processes it started
                    os.killpg(os.getpid(), signal.SIGKILL)
                os._exit(0)
        theirs.close()
        self.end = weakref.finalize(self, _end, pid, self.connection, os.getpid())
        _Child.alive.add(self)


def _become_child(inherited: list[Connection]) -> None:
    """Detach from the parent's process group, signal handlers, output and pipes.

    A copy of another child's pipe would keep that pipe open, and its end would not be noticed.
    """
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
    """Let the system kill this process after ``seconds``, in case its owner is gone; 0 cancels this."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
