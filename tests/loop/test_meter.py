"""The progress meter against a world in which both laws are known: two independent positions, four tokens.

`reading` is the only function here that knows how the meter is called.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtm.config import RunConfig
from dtm.config.registry import load_method_class
from dtm.loop.learner import Learner
from dtm.loop.policies import make_loop
from dtm.loop.replay import Replay
from dtm.masking import MaskCount
from dtm.models import Denoiser, Policy
from dtm.models.placement import Placement
from dtm.random import stream
from dtm.records import Rollouts

TOKENS, H = 4, 0.5
REWARD = torch.tensor([0.0, 0.3, 0.7, 1.0])
BASE = torch.tensor([0.4, 0.3, 0.2, 0.1])
"""π_a of a position; groups of multiples of a hundred can have exactly its proportions."""


class Independent(Denoiser):
    """The same law of a token at every position, whatever the others are."""

    def __init__(self, law: torch.Tensor) -> None:
        super().__init__()
        self.vocab_size, self.mask_id, self.eos_id = TOKENS + 1, TOKENS, 0
        self.logits = nn.Parameter(torch.cat([law.log(), torch.zeros(1)]))

    def hidden(self, tokens, attention=None):
        return self.logits.expand(*tokens.shape, -1)

    def head(self, rows):
        return rows


def tilted(h: float) -> torch.Tensor:
    """π_{a+h} of a position, exactly: the reward is a sum over positions."""
    return (BASE.log() + h * REWARD).softmax(0)


def policy(student: torch.Tensor) -> Policy:
    made = Policy(Independent(BASE))
    made.student.logits.data[:TOKENS] = student.log()
    return made


def rollouts(prompts: int, completions: int, seed: int | None = None) -> Rollouts:
    """Completions of two tokens: in the proportions of π_a, or drawn from it."""
    if seed is None:
        pairs = torch.cartesian_prod(torch.arange(TOKENS), torch.arange(TOKENS))
        times = (completions * BASE[pairs].prod(1)).round().long()
        written = pairs.repeat_interleave(times, 0).repeat(prompts, 1)
    else:
        drawn = torch.multinomial(BASE, 2 * prompts * completions, True, generator=stream(seed, "tokens"))
        written = drawn.view(-1, 2)
    tokens = torch.cat([torch.zeros_like(written[:, :1]), written], 1)
    is_completion = torch.tensor([False, True, True]).expand(tokens.shape)
    steps = torch.tensor([-1, 0, 1]).expand(tokens.shape)
    group = torch.arange(prompts).repeat_interleave(completions)
    nothing = torch.zeros(tokens.shape)
    reward, seen = REWARD[written].sum(1), torch.ones_like(is_completion)
    return Rollouts(tokens, seen, is_completion, steps, nothing, reward, group, 0.0)


def reading(student: torch.Tensor, fresh: Rollouts, buffer: Rollouts) -> tuple[float, float | None]:
    """The absorbed fraction of a student, and its standard error."""
    config = RunConfig(device="cpu")
    method = load_method_class("c-dtm")(config.method)
    loop, placement = make_loop(config, method), Placement.resolve("cpu")
    learner = Learner(config, policy(student), method, loop, MaskCount(), 1.0, placement)
    found = learner.absorbed(Replay(buffer, H, method.prompt_baseline, method.credit), fresh, step=0)
    assert found is not None
    return found


@pytest.mark.parametrize("tilt", [0.0, 0.25, H, 2 * H, -H])
def test_the_meter_reads_the_share_of_the_kl_that_is_gone(tilt):
    """1 − KL(π_{a+h} ‖ π_θ) / KL(π_{a+h} ‖ π_a): 0 untrained, 1 if perfect, negative if π_θ goes away."""
    target, student = tilted(H), tilted(tilt)
    left, whole = ((target * (target / law).log()).sum() for law in (student, BASE))
    found, _ = reading(student, rollouts(4, 200), rollouts(4, 200))
    assert found == pytest.approx(float(1 - left / whole), abs=0.12)


def test_the_error_of_the_meter_is_the_spread_of_its_readings():
    found = [reading(tilted(0.25), rollouts(10, 10, seed), rollouts(2, 100)) for seed in range(30)]
    values, errors = (torch.tensor(column) for column in zip(*found, strict=True))
    assert float(errors.mean()) == pytest.approx(float(values.std()), rel=0.4)


def test_a_single_prompt_has_no_error():
    assert reading(tilted(H), rollouts(1, 100), rollouts(2, 100))[1] is None
