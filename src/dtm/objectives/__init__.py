"""Losses on masked states."""

from dtm.objectives.base import Objective
from dtm.objectives.c_dtm import CDTM
from dtm.objectives.control_variates import CONTROL_VARIATES, ControlVariate
from dtm.objectives.mdm import mdm_loss

__all__ = ["CDTM", "CONTROL_VARIATES", "ControlVariate", "Objective", "mdm_loss"]
