"""The decisions of the annealing loop as pure functions.

How far to tilt, how fast to learn, when a phase is over, when to measure, when to stop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from dtm import losses
from dtm.config import RunConfig, TiltConfig
from dtm.config.budget import MEASURED
from dtm.loop.progress import Progress

ROUNDING = 1e-6
"""What is no phase of its own, as a share of h."""


def next_step(tilt: float, final: float, step: float) -> float:
    """h, cut so that the last phase lands on A exactly; also after a resume.

    A remainder by rounding is no phase of its own: A = 6.6666667 is two steps of 10/3.
    """
    return step if final - tilt > step * (1 + ROUNDING) else final - tilt


def phases(final: float, step: float) -> int:
    """How many steps of h it takes from 0 to A by `next_step`."""
    return max(1, math.ceil(final / step - ROUNDING))


def phase_steps(config: RunConfig) -> int:
    """Steps after which a phase ends in any case: the limit, or μ, the updates of a baseline's iteration."""
    baseline = config.objective.baseline
    return config.tilt.max_steps if baseline is None else baseline.updates


def phase_prompts(config: RunConfig) -> int:
    """Prompts of a phase's buffer; of a baseline's iteration as many as fit a batch.

    So every update of an iteration sees all of its rollouts, or of each prompt those that it looks at.
    """
    if config.objective.baseline is None:
        return config.replay.prompts
    return config.optimizer.batch // config.completions_seen


def final_tilt(config: RunConfig) -> float:
    """A, or the number of a baseline's iterations; with a budget there is none, and the budget decides."""
    return config.tilt.final if config.budget is None else math.inf


def choose_step(config: TiltConfig, reward: Float[Tensor, " N"]) -> float:
    """h of a phase: fixed, or the largest that keeps ESS at the target.

    Equal rewards keep ESS at 1 for every h and carry no signal, so auto falls back to its cap.
    """
    if config.step == "auto":
        return losses.step_for_ess(reward.double(), config.ess, config.step_cap)
    return config.step


def cooling_steps(config: RunConfig) -> int:
    """Steps over which the learning rate falls at a phase's end."""
    return round(config.optimizer.decay * config.tilt.max_steps)


def begins_to_cool(config: RunConfig, phase_step: int, surely_absorbed: float) -> bool:
    """Whether a phase starts to end: enough is absorbed, or the step limit leaves just the cooling.

    A baseline's iteration does not cool.
    """
    if config.objective.baseline is not None:
        return False
    return surely_absorbed >= config.tilt.absorbed or phase_step >= config.tilt.max_steps - cooling_steps(
        config
    )


def phase_is_over(config: RunConfig, phase_step: int, cooling_from: int | None) -> bool:
    """Whether a phase has cooled down, or spent all its steps."""
    cooled = cooling_from is not None and phase_step >= cooling_from + cooling_steps(config)
    return cooled or phase_step >= phase_steps(config)


def lr_factor(config: RunConfig, phase_step: int, cooling_from: int | None) -> float:
    """The learning rate as a fraction of its peak: rise, hold, and fall once the phase is ending.

    Step 0 is the first. Ending a phase at full learning rate would hand its noise on to the next π_a.
    A baseline learns at a constant rate. At the end of a budget both cool (`budget.cooling_factor`).
    """
    if config.objective.baseline is not None:
        return 1.0
    warmup = round(config.optimizer.warmup * config.tilt.max_steps)
    rise = min(1.0, (phase_step + 1) / max(warmup, 1))
    if cooling_from is None:
        return rise
    left = max(0.0, 1 - (phase_step - cooling_from) / max(cooling_steps(config), 1))
    floor = config.optimizer.floor
    return rise * (floor + (1 - floor) * left)


def is_to_be_measured(config: RunConfig, progress: Progress, spent: float) -> bool:
    """Whether π_a is measured between phases; ``spent`` is the share of the budget, 0 without one.

    The last is, and others so many phases or so much of the budget after the one before; none twice.
    """
    evaluations = progress.evaluations
    if evaluations and evaluations[-1]["tilt"] == progress.tilt:
        return False
    if spent >= 1 or _has_arrived(config, progress):
        return True
    if config.budget is None or not evaluations:
        return progress.phase % config.evaluation.every == 0
    return spent >= progress.measured_at + MEASURED


def reason_to_stop(config: RunConfig, progress: Progress, spent: float) -> str | None:
    """Why a run ends between phases, in words; None: it goes on."""
    tilt = config.tilt
    if spent >= 1:
        return f"spent its budget of {config.budget}"
    if _has_arrived(config, progress):
        if config.objective.baseline is not None:
            return f"went through {progress.phase} iterations"
        return f"reached the final tilt A = {tilt.final:g}"
    if has_plateaued([row["reward"] for row in progress.evaluations], tilt.patience):
        return f"held-out reward has not risen for {tilt.patience} evaluations"
    return None


def has_plateaued(rewards: Sequence[float], patience: int | None) -> bool:
    """Whether the last ``patience`` evaluations have brought no mean reward above the best one before."""
    if patience is None or len(rewards) <= patience:
        return False
    return max(rewards[-patience:]) <= max(rewards[:-patience])


def _has_arrived(config: RunConfig, progress: Progress) -> bool:
    """Whether there is no tilt left to go."""
    return progress.tilt >= final_tilt(config) - 1e-9
