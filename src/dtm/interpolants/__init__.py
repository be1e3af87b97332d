"""From clean rollouts x_1 to partially masked states x_t."""

from dtm.interpolants.active_block import ActiveBlock
from dtm.interpolants.count_plans import FullMask, Quadrature, RisingRatio, UniformCount
from dtm.interpolants.hazard import hazard_states
from dtm.interpolants.mask_count import Interpolant, MaskCount
from dtm.interpolants.plan import Layout, MaskPlan, Masks, Planned, spans
from dtm.interpolants.trace import TraceSegments

__all__ = [
    "ActiveBlock",
    "FullMask",
    "Interpolant",
    "Layout",
    "MaskCount",
    "MaskPlan",
    "Masks",
    "Planned",
    "Quadrature",
    "RisingRatio",
    "TraceSegments",
    "UniformCount",
    "hazard_states",
    "spans",
]
