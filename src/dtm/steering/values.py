r"""Estimates of the value of an unfinished row, V(x_s) ≈ E[e^{a r(x_T)} | x_s].

    one-shot  K completions with all masked positions drawn at once, given x_s: one forward pass
    greedy    the most likely token at every masked position: one forward pass, one reward
    rollout   K completions by the decoder itself: as many passes as it takes to finish

The law of the output is exact for any positive estimate, also for a random one, if the weight of a particle
is divided by the same number that it was multiplied by. Better estimates lower the variance. One-shot
completions of a mostly masked row rarely earn a 0/1 reward: they guide only late blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from dtm.engine.draws import draw
from dtm.engine.noise import candidate_keys, row_keys
from dtm.errors import nearest, require
from dtm.padding import where_padded
from dtm.records import Completions
from dtm.steering.sampler import Sampler


class Unfinished(NamedTuple):
    """Rows of a canvas whose first blocks are decoded."""

    canvas: Completions
    rows: Sequence[int]
    prompts: Sequence[int]
    """Number of each row's prompt."""
    block: int
    """The last decoded block."""


@runtime_checkable
class Values(Protocol):
    """Estimator of log V of unfinished rows."""

    def __call__(
        self, sampler: Sampler, unfinished: Unfinished, tilt: float, seed: int
    ) -> Float[Tensor, " R"]:
        """Return log V of the rows. Noise comes from the seed, the block and a row's number."""
        ...


def soft_value(reward: Float[Tensor, "R K"], tilt: float) -> Float[Tensor, " R"]:
    r"""log V̂ = log (1/K) Σ_j e^{a r(y_j)}, over the completions y_j that have a reward; 0 where none has.

    >>> soft_value(torch.tensor([[0.0, 1.0], [2.0, torch.nan]]), 1.0)
    tensor([0.6201, 2.0000], dtype=torch.float64)
    """
    given = ~reward.isnan()
    total = (tilt * reward.double()).masked_fill(~given, -torch.inf).logsumexp(1)
    return torch.where(given.any(1), total - given.sum(1).double().log(), 0.0)


@final
@dataclass(frozen=True, slots=True)
class OneShot:
    """Value from K completions that fill all masked positions at once, after one pass."""

    draws: int = 4
    """K."""
    greedy: bool = False
    """Take the most likely tokens instead, once."""

    def __call__(
        self, sampler: Sampler, unfinished: Unfinished, tilt: float, seed: int
    ) -> Float[Tensor, " R"]:
        """Return log V of the rows; one forward pass and K rewards each."""
        canvas, rows, prompts, block = unfinished
        draws = 1 if self.greedy else self.draws
        decoder = replace(sampler.decoder, temperature=0.0) if self.greedy else sampler.decoder
        filled = canvas.select([row for row in rows for _ in range(draws)])
        for first in range(0, len(rows), sampler.batch):
            sampler.between()
            part = rows[first : first + sampler.batch]
            own = canvas.select(part)
            masked = own.is_completion & (own.tokens == sampler.model.mask_id)
            flat = masked.flatten().nonzero().squeeze(1)
            states = sampler.model(own.tokens, where_padded(own.attention), flat, head=False)
            number = torch.tensor(part, device=flat.device)
            for each in range(draws):
                keys = row_keys(seed, number * draws + each, torch.full_like(number, block))
                noise = candidate_keys(keys, torch.zeros_like(number), masked.shape[1]).flatten(0, 1)[flat]
                place = slice(first * draws + each, (first + len(part)) * draws, draws)
                filled.tokens[place][masked] = draw(sampler.model, decoder, states, noise).tokens
        sampler.effort.forwards += len(rows)
        asked = [prompt for prompt in prompts for _ in range(draws)]
        return soft_value(sampler.rewards(filled, asked).view(len(rows), draws), tilt)


@final
@dataclass(frozen=True, slots=True)
class Rollout:
    """Value from K completions of each row by the decoder."""

    draws: int = 4
    """K."""

    def __call__(
        self, sampler: Sampler, unfinished: Unfinished, tilt: float, seed: int
    ) -> Float[Tensor, " R"]:
        """Return log V of the rows; K rewards each, and the forward passes of K completions."""
        canvas, rows, prompts, block = unfinished
        copies = canvas.select([row for row in range(len(canvas)) for _ in range(self.draws)])
        chosen = list(_copies(rows, self.draws))
        sampler.decode(copies, chosen, block + 1, None, seed)
        asked = [prompt for prompt in prompts for _ in range(self.draws)]
        return soft_value(sampler.rewards(copies.select(chosen), asked).view(len(rows), self.draws), tilt)


def _copies(rows: Sequence[int], draws: int) -> Iterator[int]:
    for row in rows:
        yield from range(row * draws, (row + 1) * draws)


VALUES = ("one-shot", "greedy", "rollout")


def build_values(name: str, draws: int) -> Values:
    """Return the estimator of a name, with ``draws`` completions per value."""
    require(name in VALUES, f"no value estimate {name!r}. {nearest(name, VALUES)}")
    require(draws >= 1, f"--draws must be at least 1 completion for a value, got {draws}")
    return Rollout(draws) if name == "rollout" else OneShot(draws, greedy=name == "greedy")
