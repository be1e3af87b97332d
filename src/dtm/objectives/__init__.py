"""Losses on masked states."""

from dtm.objectives.base import Objective
from dtm.objectives.baseline import Baseline
from dtm.objectives.c_dtm import CDTM
from dtm.objectives.control_variates import CONTROL_VARIATES, ControlVariate
from dtm.objectives.diffu_grpo import DiffuGRPO
from dtm.objectives.gdpo import GDPO
from dtm.objectives.mdm import mdm_loss
from dtm.objectives.spg import SPG
from dtm.objectives.trace_rl import TraceRL
from dtm.objectives.unigrpo import UniGRPO
from dtm.objectives.vrpo import VRPO
from dtm.objectives.wd1 import WD1

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
