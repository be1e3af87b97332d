"""Completing prompts of any lengths, so that what an item gets does not depend on the others.

Prompts of one length share batches, whatever the order of the items: nothing is padded, because a mask
changes kernels and with them the last bits, which decide between tokens that are almost equally likely. What
is left is kernels that look at the number of rows; with one row a batch the numbers are the item's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from dtm.engine import Decoder, decode
from dtm.models.denoiser import Denoiser
from dtm.random import stream
from dtm.records import Completions, Prompts
from dtm.tasks.language.task import pad_left

Done = Callable[[int, int], None]
"""Hears how many items a batch has finished, and how many there are in all."""


def complete(
    denoiser: Denoiser,
    prompts: Sequence[Sequence[int]],
    length: int,
    decoder: Decoder,
    batch: int,
    device: torch.device,
    done: Done = lambda rows, items: None,
) -> Int[Tensor, "N C"]:
    """``length`` tokens for each prompt."""
    written = torch.empty(len(prompts), length, dtype=torch.long)
    for rows in batches(prompts, batch):
        finished = complete_batch(denoiser, [prompts[row] for row in rows], length, decoder, device)
        written[rows] = finished.tokens[:, -length:].cpu()
        done(len(rows), len(prompts))
    return written


def batches(prompts: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Rows of one length each, at most ``size`` together; the same batches for any order of the prompts.

    >>> list(batches([[7, 8], [9], [5, 6], [4, 4]], 2))
    [[1], [3, 2], [0]]
    """
    order = sorted(range(len(prompts)), key=lambda row: (len(prompts[row]), list(prompts[row])))
    for _, group in itertools.groupby(order, key=lambda row: len(prompts[row])):
        rows = list(group)
        yield from (rows[start : start + size] for start in range(0, len(rows), size))


def complete_batch(
    denoiser: Denoiser,
    prompts: Sequence[Sequence[int]],
    length: int,
    decoder: Decoder,
    device: torch.device,
    seed: int = 0,
) -> Completions:
    """One batch, with the step at which each token was revealed."""
    tokens, attention = pad_left(prompts, denoiser.eos_id)
    asked = Prompts(tokens, attention, list(prompts)).to(device)
    return decode(denoiser, asked, length, decoder, stream(seed, "completion", device=device))
