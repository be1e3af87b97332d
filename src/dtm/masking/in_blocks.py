r"""Masks for models with block-causal attention: inside the model's own blocks.

A uniform subset S of all n completion positions, of a size k uniform in 1..n, meets block b in a subset of a
positions with

    Σ_k (1/n) (n/k) C(n − B_b, k − a) / C(n, k)  =  ∫ u^{a−1} (1 − u)^{B_b−a} du  =  1 / (a C(B_b, a)),

which is the weight of form (C) in block b alone. So the mask plans of any order estimate the bound of
decoding block by block, if each block is scored given the clean blocks before it: in a pass over x_t and x_1.
"""

from __future__ import annotations

from dataclasses import replace

from dtm.errors import require
from dtm.masking.active_block import ActiveBlock
from dtm.masking.every_block import EveryBlock
from dtm.masking.left_to_right import LeftToRight
from dtm.masking.mask_count import MaskCount, Masking
from dtm.masking.plan import Planned
from dtm.masking.trace import SampledSteps, TraceSegments


def in_blocks(masking: Masking, block: int | None) -> Masking:
    """Return the masking for a model that attends in blocks of ``block``; None: full attention.

    Maskings of your own are returned as they are.
    """
    if block is None:
        require(
            not isinstance(masking, EveryBlock),
            "masks in every block need block-causal attention: pass --method.block decoding",
        )
        return masking
    if isinstance(masking, MaskCount | EveryBlock):
        require(
            masking.block == block,
            f"this model attends in blocks of {block}, and masks lie inside them: pass "
            "--method.block decoding",
        )
    if isinstance(masking, MaskCount):
        return replace(masking, in_columns=True)
    if isinstance(masking, Planned):
        # These mask all that decoding block by block has not revealed yet, so one pass over x_t is enough.
        left_to_right = isinstance(masking.plan, ActiveBlock | TraceSegments | SampledSteps | LeftToRight)
        return replace(masking, block=block, doubled=not left_to_right)
    return masking


def runs_doubled(masking: Masking) -> bool:
    """Return whether the masking's states need the pass over x_t and x_1 side by side."""
    return isinstance(masking, EveryBlock) or (isinstance(masking, Planned) and masking.doubled)
