"""From logits to a drawn token, its score and the peak, at each position: pure, in few passes over V.

Over a vocabulary of 126,464 ten passes over the distributions take as long as the product that made them.
Each operation here is a pass or two unless they are fused, which torch.compile does for models that are
compiled on a GPU; elsewhere it is plain arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from dtm.engine.noise import exponential, uniform
from dtm.engine.orders import Order
from dtm.models.denoiser import Denoiser, log_distribution

Looked = tuple[Int[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, " N"]]
"""Tokens, their scores, and the probability of the likeliest token (or nothing in particular)."""


def look(
    logits: Float[Tensor, "N W"],
    keys: Int32[Tensor, "N 2"],
    tokens: tuple[int, int],
    temperature: float,
    order: Order,
    peaks: bool,
) -> Looked:
    """Draw by the Gumbel-max rule, argmax of log π / τ − log E with exponential E, and score what is drawn.

    At temperature 0 the likeliest token is taken. Noise is that of the ``keys``; ``tokens`` are the size of
    the vocabulary and the mask.
    """
    log_pi, ranks = log_distribution(logits, *tokens), uniform(keys)
    if temperature == 0:
        drawn = log_pi.argmax(-1)
    else:
        noise = exponential(keys, tokens[0], log_pi.dtype)
        drawn = noise.log_().add_(log_pi, alpha=-1 / temperature).argmin(-1)
    score = order.score(log_pi, drawn, ranks.to(log_pi.dtype))
    return drawn, score, log_pi.amax(-1).exp() if peaks else ranks


def look_for(denoiser: Denoiser, device: torch.device) -> Callable[..., Looked]:
    """The fused form for models that are compiled on a GPU, the plain one for others."""
    return fused() if denoiser.compiled and device.type == "cuda" else look


@cache
def fused() -> Callable[..., Looked]:
    """`look`, compiled: for one number of positions first, and as soon as that changes for any."""
    return torch.compile(look)
