"""What a family of published checkpoints calls things: its configuration's keys and its modules.

The transformer is one; a family is the dictionary from its module names to those of the hub, and the
function that reads a shape from the hub's ``config.json``. What the native transformer cannot compute is
refused by name: a key that is passed over in silence is a model that is quietly another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from dtm.errors import CheckpointError, require
from dtm.models.shape import TransformerConfig

BOOKKEEPING = frozenset(
    (
        *("_attn_implementation_autoset", "_name_or_path", "architectures", "auto_map", "model_type"),
        *("bos_token_id", "pad_token_id", "dtype", "torch_dtype", "transformers_version", "use_cache"),
        *("id2label", "label2id", "initializer_range"),
        *("output_attentions", "output_hidden_states", "return_dict"),
    )
)
"""Keys that any hub configuration may carry and that do not change what a model computes."""

PROJECTIONS = {
    "q": "blocks.*.attention.q",
    "k": "blocks.*.attention.k",
    "v": "blocks.*.attention.v",
    "out": "blocks.*.attention.out",
    "gate": "blocks.*.gate",
    "up": "blocks.*.up",
    "down": "blocks.*.down",
}
"""The linear layers of a block by their native names; ``*`` stands for the block's number."""


@final
@dataclass(frozen=True, slots=True)
class HubConfig:
    """A hub's ``config.json``, read key by key; every error names the file and the key."""

    values: Mapping[str, Any]
    source: str

    def integer(self, key: str) -> int:
        """A whole number that must be there."""
        value = self.values.get(key)
        self._require(isinstance(value, int) and not isinstance(value, bool), key, "must be a whole number")
        assert isinstance(value, int)
        return value

    def number(self, key: str) -> float:
        """A number that must be there."""
        value = self.values.get(key)
        self._require(isinstance(value, int | float) and not isinstance(value, bool), key, "must be a number")
        return float(self.values[key])

    def optional(self, key: str) -> int | None:
        """A whole number, or None where it is absent or null."""
        return None if self.values.get(key) is None else self.integer(key)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key, default)
        self._require(isinstance(value, bool), key, "must be true or false")
        return bool(value)

    def require_supported(self, supported: Mapping[str, tuple[Any, ...]], harmless: Iterable[str]) -> None:
        """Refuse values outside ``supported`` and keys that nobody has heard of.

        The first supported value is what an absent key means.
        """
        for key, allowed in supported.items():
            known = " or ".join(repr(value) for value in allowed)
            self._require(self.values.get(key, allowed[0]) in allowed, key, f"is supported as {known} only")
        known_keys = {*supported, *harmless, *BOOKKEEPING}
        for key in self.values:
            self._require(
                key in known_keys,
                key,
                "is not a key that this loader knows; take it out if it does not change what is computed",
            )

    def _require(self, condition: bool, key: str, rule: str) -> None:
        found = f"is {self.values[key]!r}" if key in self.values else "is missing"
        require(condition, f"{self.source}: {key!r} {found}; it {rule}", CheckpointError)


@final
@dataclass(frozen=True, slots=True)
class Family:
    """The names of one family."""

    name: str
    model_type: str
    """What ``config.json`` says in its ``model_type``."""
    read: Callable[[HubConfig], TransformerConfig]
    """The shape that a configuration describes."""
    modules: Mapping[str, str]
    """Native module name → hub module name, ``*`` standing for the number of the block."""

    def hub_name(self, native: str) -> str:
        """The hub's name of a native module, or of a tensor given with its last part (``.weight``).

        >>> from dtm.models.families.llada import LLADA
        >>> LLADA.hub_name("blocks.3.attention.q.weight")
        'model.transformer.blocks.3.q_proj.weight'
        """
        number = re.search(r"\d+", native)
        pattern = re.sub(r"\d+", "*", native)
        module, _, tensor = pattern.rpartition(".")
        hub = self.modules[pattern] if pattern in self.modules else f"{self.modules[module]}.{tensor}"
        return hub if number is None else hub.replace("*", number.group())

    def projections(self) -> dict[str, str]:
        """The hub's short name of each projection of a block → its native name."""
        return {self.modules[path].rpartition(".")[2]: name for name, path in PROJECTIONS.items()}
