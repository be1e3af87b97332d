"""Masked states from plain tensors: the masking of c-DTM for a training loop of your own."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dtm.masking.mask_count import MaskCount
from dtm.records import MaskedStates, Sequences


def sample(
    tokens: Int[Tensor, "B L"],
    is_completion: Bool[Tensor, "B L"],
    mask_id: int,
    generator: torch.Generator,
    *,
    attention: Bool[Tensor, "B L"] | None = None,
    block: int | None = None,
    end_id: int | None = None,
) -> MaskedStates:
    r"""Draw one x_t for every clean sequence x_1, in mask-count form (C) [docs/method.md].

    The loss of a batch is the mean over rows of ``row_weight · Σ_S ℓ``, where S are the scored positions.

    Args:
        tokens: x_1, prompt and completion.
        is_completion: true at completion positions; only these are masked.
        mask_id: the id of the mask token.
        generator: of the masks, on the device of the tokens.
        attention: false on padding; None: no padding.
        block: block size of semi-autoregressive masks; None: any order.
        end_id: with blocks, do not train on the blocks after the one with this token.

    Returns:
        States with ``tokens`` (x_t), ``scored`` (flat indices of S), ``row`` and ``x1`` at each of them, and
        ``row_weight``.

    Example:
        >>> x1 = torch.tensor([[5, 1, 2, 3]])
        >>> written = torch.tensor([[False, True, True, True]])
        >>> states = sample(x1, written, mask_id=9, generator=torch.Generator().manual_seed(0))
        >>> bool((states.tokens.flatten()[states.scored] == 9).all())
        True
    """
    seen = torch.ones_like(is_completion) if attention is None else attention
    return MaskCount(block, end_id).states(Sequences(tokens, seen, is_completion), mask_id, generator)
