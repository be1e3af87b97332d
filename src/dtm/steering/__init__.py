"""Steering at inference time: the same reward, without training.

steer      best-of-n, SMC and Gibbs sweeps as settings, and the call that runs them
smc        the sweep over blocks
values     estimates of an unfinished row's value
weights    effective numbers and ancestors
best_of    the law of best-of-n
reference  the mean reward of the tilted law
"""

from dtm.steering.sampler import Effort, Judge
from dtm.steering.steer import SMC, BestOf, Steered, Steering, parse_steering, steer

__all__ = ["SMC", "BestOf", "Effort", "Judge", "Steered", "Steering", "parse_steering", "steer"]
