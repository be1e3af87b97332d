"""The calls that make up the public interface: train, pretrain, measure, and a Run to look at.

The command line is a thin shell around these; whatever it does can be done from Python.
"""

from dtm.api.measuring import measure, steer, tuning_cost
from dtm.api.pretraining import pretrain
from dtm.api.run import Run
from dtm.api.training import train

__all__ = ["Run", "measure", "pretrain", "steer", "train", "tuning_cost"]
