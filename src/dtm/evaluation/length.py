"""Lengths of completions: tokens before the end token, as the published tables count them."""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor


def effective_lengths(completions: Int[Tensor, "N C"], eos_id: int) -> Int[Tensor, " N"]:
    """Count the tokens of each completion before its first end token; without one, all tokens.

    >>> import torch
    >>> effective_lengths(torch.tensor([[7, 8, 1, 7], [7, 8, 9, 7], [1, 1, 1, 1]]), eos_id=1).tolist()
    [2, 4, 0]
    """
    return (completions == eos_id).cumsum(1).eq(0).sum(1)
