"""The package's own layout: ``config.json`` holds the shape's fields, tensors have the modules' names."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dtm.errors import CheckpointError, nearest, require
from dtm.models.families.base import Family, HubConfig
from dtm.models.routing import Experts
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
    values = dict(config.values)
    if isinstance(values.get("experts"), dict):
        values["experts"] = _experts(values["experts"], config.source)
    for key, kind in get_type_hints(TransformerConfig).items():
        if key in values:
            value = values[key]
            if get_origin(kind) is Literal:
                require(
                    value in get_args(kind),
                    f"{config.source}: {key!r} is {value!r}; it must be {' or '.join(get_args(kind))}",
                    CheckpointError,
                )
                continue
            fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
            fits = fits and (kind is bool or not isinstance(value, bool))
            require(
                fits,
                f"{config.source}: {key!r} is {value!r}; it must be {getattr(kind, '__name__', kind)}",
                CheckpointError,
            )
    return TransformerConfig(**values)


def _experts(values: dict[str, Any], source: str) -> Experts:
    """Read the shape of a mixture of experts."""
    try:
        return Experts(**values | {"layers": tuple(values["layers"])})
    except (KeyError, TypeError) as problem:
        raise CheckpointError(f"{source}: 'experts' is damaged ({problem})") from None


NATIVE = Family(
    name="native",
    model_type="",
    read=read_config,
    modules={},
    attention="either",
    models="models of this package: dtm pretrain, dtm.save_model",
)
