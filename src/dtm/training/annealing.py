"""The decisions of the annealing loop as pure functions: how far to tilt, how fast to learn, when to stop."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from dtm import tilting
from dtm.training.config import TiltConfig


def next_step(tilt: float, final: float, step: float) -> float:
    """h, cut so that the last phase lands on A exactly; also after a resume."""
    return min(step, final - tilt)


def choose_step(config: TiltConfig, tilt: float, reward: Float[Tensor, " N"]) -> float:
    """h of the phase that starts at ``tilt``: fixed, or the largest that keeps ESS at the target.

    Equal rewards keep ESS at 1 for every h and carry no signal, so auto falls back to its cap.
    """
    if config.step == "auto":
        step = tilting.step_for_ess(reward.double(), config.ess, config.step_cap)
    else:
        step = config.step
    return next_step(tilt, config.final, step)


def lr_factor(step: int, warmup: int, cooling_from: int | None, cooling: int) -> float:
    """The learning rate as a fraction of its peak: rise, hold, and fall once the phase is ending.

    Step 0 is the first. The fall over ``cooling`` steps starts at ``cooling_from``, which is known only
    once enough is absorbed or the step limit is near.
    """
    rise = min(1.0, (step + 1) / max(warmup, 1))
    if cooling_from is None or cooling == 0:
        return rise
    return rise * max(0.0, 1 - (step - cooling_from) / cooling)


def has_plateaued(rewards: Sequence[float], patience: int | None) -> bool:
    """Whether the last ``patience`` phases have brought no mean reward above the best one before."""
    if patience is None or len(rewards) <= patience:
        return False
    return max(rewards[-patience:]) <= max(rewards[:-patience])
