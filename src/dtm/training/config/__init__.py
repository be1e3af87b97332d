"""A run as one frozen value: nested dataclasses, every field documented with its symbol.

Recipes return a `RunConfig`; on the command line every field is a flag (``--tilt.step 2.5``), in a file
every field is a YAML key. Importing this package imports no torch, so help and recipes stay fast.
"""

from dtm.training.config.annealing import OptimizerConfig, ReplayConfig, TiltConfig
from dtm.training.config.model import AdapterConfig, ModelConfig, PretrainConfig
from dtm.training.config.objective import ObjectiveConfig, RewardConfig
from dtm.training.config.run import CheckpointConfig, RunConfig
from dtm.training.config.sampling import AuditConfig, DecodingConfig, EvaluationConfig
from dtm.training.config.task import LanguageConfig, MazeConfig, MiniConfig, TaskConfig

__all__ = [
    "AdapterConfig",
    "AuditConfig",
    "CheckpointConfig",
    "DecodingConfig",
    "EvaluationConfig",
    "LanguageConfig",
    "MazeConfig",
    "MiniConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "PretrainConfig",
    "ReplayConfig",
    "RewardConfig",
    "RunConfig",
    "TaskConfig",
    "TiltConfig",
]
