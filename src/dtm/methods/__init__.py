"""Losses on masked states."""

from dtm.methods.base import Objective
from dtm.methods.baseline import Baseline
from dtm.methods.c_dtm import CDTM
from dtm.methods.control_variates import CONTROL_VARIATES, ControlVariate
from dtm.methods.diffu_grpo import DiffuGRPO
from dtm.methods.gdpo import GDPO
from dtm.methods.mdm import mdm_loss
from dtm.methods.spg import SPG
from dtm.methods.trace_rl import TraceRL
from dtm.methods.unigrpo import UniGRPO
from dtm.methods.vrpo import VRPO
from dtm.methods.wd1 import WD1

__all__ = [
    "CDTM",
    "CONTROL_VARIATES",
    "GDPO",
    "SPG",
    "VRPO",
    "WD1",
    "Baseline",
    "ControlVariate",
    "DiffuGRPO",
    "Objective",
    "TraceRL",
    "UniGRPO",
    "mdm_loss",
]
