"""The public functions: `train`, `pretrain`, `measure`, `steer`, and the class `Run` for a run's folder.

The command line calls these functions; everything it does can be done from Python.
"""

from dtm.api.measuring import measure, steer, tuning_cost
from dtm.api.pretraining import pretrain
from dtm.api.run import Run
from dtm.api.training import train

__all__ = ["Run", "measure", "pretrain", "steer", "train", "tuning_cost"]
