"""The progress of a run: all counters and measures that its next steps depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dtm.losses import AdaptiveControl
from dtm.records import Cost


@dataclass(slots=True)
class Progress:
    """The mutable part of a run that is neither weights nor rollouts; saved as JSON."""

    step: int = 0
    """Optimiser steps since the start."""
    phase: int = 0
    """Index of the current phase."""
    tilt: float = 0.0
    """a, the tilt of π_a."""
    h: float | None = None
    """The current phase's step; None between phases."""
    phase_step: int = 0
    """Optimiser steps in this phase."""
    landing: str | None = None
    """Reason for which the phase ends before its last step; None: it does not."""
    landing_from: int | None = None
    """Phase step at which the landing started."""
    control: AdaptiveControl = field(default_factory=AdaptiveControl)
    """Running estimate of the best control variate, from past batches of this phase."""
    absorbed: float | None = None
    """Latest absorbed share of this phase's tilt, measured on held-out rollouts."""
    absorbed_error: float | None = None
    """Standard error of `absorbed`; None if only one prompt was measured."""
    read_at: int | None = None
    """Phase step of the latest reading; a resumed run does not read the same step again."""
    audited: dict[str, Any] = field(default_factory=dict)
    """Sums of this phase's comparisons with exact decoding (see `dtm.loop.audit`)."""
    exact_because: str | None = None
    """Reason for which rollouts fell back to exact decoding; None: they did not."""
    evaluations: list[dict[str, float]] = field(default_factory=list)
    """Held-out measures by tilt: those of the base, the latest ones, and the best of the others."""
    seconds: float = 0.0
    """Time since the start, evaluations included, also before a resume."""
    asked: int = 0
    """Number of training prompts used so far: the position in their order."""
    spent_seconds: float = 0.0
    spent_tokens: int = 0
    spent_flops: int = 0
    """Cost of rollouts and updates (see `dtm.loop.ledger`); work lost by a stop is not counted."""
    measured_at: float = 0.0
    """Share of the budget that was spent at the latest evaluation."""
    peak_memory: int = 0
    """Peak memory in bytes: of the GPU if there is one, else of the process."""
    finished: str | None = None
    """Reason for which the run ended; None: it has not."""

    def begin_phase(self, h: float, control: AdaptiveControl) -> None:
        """Start a phase towards a + h and reset its measurements."""
        self.h, self.phase_step, self.control = h, 0, control
        self.landing = self.landing_from = self.absorbed = self.absorbed_error = self.read_at = None

    def end_phase(self) -> None:
        """Arrive at a + h."""
        assert self.h is not None
        self.tilt += self.h
        self.phase += 1
        self.h = None

    def discard_phase(self) -> None:
        """Drop the current phase and stay at a."""
        self.h, self.phase_step = None, 0

    def measured(self, row: dict[str, float], recent: int) -> None:
        """Add an evaluation; keep the base's, the ``recent`` latest ones, and the best of the others."""
        self.evaluations.append(row)
        while len(self.evaluations) > recent + 2:
            worse = min((1, 2), key=lambda place: self.evaluations[place]["reward"])
            del self.evaluations[worse]

    def place(self) -> dict[str, Any]:
        """The progress fields of every event of a phase."""
        return {"phase": self.phase, "tilt": self.tilt, "h": self.h}

    @property
    def spent(self) -> dict[str, int | float]:
        """The cost fields of every event: the cost so far."""
        return {
            "spent_seconds": round(self.spent_seconds, 3),
            "spent_tokens": self.spent_tokens,
            "spent_flops": self.spent_flops,
        }

    def spend(self, cost: Cost) -> None:
        """Add a cost to the total."""
        self.spent_seconds += cost.seconds
        self.spent_tokens += cost.tokens
        self.spent_flops += cost.flops

    def to_json(self) -> dict[str, Any]:
        """All counters as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Progress:
        """Read the counters from the values of `to_json`."""
        return cls(**{**state, "control": AdaptiveControl(**state["control"])})
