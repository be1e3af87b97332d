"""Count the cost of updates at the models; rollout engines count their own passes (`RolloutEngine.cost`).

Seconds: wall-clock of rollouts, rewards and updates; not of evaluations, checkpoints and loading.
Tokens: positions, prompt and padding included, that pass through a model: once forward and, in updates, once
more backward. In rollouts every decoding step counts. Passes of π_a, π_0 and the progress meter count too.
FLOPs: those of the forward passes (`Denoiser.flops`), and for a backward pass twice as many. Recomputed
blocks are not counted again. Weights that are frozen under adapters are counted as if they were trained.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType

from dtm.models.denoiser import Denoiser
from dtm.records import Cost


class Ledger:
    """Context that counts the passes of some models; `take` returns the sum."""

    def __init__(self, models: Iterable[Denoiser | None]) -> None:
        self._is_open, self._since = False, 0.0
        self._seconds, self._tokens, self._flops = 0.0, 0, 0
        for model in models:
            if model is not None:
                model.on_pass = self._count

    def __deepcopy__(self, memo: object) -> Ledger:
        """Return itself: a copied model, such as π_a with its adapter merged, is counted here too."""
        return self

    def __enter__(self) -> Ledger:
        self._is_open, self._since = True, time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._is_open = False

    def take(self) -> Cost:
        """Return the cost since the last call."""
        if self._is_open:
            self._stop()
        cost = Cost(self._seconds, self._tokens, self._flops)
        self._seconds, self._tokens, self._flops = 0.0, 0, 0
        return cost

    def _stop(self) -> None:
        now = time.perf_counter()
        self._seconds, self._since = self._seconds + now - self._since, now

    def _count(self, model: Denoiser, computed: int, attended: int, scored: int, trained: bool) -> None:
        """Count a forward pass, and the backward pass that follows if it is trained."""
        if self._is_open:
            self._tokens += computed * (2 if trained else 1)
            self._flops += model.flops(computed, attended, scored) * (3 if trained else 1)
