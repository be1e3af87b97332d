"""SIGTERM and Ctrl-C as a request to stop at the next safe point."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupted(Exception):
    """Raised at a safe point after a stop was requested; the run then saves itself and ends."""


class Interrupts:
    """While entered, signals only raise a flag; a second Ctrl-C stops at once."""

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
        if self.requested is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number).name
