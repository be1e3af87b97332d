"""Settings of training: the two loops, the replay buffer, and the optimiser."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dtm.config.rules import (
    AT_LEAST_ONE,
    BETWEEN_0_AND_1,
    FINITE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SHARE_ABOVE_0,
    SHARE_BELOW_1,
    check_fields,
)
from dtm.errors import require


@dataclass(frozen=True, kw_only=True, slots=True)
class TiltConfig:
    """The annealing loop: phases of h from a = 0 to A. For methods that anneal, such as c-dtm."""

    step: float | Literal["auto"] = 2.5
    """h, the tilt added by each phase; auto: the largest h that keeps ESS at tilt.ess."""
    final: float = 10.0
    """A, the tilt at which annealing stops. Not used if there is a budget."""
    ess: float = 0.7
    """Target of step = auto: effective sample size, as a fraction of the buffer."""
    step_cap: float = 5.0
    """Largest h that step = auto may choose; used if all rewards are equal."""
    absorbed: float | Literal["never"] = 0.9
    """Absorbed share of h at which a phase ends: two readings in a row reach it, minus their standard errors.
    The phase also ends if the share stops rising. never: end phases only at tilt.max-steps."""
    max_steps: int = 200
    """Largest number of optimiser steps in a phase."""

    def __post_init__(self) -> None:
        check_fields(
            "tilt", self, final=FINITE, ess=BETWEEN_0_AND_1, step_cap=POSITIVE, max_steps=AT_LEAST_ONE
        )
        require(
            self.step == "auto" or 0 < self.step < math.inf,
            f"tilt.step must be positive and finite, or auto, got {self.step}",
        )
        require(
            self.absorbed == "never" or 0 < self.absorbed <= 1,
            f"tilt.absorbed must lie in (0, 1] or be never, got {self.absorbed}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class IterateConfig:
    """The iterating loop, for policy-gradient methods: draw rollouts, then take the method's updates."""

    iterations: int = 100
    """Number of iterations of the run. Not used if there is a budget."""

    def __post_init__(self) -> None:
        check_fields("iterate", self, iterations=AT_LEAST_ONE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayConfig:
    """The buffer of rollouts that batches are drawn from."""

    prompts: int = 64
    """Number of prompts in the buffer of a phase. An iteration takes as many as fit optimizer.batch, so that
    every update uses every rollout. Both loops shuffle training prompts in chunks of this size."""
    completions: int = 8
    """K, completions per prompt; with only one, the absorbed share cannot be measured."""
    refresh_every: int = 25
    """Optimiser steps between refreshes of the buffer."""
    refresh_fraction: float = 0.25
    """Share of the prompts whose rollouts a refresh replaces by new ones of π_a."""
    held_out: float = 0.125
    """Number of held-out prompts as a share of replay.prompts. The absorbed share of a phase is measured on
    their rollouts; more of them make its error smaller."""
    priority: float = 0.8
    """Share of the draws from the buffer in proportion to |w̄ − c̄|, with c̄ = 1 for an adaptive c: rollouts of
    small difference have almost no gradient. The loss corrects for it, without bias. 0: draw uniformly."""

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("prompts", "completions", "refresh_every"), AT_LEAST_ONE)
        shares = {"priority": SHARE_BELOW_1, "held_out": POSITIVE, "refresh_fraction": SHARE_ABOVE_0}
        check_fields("replay", self, **counts, **shares)

    @property
    def refresh_prompts(self) -> int:
        """Number of prompts that a refresh replaces."""
        return max(1, round(self.refresh_fraction * self.prompts))

    @property
    def held_out_prompts(self) -> int:
        """Number of prompts on which the absorbed share of a phase is measured."""
        return max(1, round(self.held_out * self.prompts))


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """AdamW. Annealing restarts moments and schedule in each phase; iterating keeps both, constant rate."""

    lr: float = 1e-4
    """η, the peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.99)
    """β_1 and β_2 of Adam, the decay rates of the two moments."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    clip_norm: float = 1.0
    """Gradient norm above which gradients are clipped, for a loss in nats per token."""
    warmup: float = 0.05
    """Share of tilt.max-steps over which the learning rate rises at the start of a phase."""
    decay: float = 0.2
    """Share of tilt.max-steps over which the learning rate falls at the end of a phase."""
    floor: float = 0.0
    """Lowest learning rate at the end of a phase, as a share of the peak."""
    batch: int = 128
    """Rollouts per step, each masked once or as often as the method needs. An iteration draws as many whole
    prompts as fit; a method of pairs counts two rollouts per prompt, the best and the worst."""
    micro_batch: int | None = None
    """Rows per forward pass; changes memory, never the gradient. None: as many as batch."""
    ema: float | None = None
    """Decay rate of the student's moving average, which then becomes the next π_a; none: no average."""

    def __post_init__(self) -> None:
        check_fields(
            "optimizer",
            self,
            lr=FINITE,
            weight_decay=NOT_NEGATIVE,
            clip_norm=POSITIVE,
            batch=AT_LEAST_ONE,
            micro_batch=AT_LEAST_ONE,
            floor=SHARE,
            ema=BETWEEN_0_AND_1,
        )
        require(all(0 <= b < 1 for b in self.betas), f"optimizer.betas must lie in [0, 1), got {self.betas}")
        require(
            min(self.warmup, self.decay) >= 0 and self.warmup + self.decay <= 1,
            f"optimizer.warmup + optimizer.decay must lie in [0, 1], got {self.warmup:g} + {self.decay:g}",
        )

    @property
    def rows(self) -> int:
        """Rows per forward pass."""
        return min(self.micro_batch or self.batch, self.batch)
