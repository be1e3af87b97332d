"""Complete prompts of any lengths, so that the completion of an item does not depend on the others.

Prompts of one length share batches, whatever the order of the items. Nothing is padded: a mask changes
kernels and with them the last bits, which decide between tokens that are almost equally likely. Kernels may
still depend on the number of rows; in batches of one row an item's numbers are its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from dtm.distributed import ALONE, Group
from dtm.engine import Decoder, generate
from dtm.models.denoiser import Denoiser
from dtm.random import derived_seed
from dtm.records import Completions, Prompts
from dtm.tasks.language.task import pad_left

Done = Callable[[int, int], None]
"""Callback with two numbers: items that a batch has finished, and all items of this process."""


def complete(
    model: Denoiser,
    prompts: Sequence[Sequence[int]],
    length: int,
    decoder: Decoder,
    batch: int,
    device: torch.device,
    done: Done = lambda rows, items: None,
    group: Group = ALONE,
) -> Int[Tensor, "N C"]:
    """Return ``length`` tokens for each prompt; the processes of ``group`` share the batches."""
    found = list(batches(prompts, batch))
    own = group.share(len(found))
    own_batches = found[own.start : own.stop]

    def draw() -> list[Int[Tensor, "B C"]]:
        drawn = []
        for rows in own_batches:
            finished = complete_batch(model, [prompts[row] for row in rows], length, decoder, device)
            drawn.append(finished.written[:, :length].cpu())
            done(len(rows), sum(map(len, own_batches)))
        return drawn

    written = torch.empty(len(prompts), length, dtype=torch.long)
    drawn = [tokens for share in group.together(draw) for tokens in share]
    for rows, tokens in zip(found, drawn, strict=True):
        written[rows] = tokens
    return written


def batches(prompts: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Yield rows of one length each, at most ``size`` together; the same batches for any order.

    >>> list(batches([[7, 8], [9], [5, 6], [4, 4]], 2))
    [[1], [3, 2], [0]]
    """
    order = sorted(range(len(prompts)), key=lambda row: (len(prompts[row]), list(prompts[row])))
    for _, group in itertools.groupby(order, key=lambda row: len(prompts[row])):
        rows = list(group)
        yield from (rows[start : start + size] for start in range(0, len(rows), size))


def complete_batch(
    model: Denoiser,
    prompts: Sequence[Sequence[int]],
    length: int,
    decoder: Decoder,
    device: torch.device,
    seed: int = 0,
) -> Completions:
    """Return the completions of one batch, with the step and log-probability of each token."""
    tokens, attention = pad_left(prompts, model.eos_id)
    asked = Prompts(tokens, attention, list(prompts)).to(device)
    noise = derived_seed(seed, "completion")
    return generate(model, asked, length, decoder, seed=noise, batch=len(prompts))
