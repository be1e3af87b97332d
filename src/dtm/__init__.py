"""Reward fine-tuning of masked diffusion language models by Discrete Tilt Matching.

    import dtm
    run = dtm.train("maze-small")
    print(run.summary)

Names are loaded when they are first used, so that ``import dtm`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtm.api import Run, pretrain, train
    from dtm.config import MethodConfig, RunConfig, TaskConfig
    from dtm.engine import Decoder, generate
    from dtm.errors import DtmError
    from dtm.losses import AdaptiveControl
    from dtm.methods import CDTM, Method
    from dtm.models import Denoiser, Transformer, TransformerConfig
    from dtm.models.hugging_face import HuggingFaceDenoiser
    from dtm.models.storage import load_model, save_model
    from dtm.pretraining.adaptation import adapt
    from dtm.recipes import recipe
    from dtm.steering import SMC, BestOf, steer

_HOMES = {
    "AdaptiveControl": "dtm.losses",
    "BestOf": "dtm.steering",
    "CDTM": "dtm.methods",
    "Decoder": "dtm.engine",
    "Denoiser": "dtm.models",
    "DtmError": "dtm.errors",
    "HuggingFaceDenoiser": "dtm.models.hugging_face",
    "Method": "dtm.methods",
    "MethodConfig": "dtm.config",
    "Run": "dtm.api",
    "RunConfig": "dtm.config",
    "SMC": "dtm.steering",
    "TaskConfig": "dtm.config",
    "Transformer": "dtm.models",
    "TransformerConfig": "dtm.models",
    "generate": "dtm.engine",
    "load_model": "dtm.models.storage",
    "adapt": "dtm.pretraining.adaptation",
    "pretrain": "dtm.api",
    "recipe": "dtm.recipes",
    "save_model": "dtm.models.storage",
    "steer": "dtm.steering",
    "train": "dtm.api",
}

__all__ = [
    "CDTM",
    "SMC",
    "AdaptiveControl",
    "BestOf",
    "Decoder",
    "Denoiser",
    "DtmError",
    "HuggingFaceDenoiser",
    "Method",
    "MethodConfig",
    "Run",
    "RunConfig",
    "TaskConfig",
    "Transformer",
    "TransformerConfig",
    "adapt",
    "generate",
    "load_model",
    "pretrain",
    "recipe",
    "save_model",
    "steer",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dtm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
