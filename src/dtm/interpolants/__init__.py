"""From clean rollouts x_1 to partially masked states x_t."""

from dtm.interpolants.hazard import hazard_states
from dtm.interpolants.mask_count import Interpolant, MaskCount

__all__ = ["Interpolant", "MaskCount", "hazard_states"]
