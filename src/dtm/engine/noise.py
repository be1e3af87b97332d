"""Noise that belongs to a row: each number is a hash of (seed, row, block, step, candidate, token).

Which rows share a batch, and when a row joins it, then changes no draw; and the same row can be decoded again
in another way with the very same noise. There is no generator to advance, so what is drawn from a vocabulary
of 126,464 need not be written to memory first: a compiler works it out where it is used, on every device
from the same bits. Draws are float32 or better whatever the model's precision.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from dtm.random import derived_seed

Place = tuple[int, int]
"""A row's number, and the block that it works on."""

NOWHERE = -1
"""In the place of a token, for a number that belongs to a candidate as a whole."""


def row_keys(seed: int, places: Sequence[Place], device: torch.device) -> Int32[Tensor, "S 2"]:
    """Two words for each row at its block, of 24 and of 32 bits."""
    seeds = [derived_seed(seed, "decoding", *place) for place in places]
    words = [(value >> 32, value & 0xFFFFFFFF) for value in seeds]
    return torch.tensor(words, dtype=torch.int64, device=device).reshape(-1, 2).to(torch.int32)


def candidate_keys(rows: Int32[Tensor, "S 2"], step: int, width: int) -> Int32[Tensor, "S M 2"]:
    """Two words for each of ``width`` candidates of a row at one step.

    The step is in both: candidates of two steps may share the first.
    """
    candidate = torch.arange(width, dtype=torch.int32, device=rows.device)
    first = _scrambled(_scrambled(rows[:, :1] ^ step) + candidate)
    return torch.stack([first, _scrambled(first ^ _scrambled(rows[:, 1:] + step))], dim=-1)


def uniform(keys: Int32[Tensor, "*N 2"]) -> Float[Tensor, "*N"]:
    """A number between 0 and 1 for each candidate."""
    return _fractions(_bits(keys, NOWHERE), torch.float32)


def exponential(keys: Int32[Tensor, "N 2"], vocab_size: int, dtype: torch.dtype) -> Float[Tensor, "N V"]:
    """A number with density e^{−x} for each token at each candidate: −log(1 − u)."""
    token = torch.arange(vocab_size, dtype=torch.int32, device=keys.device)
    return _fractions(_bits(keys[:, None], token), dtype).neg_().log1p_().neg_()


def _bits(keys: Int32[Tensor, "*N 2"], token: Int32[Tensor, " V"] | int) -> Int32[Tensor, "*M"]:
    """32 bits for each pair."""
    first, second = keys.unbind(-1)
    return _scrambled(_scrambled(token ^ first) + second)


def _fractions(bits: Int32[Tensor, "*N"], dtype: torch.dtype) -> Float[Tensor, "*N"]:
    """31 of the bits as a number above 0 and below 1; takes the bits' own memory.

    Floats are finest near 0, where the least of many exponential numbers is; the highest would round to 1.
    """
    whole = bits.bitwise_right_shift_(1).bitwise_and_(0x7FFFFFFF)
    return whole.to(dtype).add_(0.5).mul_(2.0**-31).clamp_(max=1 - torch.finfo(dtype).eps / 2)


def _scrambled(word: Int32[Tensor, "*N"]) -> Int32[Tensor, "*N"]:
    """A bijection of 32-bit words in which every bit of the result depends on every bit.

    Products wrap around. A shift to the right copies the sign, which the mask takes away. In place as far as
    it goes, for over a vocabulary each copy counts.
    """
    word = (word >> 16).bitwise_and_(0xFFFF).bitwise_xor_(word).mul_(0x7FEB352D)
    word = (word >> 15).bitwise_and_(0x1FFFF).bitwise_xor_(word).mul_(0x846CA68B - (1 << 32))
    return (word >> 16).bitwise_and_(0xFFFF).bitwise_xor_(word)
