"""Configurations: frozen, nested dataclasses with a docstring and the paper's symbol for every field.

Recipes return a `RunConfig`; on the command line every field is a flag (``--tilt.step 2.5``), in a file
every field is a YAML key. Importing this package imports no torch, so `dtm --help` stays fast.
"""

from dtm.config.decoding import AuditConfig, DecodingConfig, EvaluationConfig
from dtm.config.method import IteratingConfig, MethodConfig
from dtm.config.model import AdapterConfig, ModelConfig, PretrainConfig
from dtm.config.registry import METHODS, configure_method, configure_task
from dtm.config.reward import RewardConfig
from dtm.config.run import CheckpointConfig, DistributedConfig, RunConfig
from dtm.config.task import LanguageConfig, MazeConfig, MiniConfig, TaskConfig
from dtm.config.training import IterateConfig, OptimizerConfig, ReplayConfig, TiltConfig

__all__ = [
    "METHODS",
    "AdapterConfig",
    "AuditConfig",
    "CheckpointConfig",
    "DecodingConfig",
    "DistributedConfig",
    "EvaluationConfig",
    "IterateConfig",
    "IteratingConfig",
    "LanguageConfig",
    "MazeConfig",
    "MethodConfig",
    "MiniConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PretrainConfig",
    "ReplayConfig",
    "RewardConfig",
    "RunConfig",
    "TaskConfig",
    "TiltConfig",
    "configure_method",
    "configure_task",
]
