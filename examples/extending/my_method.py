# examples/extending/my_method.py
"""A method in one file: REINFORCE on the evidence lower bound."""

from dataclasses import dataclass

import dtm
from dtm.config import IteratingConfig
from dtm.masking import Planned, UniformCount
from dtm.methods.advantages import leave_one_out
from dtm.methods.surrogates import by_sequence, elbo, token_scores
from dtm.records import Loss


@dataclass(frozen=True, kw_only=True)
class MyConfig(IteratingConfig):
    """REINFORCE: raise the bound of completions that are better than the others of their prompt."""

    strength: float = 1.0
    """Factor on the loss."""
    draws: int = 2
    """Masks of each completion in an update."""


class MyMethod(dtm.Method):
    """Minimise −strength · mean of A_i ELBO_i / L."""

    Config = MyConfig
    loop = "iterate"
    knobs = ({"strength": 0.3}, {"strength": 3.0})  # tried by `dtm compare --tune`

    @property
    def rows_per_rollout(self):
        """Masked states per rollout; read by forecasts of time and memory."""
        return self.config.draws

    def credit(self, reward, group):
        """A_i: the reward minus the mean reward of the prompt's other completions."""
        return leave_one_out(reward, group)

    def masks(self, block, end_id):
        """Mask k positions of a completion, k uniform, `draws` times."""
        return Planned(UniformCount(self.config.draws), end_id)

    def loss(self, policy, states, weights, phase):
        """Divide by the size of the whole batch, so that micro-batches add up."""
        score = token_scores(policy.log_pi(states), states)
        bound = elbo(score, by_sequence(states.row_weight, states))
        sequences = states.batch_rows / states.draws
        value = -self.config.strength * (weights.credit * bound).sum() / (sequences * states.length)
        return Loss(value, {"bound": bound.detach().sum() / (sequences * states.length)})
