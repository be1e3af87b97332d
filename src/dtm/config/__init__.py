"""A run as one frozen value: nested dataclasses, every field documented with its symbol.

Recipes return a `RunConfig`; on the command line every field is a flag (``--tilt.step 2.5``), in a file
every field is a YAML key. Importing this package imports no torch, so help and recipes stay fast.
"""

from dtm.config.annealing import OptimizerConfig, ReplayConfig, TiltConfig
from dtm.config.model import AdapterConfig, ModelConfig, PretrainConfig
from dtm.config.objective import ObjectiveConfig, RewardConfig
from dtm.config.run import CheckpointConfig, RunConfig
from dtm.config.sampling import AuditConfig, DecodingConfig, EvaluationConfig
from dtm.config.task import LanguageConfig, MazeConfig, MiniConfig, TaskConfig

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
