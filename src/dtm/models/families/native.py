"""The package's own layout: ``config.json`` holds the shape's fields, tensors have the modules' names."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

from dtm.errors import CheckpointError, nearest, require
from dtm.models.families.base import Family, HubConfig
from dtm.models.shape import TransformerConfig


def read_config(config: HubConfig) -> TransformerConfig:
    """Read the shape that `save_model` wrote; fields that are absent have their defaults."""
    known = {field.name for field in fields(TransformerConfig)}
    for key in config.values:
        require(
            key in known, f"{config.source}: unknown field {key!r}. {nearest(key, known)}", CheckpointError
        )
    for key in ("vocab_size", "mask_id", "eos_id"):
        require(key in config.values, f"{config.source}: {key!r} is missing", CheckpointError)
    for key, kind in get_type_hints(TransformerConfig).items():
        if key in config.values:
            value = config.values[key]
            fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
            fits = fits and (kind is bool or not isinstance(value, bool))
            require(
                fits,
                f"{config.source}: {key!r} is {value!r}; it must be {getattr(kind, '__name__', kind)}",
                CheckpointError,
            )
    return TransformerConfig(**config.values)


NATIVE = Family(name="native", model_type="", read=read_config, modules={})
