"""Where a run stands: the counters that decide what happens next, and nothing else."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from dtm.records import Cost


@dataclass(slots=True)
class Progress:
    """The mutable part of a run that is neither weights nor rollouts; saved as JSON."""

    step: int = 0
    """Optimiser steps since the start."""
    phase: int = 0
    """Index of the current phase."""
    tilt: float = 0.0
    """a, the tilt that π_a stands at."""
    h: float | None = None
    """The current phase's step; None between phases."""
    phase_step: int = 0
    """Optimiser steps in this phase."""
    cooling_from: int | None = None
    """Phase step at which the learning rate began to fall."""
    control_numerator: float = 0.0
    control_denominator: float = 0.0
    """Running sums of the closed form of the best c, over past batches of this phase."""
    absorbed: float | None = None
    """Latest absorbed fraction of this phase, measured on fresh rollouts."""
    absorbed_error: float | None = None
    """Its standard error."""
    audited: dict[str, Any] = field(default_factory=dict)
    """Sums of this phase's comparisons with exact decoding (see `dtm.loop.audit`)."""
    exact_because: str | None = None
    """Why decoding takes no shortcuts any more, once an audit has said so."""
    evaluations: list[dict[str, float]] = field(default_factory=list)
    """Held-out measures at each tilt reached, the base's first."""
    seconds: float = 0.0
    """Time since the start, evaluations included, also before a resume."""
    asked: int = 0
    """Training prompts asked so far: the place in their order."""
    spent_seconds: float = 0.0
    spent_tokens: int = 0
    spent_flops: int = 0
    """What rollouts and updates have cost (see `dtm.loop.ledger`), without work that a stop undid."""
    measured_at: float = 0.0
    """Share of the budget that was spent at the latest evaluation."""
    peak_memory: int = 0
    """Most bytes held at once: on the GPU if there is one, else by the process."""
    finished: str | None = None
    """Why annealing ended, once it has."""

    @property
    def control(self) -> float:
        """c̄*, clipped to [0, 1.5]; 1, the mean weight, before there is evidence."""
        if self.control_denominator <= 0:
            return 1.0
        return min(max(self.control_numerator / self.control_denominator, 0.0), 1.5)

    @property
    def surely_absorbed(self) -> float:
        """The absorbed fraction less its standard error: what a phase may be ended on."""
        if self.absorbed is None or self.absorbed_error is None:
            return -math.inf
        return self.absorbed - self.absorbed_error

    def begin_phase(self, h: float) -> None:
        """Set out for a + h, with nothing known of the way yet."""
        self.h, self.phase_step, self.cooling_from = h, 0, None
        self.absorbed = self.absorbed_error = None
        self.control_numerator = self.control_denominator = 0.0

    def end_phase(self) -> None:
        """Arrive at a + h."""
        assert self.h is not None
        self.tilt += self.h
        self.phase += 1
        self.h = None

    def remember_control(self, numerator: float, denominator: float, memory: float) -> None:
        """Add a batch to the closed form of the best c, of which so much of the past is kept."""
        self.control_numerator = memory * self.control_numerator + (1 - memory) * numerator
        self.control_denominator = memory * self.control_denominator + (1 - memory) * denominator

    def place(self) -> dict[str, Any]:
        """Where the run stands, as every row of a phase says it."""
        return {"phase": self.phase, "tilt": self.tilt, "h": self.h}

    @property
    def spent(self) -> dict[str, int | float]:
        """The cost so far, as every event says it."""
        return {
            "spent_seconds": round(self.spent_seconds, 3),
            "spent_tokens": self.spent_tokens,
            "spent_flops": self.spent_flops,
        }

    def spend(self, cost: Cost) -> None:
        """Put what was done since the last time on the account."""
        self.spent_seconds += cost.seconds
        self.spent_tokens += cost.tokens
        self.spent_flops += cost.flops

    def to_json(self) -> dict[str, Any]:
        """All counters as plain values."""
        return asdict(self)
