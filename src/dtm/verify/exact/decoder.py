"""The exact law of a decoder: propagate the probability mass of every masked state step by step.

Each step enumerates the tokens that could be drawn at all candidates and every ranking of the noise,
and scores them with the decoder's own order. Ties, which random worlds do not have, go to the left position.
"""

from __future__ import annotations

import itertools
import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.engine.decoder import Decoder, quotas
from dtm.verify.exact.world import all_sequences, number


def decoder_law(
    table: Float[Tensor, "S L V"], decoder: Decoder, prompts: Float[Tensor, " P"] | None = None
) -> Float[Tensor, " N"]:
    """Return the probability of every sequence when π_θ = ``table`` is decoded.

    ``prompts`` is P(p) for every sequence of given leading tokens; by default nothing is given.
    """
    _, length, vocab = table.shape
    prompts = torch.ones(1, dtype=torch.float64) if prompts is None else prompts
    width = round(math.log(len(prompts), vocab))
    start = torch.full((len(prompts), length), vocab)
    start[:, :width] = all_sequences(vocab, width)
    mass = torch.zeros(len(table), dtype=torch.float64).index_add(0, number(start, vocab + 1), prompts)
    size = decoder.block or length - width
    for first in range(width, length, size):
        block = list(range(first, min(first + size, length)))
        for quota in quotas(len(block), decoder.tokens_per_step):
            mass = _step(mass, table, block, quota, decoder)
    return mass[number(all_sequences(vocab, length), vocab + 1)]


def _step(
    mass: Float[Tensor, " S"], table: Float[Tensor, "S L V"], block: list[int], quota: int, decoder: Decoder
) -> Float[Tensor, " S"]:
    """Propagate one forward pass and its reveals, for every set of masked positions."""
    _, length, vocab = table.shape
    sequences = all_sequences(vocab, length)
    # Later blocks are masked, whatever their tokens become: one representative of each is enough.
    sequences = sequences[(sequences[:, block[-1] + 1 :] == 0).all(1)]
    finished = sequences.clone()
    finished[:, block[-1] + 1 :] = vocab
    moved = torch.zeros_like(mass)
    state = number(finished, vocab + 1)
    moved[state] = mass[state]
    for k in range(1, len(block) + 1):
        for candidates in itertools.combinations(block, k):
            x_t = finished.clone()
            x_t[:, list(candidates)] = vocab
            if mass[number(x_t, vocab + 1)].any():
                _reveal(moved, mass, table, x_t, sequences, list(candidates), quota, decoder)
    return moved


def _reveal(
    moved: Float[Tensor, " S"],
    mass: Float[Tensor, " S"],
    table: Float[Tensor, "S L V"],
    x_t: Int[Tensor, "N L"],
    drawn: Int[Tensor, "N L"],
    candidates: list[int],
    quota: int,
    decoder: Decoder,
) -> None:
    """Add to ``moved`` the mass of states x_t, each followed by each possible draw at its candidates."""
    k, vocab = len(candidates), table.shape[2]
    state, tokens = number(x_t, vocab + 1), drawn[:, candidates]
    log_pi = table[state][:, candidates].clamp(min=1e-300).log()
    draw = _draw_probability(log_pi, tokens, decoder.temperature)
    certain = torch.zeros_like(tokens, dtype=torch.bool)
    if decoder.certainty is not None:
        certain = log_pi.amax(-1).exp() >= decoder.certainty
    rankings = list(itertools.permutations(range(k)))
    for ranking in rankings:
        noise = (torch.tensor(ranking, dtype=torch.float64) + 0.5) / k
        noise = noise.expand(tokens.shape).flatten()
        score = decoder.order.score(log_pi.flatten(0, 1), tokens.flatten(), noise).view(tokens.shape)
        chosen = _best(score, min(quota, k)) | certain
        after = x_t.clone()
        after[:, candidates] = torch.where(chosen, tokens, vocab)
        moved.index_add_(0, number(after, vocab + 1), mass[state] * draw / len(rankings))


def _draw_probability(
    log_pi: Float[Tensor, "N K V"], tokens: Int[Tensor, "N K"], temperature: float
) -> Float[Tensor, " N"]:
    """Return the probability of drawing these tokens at all candidates."""
    if temperature == 0:
        return (log_pi.argmax(-1) == tokens).all(1).double()
    tempered = (log_pi / temperature).log_softmax(-1)
    return tempered.gather(-1, tokens[..., None]).squeeze(-1).sum(1).exp()


def _best(score: Float[Tensor, "N K"], quota: int) -> Bool[Tensor, "N K"]:
    """Return the positions of the highest scores per row."""
    best = score.sort(dim=1, descending=True, stable=True).indices[:, :quota]
    return torch.zeros_like(score, dtype=torch.bool).scatter(1, best, True)
