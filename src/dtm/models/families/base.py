"""Families of published checkpoints: the names of their configuration keys and modules.

All families use the same native transformer. A family is a mapping from native module names to those of the
hub, and a function that reads a shape from the hub's ``config.json``. A setting that the native transformer
does not support is an error that names it; ignoring it would load a different model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from dtm.errors import CheckpointError, require
from dtm.models.shape import TransformerConfig

_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""A number that is a whole part of a module path."""
MAX_NUMBER = 1e30
"""Numbers beyond, infinities and nan are no settings of a model."""
BOOKKEEPING = frozenset(
    (
        *("_attn_implementation_autoset", "_name_or_path", "architectures", "auto_map", "model_type"),
        *("bos_token_id", "pad_token_id", "dtype", "torch_dtype", "transformers_version", "use_cache"),
        *("id2label", "label2id", "initializer_range"),
        *("output_attentions", "output_hidden_states", "return_dict"),
    )
)
"""Keys of any hub configuration that do not change what a model computes."""


@final
@dataclass(frozen=True, slots=True)
class HubConfig:
    """A hub's ``config.json``, read key by key; every error names the file and the key."""

    values: Mapping[str, Any]
    source: str

    def integer(self, key: str) -> int:
        """A required integer."""
        value = self.values.get(key)
        self._require(isinstance(value, int) and not isinstance(value, bool), key, "must be an integer")
        assert isinstance(value, int)
        return value

    def number(self, key: str) -> float:
        """A required number."""
        value = self.values.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        self._require(is_number and abs(self.values[key]) < MAX_NUMBER, key, "must be a finite number")
        return float(self.values[key])

    def first_integer(self, key: str) -> int:
        """A required integer, or the first of a list of them."""
        value = self.values.get(key)
        first = value[0] if isinstance(value, list) and value else value
        is_integer = isinstance(first, int) and not isinstance(first, bool)
        self._require(is_integer, key, "must be an integer or a list of integers")
        assert isinstance(first, int)
        return first

    def optional(self, key: str) -> int | None:
        """An integer, or None if it is absent or null."""
        return None if self.values.get(key) is None else self.integer(key)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key, default)
        self._require(isinstance(value, bool), key, "must be true or false")
        return bool(value)

    def require_supported(self, supported: Mapping[str, tuple[Any, ...]], harmless: Iterable[str]) -> None:
        """Raise an error for values outside ``supported`` and for unknown keys.

        An absent key means the first supported value.
        """
        for key, allowed in supported.items():
            known = " or ".join(repr(value) for value in allowed)
            self._require(self.values.get(key, allowed[0]) in allowed, key, f"can only be {known}")
        known_keys = {*supported, *harmless, *BOOKKEEPING}
        for key in self.values:
            self._require(
                key in known_keys,
                key,
                "is unknown to this loader; remove it if it does not change what the model computes",
            )

    def _require(self, condition: bool, key: str, rule: str) -> None:
        found = f"is {self.values[key]!r}" if key in self.values else "is missing"
        require(condition, f"{self.source}: {key!r} {found}; it {rule}", CheckpointError)


@final
@dataclass(frozen=True, slots=True)
class Family:
    """Names and configuration reader of one family."""

    name: str
    model_type: str
    """Value of ``model_type`` in ``config.json``."""
    read: Callable[[HubConfig], TransformerConfig]
    """Function that reads the shape from a configuration."""
    modules: Mapping[str, str]
    """Native module path → hub module path, with ``*`` for each index (block, expert); empty: equal."""
    write: Callable[[TransformerConfig], dict[str, Any]] | None = None
    """Function that makes the hub's configuration of a shape; None: this layout is only read."""
    leaves_out: bool = False
    """Whether ``config.json`` leaves out the mask token and the attention (see `settings`)."""

    def hub_name(self, native: str) -> str:
        """The hub's name of a native module, or of a tensor (``.weight`` at its end).

        >>> from dtm.models.families.llada import LLADA
        >>> LLADA.hub_name("blocks.3.attention.q.weight")
        'model.transformer.blocks.3.q_proj.weight'
        """
        return renamed(native, self.modules) if self.modules else native

    def tied_names(self, shape: TransformerConfig) -> dict[str, str]:
        """Hub name of the head → that of the embedding, where they are one tensor; some files hold both."""
        if not shape.tied:
            return {}
        return {self.hub_name("unembedding.weight"): self.hub_name("embedding.weight")}

    def hub_path(self, path: str) -> str:
        """The hub's path pattern of a native one, such as ``blocks.*.up``."""
        return self.modules[path] if self.modules else path

    def short_name(self, path: str) -> str:
        """The last part of the hub's path, such as ``up_proj``."""
        return self.hub_path(path).rpartition(".")[2]


def renamed(native: str, modules: Mapping[str, str]) -> str:
    """The name of a native module or tensor in another layout; ``modules`` maps path patterns.

    >>> renamed("blocks.3.up.weight", {"blocks.*.up": "blk.*.ffn_up"})
    'blk.3.ffn_up.weight'
    """
    pattern = _INDEX.sub("*", native)
    module, _, tensor = pattern.rpartition(".")
    name = modules[pattern] if pattern in modules else f"{modules[module]}.{tensor}"
    for number in _INDEX.findall(native):
        name = name.replace("*", number, 1)
    return name
