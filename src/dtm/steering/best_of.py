r"""Best-of-n: the completion with the highest reward among n draws, its law and its KL to the model.

For a law ρ and n independent draws, with F(t) = ρ(r ≤ t) and F(t−) = ρ(r < t),

    P[best = x] = ρ(x) (F(r(x))ⁿ − F(r(x)−)ⁿ) / (F(r(x)) − F(r(x)−)),    KL(best ‖ ρ) ≤ log n − (n − 1) / n.

With a 0/1 reward that ρ earns with probability p, the best of n earns it with 1 − (1 − p)ⁿ. The soft form
draws one of the n in proportion to e^{a r}: a tilt by less than a, since its weight is at most n.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dtm.random import derived_seed
from dtm.records import Completions
from dtm.steering.particles import Particles
from dtm.steering.sampler import Sampler
from dtm.steering.weights import log_mean


def complete(sampler: Sampler, canvas: Completions, n: int, tilt: float, seed: int) -> Particles:
    """Complete the rows of a masked canvas, ``n`` for each prompt, and weigh each by e^{a r}."""
    sampler.decode(canvas, None, 0, None, derived_seed(seed, "particles"))
    reward = sampler.rewards(canvas, [row // n for row in range(len(canvas))])
    log_value = (tilt * reward).nan_to_num(nan=-torch.inf)
    log_weight, ended = log_value.view(-1, n), torch.zeros_like(log_value, dtype=torch.long)
    particles = Particles(canvas, log_value, reward, ended, log_weight, log_mean(log_weight))
    particles.require_rewards()
    return particles


def best_of_law(law: Float[Tensor, " N"], reward: Float[Tensor, " N"], n: int) -> Float[Tensor, " N"]:
    """Return P[best = x] for every x, from the law of one draw; of equal rewards the first draw wins.

    >>> best_of_law(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.0, 1.0, 1.0]), 2)
    tensor([0.2500, 0.3750, 0.3750])
    """
    below = torch.stack([law[reward < r].sum() for r in reward])
    equal = torch.stack([law[reward == r].sum() for r in reward])
    return law * ((below + equal) ** n - below**n) / equal


def kl_bound(n: int) -> float:
    """Return the bound log n − (n − 1) / n on KL(best ‖ ρ), in nats.

    >>> kl_bound(1), round(kl_bound(16), 3)
    (0.0, 1.835)
    """
    return math.log(n) - (n - 1) / n
