"""Draw the rollouts of the next refresh ahead of time, in a thread, while the student trains.

π_a is fixed within a phase, and the prompts and the noise of the next refresh are known. So the rollouts do
not depend on the time at which they are drawn. Their cost is charged when they are used; a phase that ends
before its next refresh discards them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Any, final

from dtm.engine.collect import Drawn


class Dropped(Exception):
    """Raised in the thread when its rollouts are no longer needed."""


@dataclass(frozen=True, slots=True)
class _Job:
    key: Any
    drawn: Future[tuple[Drawn, float]]
    """The rollouts, and the seconds that they took."""


@final
class Ahead:
    """A thread that draws at most one collection of rollouts ahead of time."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "rollouts ahead")
        self._job: _Job | None = None
        self._is_dropped = Event()
        self.saved = 0.0
        """Seconds saved by the latest rollouts: the time between the start of their draw and their use."""

    def check(self) -> None:
        """Raise `Dropped` in the thread once its rollouts are not needed; engines call it at intervals."""
        if self._is_dropped.is_set():
            raise Dropped

    def start(self, key: Any, draw: Callable[[], Drawn]) -> None:
        """Start to draw; the rollouts are determined by ``key``."""
        self.drop()

        def timed() -> tuple[Drawn, float]:
            begin = time.perf_counter()
            return draw(), time.perf_counter() - begin

        self._is_dropped.clear()
        self._job = _Job(key, self._thread.submit(timed))

    def holds(self, key: Any) -> bool:
        """Whether the rollouts of ``key`` are being drawn."""
        return self._job is not None and self._job.key == key

    def take(self, key: Any) -> Drawn:
        """Wait for the rollouts of ``key`` and return them; set `saved` to the seconds saved."""
        job, self._job, begin = self._job, None, time.perf_counter()
        assert job is not None
        assert job.key == key
        drawn, seconds = job.drawn.result()
        self.saved = max(0.0, seconds - (time.perf_counter() - begin))
        return drawn

    def drop(self) -> None:
        """Discard the rollouts, and wait until the thread is idle, so that π_a may change."""
        if self._job is not None:
            self._is_dropped.set()
            self._job.drawn.exception()
            self._job = None
