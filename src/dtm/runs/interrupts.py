"""Handle SIGTERM and Ctrl-C: stop at the next safe point; end a process when its parent ends."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import ClassVar

ENDS_WITH_PARENT = "DTM_ENDS_WITH_PARENT"
"""Environment variable of a child process whose standard input is a pipe from its parent."""


class Interrupted(Exception):
    """Raised at a safe point after a stop was requested; the run then saves itself and ends."""


class Stop(KeyboardInterrupt):
    """Raised by a signal outside safe points.

    Its own class: Python notes a plain `KeyboardInterrupt` that passes through an ``exec`` of text, which
    imports use, and then exits as after Ctrl-C, whatever the signal was.
    """


class Interrupts:
    """Context in which signals only set a flag; a second Ctrl-C stops at once."""

    received: ClassVar[signal.Signals | None] = None
    """Latest signal to stop this process; it sets the exit code."""

    def __init__(self) -> None:
        self.requested: str | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # signals belong to the main thread
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def check(self) -> None:
        """Raise `Interrupted` if a stop was requested."""
        if self.requested is not None:
            raise Interrupted(self.requested)

    def _request(self, number: int, frame: FrameType | None) -> None:
        Interrupts.received = signal.Signals(number)
        if self.requested is not None and number == signal.SIGINT:
            raise Stop
        self.requested = Interrupts.received.name


class Immediate(Interrupts):
    """Context in which a signal raises `Stop` at once; for use outside training loops."""

    def _request(self, number: int, frame: FrameType | None) -> None:
        Interrupts.received = signal.Signals(number)
        raise Stop


def exit_code() -> int:
    """Return the exit code of a stopped process: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (Interrupts.received or signal.SIGINT)


def end_with_parent() -> None:
    """Stop this process once its parent has ended, also by ``kill -9``, if the parent set the variable."""
    if os.environ.pop(ENDS_WITH_PARENT, None) is None:
        return

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
