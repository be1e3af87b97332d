"""Noise of each row: every number is a hash of (seed, row, block, step, candidate, token).

A candidate is a position of the block, counted from the block's start; a step is counted from there too.
Which rows share a batch, and when a row joins it, changes no draw, and a row can be decoded again in another
way with the same noise. There is no generator to advance, so noise over a vocabulary of 126,464 need not be
written to memory: a compiler computes it where it is used, on every device from the same bits. Draws are
float32 or better whatever the model's precision: Gumbel noise of bfloat16 uniforms is capped at 5.5 and never
draws the tail (docs/method.md, section 7).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from dtm.random import derived_seed

NO_TOKEN = -1
"""Token number in the hash for noise that belongs to a candidate, not to one token."""


def row_keys(seed: int, row: Int[Tensor, " S"], block: Int[Tensor, " S"]) -> Int32[Tensor, "S 2"]:
    """Return two 32-bit words for each row at its block."""
    high, low = divmod(derived_seed(seed, "decoding"), 1 << 32)
    row, block = row.to(torch.int32), block.to(torch.int32)
    first = _scramble(_scramble(row ^ high) + block)
    second = _scramble(_scramble(row + (low - (1 << 31))) ^ block)
    return torch.stack([first, second], dim=-1)


def candidate_keys(rows: Int32[Tensor, "S 2"], step: Int[Tensor, " S"], width: int) -> Int32[Tensor, "S B 2"]:
    """Return two words for each of ``width`` candidates of a row at its step.

    Both words depend on the step: candidates of two steps may share the first.
    """
    candidate = torch.arange(width, dtype=torch.int32, device=rows.device)
    at = step.to(torch.int32)[:, None]
    first = _scramble(_scramble(rows[:, :1] ^ at) + candidate)
    return torch.stack([first, _scramble(first ^ _scramble(rows[:, 1:] + at))], dim=-1)


def uniform(keys: Int32[Tensor, "*N 2"]) -> Float[Tensor, "*N"]:
    """Return a number between 0 and 1 for each candidate."""
    return _fractions(_bits(keys, NO_TOKEN), torch.float32)


def exponential(keys: Int32[Tensor, "N 2"], vocab_size: int, dtype: torch.dtype) -> Float[Tensor, "N V"]:
    """Return a number with density e^{−x} for each token at each candidate: −log(1 − u)."""
    token = torch.arange(vocab_size, dtype=torch.int32, device=keys.device)
    return _fractions(_bits(keys[:, None], token), dtype).neg_().log1p_().neg_()


def _bits(keys: Int32[Tensor, "*N 2"], token: Int32[Tensor, " V"] | int) -> Int32[Tensor, "*M"]:
    """Return 32 bits for each pair of a candidate and a token."""
    first, second = keys.unbind(-1)
    return _scramble(_scramble(token ^ first) + second)


def _fractions(bits: Int32[Tensor, "*N"], dtype: torch.dtype) -> Float[Tensor, "*N"]:
    """Return 31 of the bits as a number above 0 and below 1; overwrites the bits.

    Floats are finest near 0, where the least of many exponential numbers is; the highest would round to 1.
    """
    whole = bits.bitwise_right_shift_(1).bitwise_and_(0x7FFFFFFF)
    return whole.to(dtype).add_(0.5).mul_(2.0**-31).clamp_(max=1 - torch.finfo(dtype).eps / 2)


def _scramble(word: Int32[Tensor, "*N"]) -> Int32[Tensor, "*N"]:
    """Apply a bijection of 32-bit words in which every output bit depends on every input bit.

    Products wrap around. A shift to the right copies the sign, which the mask removes. Operations are in
    place where possible: over a vocabulary each copy counts.
    """
    word = (word >> 16).bitwise_and_(0xFFFF).bitwise_xor_(word).mul_(0x7FEB352D)
    word = (word >> 15).bitwise_and_(0x1FFFF).bitwise_xor_(word).mul_(0x846CA68B - (1 << 32))
    return (word >> 16).bitwise_and_(0xFFFF).bitwise_xor_(word)
