"""Attention masks: full attention, block-causal attention, and the doubled pass of training.

Blocks are counted from an origin, (j − o) // B: the first column of a row, or its first token. Keys and
values of a block do not depend on later positions. A padded position attends only to itself, since an empty
softmax would be nan.

Letters: B rows, L length, W positions computed.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Visible = Bool[Tensor, "#B 1 #W J"] | Literal["causal"] | None
"""The J keys that each query attends to; None: all of them. "causal" needs no tensor."""


Origin = Int[Tensor, "B 1"] | Literal[0]
"""Column from which the blocks of each row are counted."""


def first_tokens(attention: Bool[Tensor, "B L"] | None) -> Origin:
    """Return the column of each row's first token."""
    return 0 if attention is None else attention.int().argmax(1, keepdim=True)


def block_causal(
    attention: Bool[Tensor, "B L"] | None,
    where: Int[Tensor, "#B W"],
    length: int,
    block: int,
    origin: Origin = 0,
) -> Bool[Tensor, "#B 1 W L"]:
    """Let the queries at columns ``where`` attend to real keys of their own and of earlier blocks.

    >>> block_causal(None, torch.arange(4)[None], 4, block=2).int()[0, 0].tolist()
    [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    """
    key = torch.arange(length, device=where.device)[None]
    seen = ((key - origin) // block)[:, None] <= ((where - origin) // block)[..., None]
    if attention is not None:
        seen = seen & (attention[:, None] | (key == where[..., None]))
    return seen[:, None]


def doubled(
    attention: Bool[Tensor, "B L"] | None, length: int, block: int, device: torch.device, origin: Origin = 0
) -> Bool[Tensor, "#B 1 M M"]:
    """Let M = 2 L positions, those of x_t and then those of x_1, attend as in training on both at once.

    A position of x_t attends to its own block of x_t and to the earlier blocks of x_1; a position of x_1
    attends to x_1 up to its own block. States of x_t in block b are those of a row that is x_1 before b and
    x_t in b, for every b at once.

    >>> doubled(None, 2, block=1, device=torch.device("cpu")).int()[0, 0].tolist()
    [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    """
    of = (torch.arange(length, device=device)[None] - origin) // block
    own, earlier = of[:, :, None] == of[:, None], of[:, None] < of[:, :, None]
    noisy = torch.cat([own, earlier], dim=2)
    clean = torch.cat([torch.zeros_like(own), own | earlier], dim=2)
    seen = torch.cat([noisy, clean], dim=1)
    if attention is not None:
        itself = torch.eye(2 * length, dtype=torch.bool, device=device)
        seen = seen & (attention.repeat(1, 2)[:, None] | itself)
    return seen[:, None]


def doubled_predictors(
    positions: Int[Tensor, " N"],
    predictors: Int[Tensor, " N"],
    length: int,
    block: int,
    origin: Origin = 0,
) -> Int[Tensor, " N"]:
    """Return the index, in flattened rows of 2 L positions, of the state that predicts each position.

    ``positions`` and ``predictors`` are flat indices of rows of L. A predictor in an earlier block (of models
    that predict one position ahead) is a state of x_1: in decoding that block is finished.

    >>> doubled_predictors(torch.tensor([2, 3]), torch.tensor([1, 2]), length=4, block=2).tolist()
    [5, 2]
    """
    row, column = predictors // length, predictors % length
    first = origin if isinstance(origin, int) else origin.flatten()[row]
    is_earlier = (column - first) // block < (positions % length - first) // block
    return row * 2 * length + column + length * is_earlier
