r"""Enumerable worlds: a law ρ on V^L and a reward, with tilts and posteriors by Bayes' rule.

Letters: N = V^L sequences, S = (V + 1)^L masked states (the digit V is the mask, numbered as in
`dtm.verify.tabular`), P prompts. The first ``prompt`` positions of a sequence are given, never masked:
a world with several prompts is one joint law P(p) ρ_p(x).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from dtm.models.denoiser import EXCLUDED
from dtm.random import stream
from dtm.verify.tabular import Tabular


def all_sequences(symbols: int, length: int) -> Int[Tensor, "N L"]:
    """Return every sequence over ``symbols`` symbols, sorted as numbers in that base."""
    place = symbols ** torch.arange(length - 1, -1, -1)
    return torch.arange(symbols**length)[:, None] // place % symbols


def number(tokens: Int[Tensor, "*B L"], symbols: int) -> Int[Tensor, "*B"]:
    """Return the row of each sequence in `all_sequences`."""
    return (tokens * symbols ** torch.arange(tokens.shape[-1] - 1, -1, -1)).sum(-1)


@lru_cache(maxsize=8)
def _compatible(vocab: int, length: int) -> Float[Tensor, "S N"]:
    """Return 1 where a sequence agrees with the revealed tokens of a state."""
    states, sequences = all_sequences(vocab + 1, length), all_sequences(vocab, length)
    match = torch.ones(len(states), len(sequences), dtype=torch.bool)
    for i in range(length):
        match &= (states[:, None, i] == vocab) | (states[:, None, i] == sequences[None, :, i])
    return match.double()


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """A law on all sequences and a reward for each."""

    vocab: int
    length: int
    log_prob: Float[Tensor, " N"]
    """log ρ(x) for every sequence, in the order of `all_sequences`."""
    reward: Float[Tensor, " N"]
    """r(x)."""
    prompt: int = 0
    """Number of leading positions that are given."""

    @property
    def prob(self) -> Float[Tensor, " N"]:
        """ρ(x)."""
        return self.log_prob.exp()

    @property
    def sequences(self) -> Int[Tensor, "N L"]:
        """Every x_1."""
        return all_sequences(self.vocab, self.length)

    @property
    def states(self) -> Int[Tensor, "S L"]:
        """Every x_t; the mask is the symbol ``vocab``."""
        return all_sequences(self.vocab + 1, self.length)

    @property
    def reward_range(self) -> float:
        """The largest reward minus the smallest."""
        return float(self.reward.max() - self.reward.min())

    def by_prompt(self, values: Float[Tensor, " N"]) -> Float[Tensor, "P C"]:
        """Values of all sequences, one row for every prompt."""
        return values.view(self.vocab**self.prompt, -1)

    def log_prompt(self) -> Float[Tensor, " P"]:
        """log P(p)."""
        return self.by_prompt(self.log_prob).logsumexp(1)

    def log_prob_given_prompt(self) -> Float[Tensor, " N"]:
        """log ρ_p(x)."""
        return self.by_prompt(self.log_prob).log_softmax(1).flatten()

    def log_z(self, h: float) -> float:
        """log Z = log E[e^{hr}] over prompts and completions."""
        return float((self.log_prob + h * self.reward).logsumexp(0))

    def tilted(self, h: float) -> World:
        """Return the world of ρ_{1,a+h} ∝ ρ_{1,a} e^{hr} [eq. 8], for each prompt; P(p) does not change."""
        within = self.by_prompt(self.log_prob + h * self.reward).log_softmax(1)
        return replace(self, log_prob=(within + self.log_prompt()[:, None]).flatten())

    def jointly_tilted(self, h: float) -> World:
        """Return the tilt of the joint law, with prompts in proportion to P(p) Z_p."""
        return replace(self, log_prob=(self.log_prob + h * self.reward).log_softmax(0))

    def state_mass(self) -> Float[Tensor, " S"]:
        """The probability that x_1 agrees with each state's revealed tokens."""
        return _compatible(self.vocab, self.length) @ self.prob

    def given_state(self, values: Float[Tensor, "N ..."]) -> Float[Tensor, "S ..."]:
        """Return E[f(x_1) | x_t] for every state; 0 if the state cannot occur."""
        weighted = self.prob[:, None] * values.reshape(len(values), -1)
        total = _compatible(self.vocab, self.length) @ weighted
        mean = total / self.state_mass().clamp(min=torch.finfo(torch.float64).tiny)[:, None]
        return mean.view(-1, *values.shape[1:])

    def posterior(self) -> Float[Tensor, "S L V"]:
        """π(v | x_t, i) = P[x_1^i = v | x_t]; revealed positions hold their own token."""
        return self.given_state(F.one_hot(self.sequences, self.vocab).double())

    def denoiser(self) -> Tabular:
        """Return the exact posterior as a model."""
        return denoiser(self.posterior())

    def entropy(self) -> float:
        """−E[log ρ_p(x)], in nats."""
        return -float((self.prob * self.log_prob_given_prompt()).sum())


