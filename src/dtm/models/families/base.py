"""Families of published checkpoints: the names of their configuration keys and modules.

All families use the same native transformer. A family is a mapping from native module names to those of the
hub, and a function that reads a shape from the hub's ``config.json``. A setting that the native transformer
does not support is an error that names it; ignoring it would load a different model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from dtm.errors import CheckpointError, require
from dtm.models.shape import TransformerConfig
from dtm.models.weights import Slot

_INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""A number that is a whole part of a module path."""
MAX_NUMBER = 1e30
"""Numbers beyond, infinities and nan are no settings of a model."""
BOOKKEEPING = frozenset(
    (
        *("_attn_implementation_autoset", "_name_or_path", "architectures", "auto_map", "model_type"),
        *("bos_token_id", "pad_token_id", "dtype", "torch_dtype", "transformers_version", "use_cache"),
        *("id2label", "label2id", "initializer_range", "attn_implementation"),
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

    def rope_base(self) -> float:
        """Base of the rotary frequencies, from the key of transformers 4 or that of 5, which must agree."""
        stated = self.values.get("rope_parameters")
        if stated is None:
            return self.number("rope_theta")
        require(
            isinstance(stated, dict)
            and stated.keys() <= {"rope_theta", "rope_type"}
            and stated.get("rope_type", "default") == "default",
            f"{self.source}: 'rope_parameters' is {stated!r}; it can only have a 'rope_theta' and the "
            "'rope_type' 'default'",
            CheckpointError,
        )
        base = HubConfig(stated, f"{self.source}, rope_parameters").number("rope_theta")
        require(
            self.values.get("rope_theta") is None or self.number("rope_theta") == base,
            f"{self.source}: 'rope_theta' is {self.values.get('rope_theta')!r}, and {base!r} in "
            "'rope_parameters'",
            CheckpointError,
        )
        return base

    def full_layers(self) -> int:
        """Number of layers; 'layer_types', where it is stated, must say that all have full attention."""
        layers, kinds = self.integer("num_hidden_layers"), self.values.get("layer_types")
        require(
            kinds is None or kinds == ["full_attention"] * layers,
            f"{self.source}: 'layer_types' is {kinds!r}; all {layers} layers must have 'full_attention'",
            CheckpointError,
        )
        return layers

    def numbers(self, key: str) -> list[int]:
        """A required list of integers."""
        value = self.values.get(key)
        is_list = isinstance(value, list) and all(type(each) is int for each in value)
        self._require(is_list, key, "must be a list of integers")
        return list(self.values[key])

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


STANDARD = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_parameters", "layer_types"),
    *("tie_word_embeddings", "mask_token_id", "eos_token_id", "max_position_embeddings"),
    "max_window_layers",
    "sliding_window",  # read only where use_sliding_window is true
)
"""Keys that `transformers` gives to models of the kind of Llama and Qwen; `standard` reads them."""
UNSCALED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "attention_dropout": (0.0,),
    "use_sliding_window": (False,),
}
"""Keys of these models, and their supported values."""


def standard(config: HubConfig) -> dict[str, Any]:
    """Fields of the shape from the keys that `transformers` gives to models of the kind of Llama and Qwen."""
    return {
        "vocab_size": config.integer("vocab_size"),
        "mask_id": config.integer("mask_token_id"),
        "eos_id": config.first_integer("eos_token_id"),
        "width": config.integer("hidden_size"),
        "layers": config.full_layers(),
        "heads": config.integer("num_attention_heads"),
        "kv_heads": config.optional("num_key_value_heads"),
        "head_width": config.optional("head_dim"),
        "ffn": config.integer("intermediate_size"),
        "rope_base": config.rope_base(),
        "norm_eps": config.number("rms_norm_eps"),
        "tied": config.flag("tie_word_embeddings", False),
    }


def written(shape: TransformerConfig) -> dict[str, Any]:
    """The inverse of `standard`: keys that transformers 4 and 5 both read."""
    return {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads or shape.heads,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_base,
        "rope_scaling": None,
        "tie_word_embeddings": shape.tied,
        "eos_token_id": shape.eos_id,
    }


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Names and configuration reader of one family."""

    name: str
    model_type: str
    """Value of ``model_type`` in ``config.json``."""
    aliases: tuple[str, ...] = ()
    """Further values of ``model_type``."""
    architectures: tuple[str, ...] = ()
    """Values of ``architectures`` that tell it from another family of the same ``model_type``."""
    read: Callable[[HubConfig], TransformerConfig]
    """Function that reads the shape from a configuration."""
    modules: Mapping[str, str]
    """Native module path → hub module path, with ``*`` for the number of the block and, in a stack of
    experts, a second ``*`` for that of the expert; empty: equal."""
    write: Callable[[TransformerConfig], dict[str, Any]] | None = None
    """Function that makes the hub's configuration of a shape; None: this layout is only read."""
    leaves_out: bool = False
    """Whether ``config.json`` leaves out the mask token or the attention (see `settings`)."""
    attention: Literal["full", "block", "either", "causal"] = "full"
    """Attention of its models; either: full or block, as the files or the user say."""
    usual_mask: int | str | None = None
    """Mask token of its published models, or where it comes from, for errors; it is never assumed."""
    usual_block: int | None = None
    """Block size of its published models, for errors and for the estimate of `dtm fit`; no model is loaded
    with it unasked."""
    models: str = ""
    """Published models, as `dtm models` lists them."""
    limits: str = ""
    """Settings and decoders of its models that are not supported, and why."""

    def hub_name(self, native: str) -> str:
        """The hub's name of a native module, or of a tensor (``.weight`` at its end).

        >>> from dtm.models.families.llada import LLADA
        >>> LLADA.hub_name("blocks.3.attention.q.weight")
        'model.transformer.blocks.3.q_proj.weight'
        """
        return renamed(native, self.modules) if self.modules else native

    def slots(
        self, shape: TransformerConfig, names: Iterable[str], stored: Collection[str]
    ) -> dict[str, Slot]:
        """Hub name of each tensor of a model → its slot.

        Experts are stored one by one, or as one stack under the name without number and ``.weight``;
        ``stored`` tells which.
        """
        slots: dict[str, Slot] = {}
        for native in names:
            name = self.hub_name(native)
            whole = name.replace(".*.", ".").removesuffix(".weight")
            if "*" not in name:
                slots[name] = native, None
            elif whole in stored or shape.experts is None:
                slots[whole] = native, None
            else:
                slots |= {name.replace("*", str(n)): (native, n) for n in range(shape.experts.count)}
        return slots

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
