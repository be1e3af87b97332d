"""A stop at a chosen moment, as a signal would ask for one."""

from __future__ import annotations

from dtm.runs.interrupts import Interrupted


class StopAt:
    """Asks for a stop at the n-th safe point; None: never, but the points are counted."""

    def __init__(self, point: int | None) -> None:
        self.point, self.passed = point, 0

    def __call__(self) -> None:
        self.passed += 1
        if self.passed - 1 == self.point:
            raise Interrupted("SIGTERM")