def denoiser(table: Float[Tensor, "S L V"]) -> Tabular:
    """Return the model whose π_θ is the given table."""
    return Tabular(torch.where(table > 0, table.log(), EXCLUDED))


# ── random worlds ────────────────────────────────────────────────────────────────────────────────

Reward = Callable[[Int[Tensor, "N L"], float, torch.Generator], Float[Tensor, " N"]]


def _uniforms(count: int, generator: torch.Generator) -> Float[Tensor, " N"]:
    return torch.rand(count, generator=generator, dtype=torch.float64)


def _success(sequences: Int[Tensor, "N L"], rate: float, generator: torch.Generator) -> Float[Tensor, " N"]:
    draw = _uniforms(len(sequences), generator)
    threshold = draw.sort().values[max(1, round(rate * len(draw))) - 1]
    return (draw <= threshold).double()


def _fraction(sequences: Int[Tensor, "N L"], rate: float, generator: torch.Generator) -> Float[Tensor, " N"]:
    solution = sequences[torch.randint(len(sequences), (1,), generator=generator)]
    return 2 * (sequences == solution).double().mean(1)


def _maze(sequences: Int[Tensor, "N L"], rate: float, generator: torch.Generator) -> Float[Tensor, " N"]:
    valid = _success(sequences, rate, generator) > 0
    return torch.where(valid, _uniforms(len(sequences), generator), -0.4)


REWARDS: dict[str, Reward] = {
    "dense": lambda sequences, rate, generator: _uniforms(len(sequences), generator),
    "binary": _success,
    "sudoku": _fraction,
    "maze": _maze,
    "sign": lambda sequences, rate, generator: 2 * _success(sequences, rate, generator) - 1,
}
"""Reward kinds: [0, 1]; 0/1; twice the share of right cells; −0.4 or [0, 1]; ±1. ``rate`` is the share
of sequences that succeed."""


def random_world(
    vocab: int,
    length: int,
    seed: int,
    reward: str = "dense",
    *,
    prompt: int = 0,
    rate: float = 0.2,
    copies: int | None = None,
    spread: float = 2.0,
) -> World:
    """Draw a world with log-probabilities of standard deviation ``spread``.

    With ``copies`` every probability is a multiple of 1/copies, so that a buffer of that many rows is
    the law itself, exactly.
    """
    generator = stream(seed, "world")
    sequences = all_sequences(vocab, length)
    logits = spread * torch.randn(len(sequences), generator=generator, dtype=torch.float64)
    log_prob = logits.log_softmax(0)
    if copies is not None:
        spare = torch.multinomial(log_prob.exp(), copies - len(sequences), True, generator=generator)
        log_prob = ((1 + torch.bincount(spare, minlength=len(sequences))).double() / copies).log()
    return World(vocab, length, log_prob, REWARDS[reward](sequences, rate, generator), prompt)
