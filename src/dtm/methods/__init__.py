"""Training methods, one file each, with settings, credit, masks and loss; see `dtm.config.registry`."""

from dtm.methods.base import Method
from dtm.methods.c_dtm import CDTM
from dtm.methods.control_variates import CONTROL_VARIATES, ControlVariate
from dtm.methods.mdm import mdm_loss

__all__ = ["CDTM", "CONTROL_VARIATES", "ControlVariate", "Method", "mdm_loss"]
