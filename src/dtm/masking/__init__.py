"""Masking: draw partially masked states x_t of clean sequences x_1."""

from dtm.masking.active_block import ActiveBlock
from dtm.masking.count_plans import FullMask, Quadrature, RisingRatio, UniformCount
from dtm.masking.coupled import Coupled
from dtm.masking.every_block import CountMasking, EveryBlock
from dtm.masking.in_blocks import in_blocks, runs_doubled
from dtm.masking.left_to_right import LeftToRight
from dtm.masking.mask_count import MaskCount, Masking
from dtm.masking.plan import Layout, MaskPlan, Masks, Planned, spans
from dtm.masking.sample import sample
from dtm.masking.trace import SampledSteps, TraceSegments, choose_steps, visited

__all__ = [
    "ActiveBlock",
    "CountMasking",
    "Coupled",
    "EveryBlock",
    "FullMask",
    "Layout",
    "LeftToRight",
    "MaskCount",
    "MaskPlan",
    "Masking",
    "Masks",
    "Planned",
    "Quadrature",
    "RisingRatio",
    "SampledSteps",
    "TraceSegments",
    "UniformCount",
    "choose_steps",
    "in_blocks",
    "runs_doubled",
    "sample",
    "spans",
    "visited",
]
