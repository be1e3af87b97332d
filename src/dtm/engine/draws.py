"""Draw tokens and their scores from hidden states, in few passes over the vocabulary.

Over a vocabulary of 126,464 ten passes over the distributions take as long as the product that made them.
Each operation here is a pass or two unless they are fused. torch.compile fuses them for compiled models on a
GPU; elsewhere they run one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from dtm.engine.decoder import Decoder
from dtm.engine.noise import exponential, uniform
from dtm.engine.orders import Order
from dtm.models.denoiser import Denoiser, log_distribution

HEAD_ROWS = 1024
"""Positions whose distributions are in memory at a time: half a gigabyte for a vocabulary of 126,464."""
HELD = 2**26
"""Logits in memory at a time, for smaller vocabularies, which allow more positions."""


class Draws(NamedTuple):
    """One token drawn at each of C positions."""

    tokens: Int[Tensor, " C"]
    log_prob: Float[Tensor, " C"]
    """log π of the drawn token, at temperature 1."""
    score: Float[Tensor, " C"]
    """The order's score; the highest are revealed first."""
    peak: Float[Tensor, " C"]
    """Probability of the most likely token; only set if the decoder has a certainty."""


def head_rows(vocab_size: int) -> int:
    """Return how many positions have their distributions in memory at a time.

    >>> head_rows(126_464), head_rows(256)
    (1024, 262144)
    """
    return max(HEAD_ROWS, HELD // vocab_size)


def draw(
    model: Denoiser, decoder: Decoder, states: Float[Tensor, "C D"], keys: Int32[Tensor, "C 2"]
) -> Draws:
    """Draw a token from each hidden state with the noise of ``keys``."""
    size, step = head_rows(model.vocab_size), draw_function(model, states.device)
    parts = [
        step(
            model.head(states[first : first + size]),
            keys[first : first + size],
            (model.vocab_size, model.mask_id),
            decoder.temperature,
            decoder.order,
            decoder.certainty is not None,
        )
        for first in range(0, max(len(states), 1), size)
    ]
    if len(parts) == 1:
        return Draws(*parts[0])
    return Draws(*(torch.cat(values) for values in zip(*parts, strict=True)))


def draw_tokens(
    logits: Float[Tensor, "C W"],
    keys: Int32[Tensor, "C 2"],
    tokens: tuple[int, int],
    temperature: float,
    order: Order,
    peaks: bool,
) -> tuple[Int[Tensor, " C"], Float[Tensor, " C"], Float[Tensor, " C"], Float[Tensor, " C"]]:
    """Draw by the Gumbel-max rule, argmax of log π / τ − log E with exponential E; return `Draws`' fields.

    Temperature 0 takes the most likely token. ``tokens`` are the size of the vocabulary and the mask id;
    ``peaks`` asks for the highest probability.
    """
    log_pi, ranks = log_distribution(logits, *tokens), uniform(keys)
    if temperature == 0:
        drawn = log_pi.argmax(-1)
    else:
        noise = exponential(keys, tokens[0], log_pi.dtype)
        drawn = noise.log_().add_(log_pi, alpha=-1 / temperature).argmin(-1)
    log_prob = log_pi.gather(-1, drawn[:, None]).squeeze(-1)
    score = order.score(log_pi, drawn, ranks.to(log_pi.dtype))
    return drawn, log_prob.float(), score, log_pi.amax(-1).exp() if peaks else ranks


def draw_function(model: Denoiser, device: torch.device) -> Callable[..., tuple[Tensor, ...]]:
    """Return `draw_tokens`, compiled if the model is compiled and on a GPU."""
    return compiled() if model.compiled and device.type == "cuda" else draw_tokens


@cache
def compiled() -> Callable[..., tuple[Tensor, ...]]:
    """Return `draw_tokens` compiled: for the first number of positions, then for any number."""
    return torch.compile(draw_tokens)
