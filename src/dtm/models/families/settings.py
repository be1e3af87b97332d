"""Settings that a model's published files lack: the mask token, the end of a turn, the attention.

Models that were made from others have the configuration of their source, which states none of them. They are
read in this order:

    mask token    user's flags, then dtm.json, then config.json, then the tokenizer's mask token
    end of turn   dtm.json, then config.json
    attention     user's flags, then dtm.json, then config.json, then that of a family which has only one

Nothing is guessed: a setting that is found nowhere is an error that names the family's usual value.

``dtm.json`` is a small file of this package beside the weights; `save_hub` and merged exports write it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from dtm.errors import CheckpointError, nearest, require
from dtm.files import read_json
from dtm.models.shape import TransformerConfig
from dtm.models.tokenizers import MASKS
from dtm.writing import write_json

if TYPE_CHECKING:
    from dtm.models.families.base import Family

SIDECAR = "dtm.json"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Settings that a user gives; they precede those of the model's files."""

    mask_token: str | None = None
    """Id or text of the mask token; None: as stored."""
    attention: Literal["stored", "full", "block"] = "stored"
    block: int | None = None
    """B of block attention."""

    def __post_init__(self) -> None:
        require(
            (self.attention == "block") == (self.block is not None),
            "model.attention block and model.block belong together: --model.attention block --model.block B",
        )
        require(self.block is None or self.block >= 1, f"model.block must be at least 1, got {self.block}")


STORED = Asked()
"""No settings of the user: all are those of the model's files."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Sidecar:
    """Contents of ``dtm.json``; None: not in the file."""

    mask_token_id: int | None = None
    eos_token_id: int | None = None
    """End of turn."""
    attention: Literal["full", "block"] | None = None
    block: int | None = None

    @classmethod
    def read(cls, folder: Path) -> Sidecar:
        """Read the file of a folder; without one all settings are None."""
        source = folder / SIDECAR
        if not source.is_file():
            return cls()
        values = read_object(source)
        for key, value in values.items():
            unknown = f"{source}: unknown key {key!r}. {nearest(key, cls.__slots__)}"
            require(key in cls.__slots__, unknown, CheckpointError)
            known = value in (None, "full", "block") if key == "attention" else _is_count(value)
            rule = "full or block" if key == "attention" else "a whole number"
            require(known, f"{source}: {key!r} is {value!r}; it must be {rule}", CheckpointError)
        found = cls(**values)
        require(
            (found.attention == "block") == bool(found.block),
            f"{source}: 'attention' is {found.attention!r} and 'block' is {found.block!r}; block attention "
            "needs a block of at least 1, and full attention none",
            CheckpointError,
        )
        return found

    @classmethod
    def of(cls, shape: TransformerConfig) -> Sidecar:
        """State all settings of a shape."""
        block = shape.attention_block
        return cls(
            mask_token_id=shape.mask_id,
            eos_token_id=shape.eos_id,
            attention="full" if block is None else "block",
            block=block,
        )

    def write(self, folder: Path) -> None:
        """Write the settings that are stated."""
        stated = {key: value for key, value in asdict(self).items() if value is not None}
        write_json(folder / SIDECAR, stated)


def completed(values: dict[str, Any], folder: Path, asked: Asked, family: Family) -> dict[str, Any]:
    """Add the mask token and the end of turn to the values of a ``config.json``."""
    sidecar, found = Sidecar.read(folder), dict(values)
    if sidecar.eos_token_id is not None:
        found["eos_token_id"] = sidecar.eos_token_id
    if asked.mask_token is not None:
        found["mask_token_id"] = mask_id(folder, asked.mask_token)
    elif sidecar.mask_token_id is not None:
        found["mask_token_id"] = sidecar.mask_token_id
    elif found.get("mask_token_id") is None:
        found["mask_token_id"] = _tokenizer_mask(folder, family)
    return found


def settled(shape: TransformerConfig, folder: Path, asked: Asked, family: Family) -> TransformerConfig:
    """Apply the user's settings to a shape, and those of ``dtm.json`` that ``config.json`` lacks."""
    if asked.mask_token is not None:
        shape = replace(shape, mask_id=mask_id(folder, asked.mask_token))
    if family.attention in ("full", "block"):
        require(
            asked.attention in ("stored", family.attention),
            f"models of the family {family.name} have {family.attention} attention, and {asked.attention} "
            f"attention was asked for in {folder}",
            CheckpointError,
        )
    if family.attention == "block":
        return replace(shape, attention_block=_block_size(shape, folder, asked, family))
    if asked.attention != "stored":
        return replace(shape, attention_block=asked.block)
    if not family.leaves_out or shape.attention_block is not None:
        return shape
    sidecar = Sidecar.read(folder)
    if family.attention == "either" and sidecar.attention is None:
        raise CheckpointError(_no_attention(folder, family))
    return replace(shape, attention_block=sidecar.block)


def _no_attention(folder: Path, family: Family) -> str:
    """Message for a model that may have full or block attention, and whose files state neither."""
    how = _how_to_say(family.usual_block, folder)
    if "bd3lm" in _model_name(folder):
        named = f"{folder} is named as a block diffusion model (bd3lm), and its files state no block size."
        return f"{named} {how}"
    return (
        f"{folder}: no file states the attention of this {family.name} model: neither config.json nor "
        f"{SIDECAR}. If it was trained with full attention (mdlm), pass --model.attention full (in Python "
        f'attention="full"). If it was trained in blocks (bd3lm), see its card for their size. {how}'
    )


def _block_size(shape: TransformerConfig, folder: Path, asked: Asked, family: Family) -> int:
    """Block size of a family that is always block-causal."""
    stated = Sidecar.read(folder).block or shape.attention_block
    require(
        None in (stated, asked.block) or stated == asked.block,
        f"{folder} states blocks of {stated} tokens, and {asked.block} were asked for",
        CheckpointError,
    )
    block = stated or asked.block
    if block is None:
        raise CheckpointError(
            f"{folder} holds a block diffusion model ({family.name}), and its files do not state the block "
            f"size. {_how_to_say(family.usual_block, folder)}"
        )
    return block


def _how_to_say(usual: int | None, folder: Path) -> str:
    return (
        f"Pass --model.attention block --model.block B ({usual} in published ones; in Python "
        f'attention="block", block={usual}), or write both into {folder / SIDECAR}: '
        f'{{"attention": "block", "block": {usual}}}'
    )


def mask_id(folder: Path, token: str) -> int:
    """The id of a token, given as a number or as its text in the folder's tokenizer."""
    if token.isdecimal():
        return int(token)
    found = token_ids(folder).get(token)
    if found is None:
        raise CheckpointError(
            f"--model.mask-token {token}: the tokenizer in {folder} has no such token; pass its id instead"
        )
    return found


def _tokenizer_mask(folder: Path, family: Family) -> int:
    """The id of the tokenizer's mask token."""
    config, ids = _optional(folder / "tokenizer_config.json"), token_ids(folder)
    stated = config.get("mask_token")
    text = stated.get("content") if isinstance(stated, dict) else stated
    for token in (text, *MASKS):
        if token in ids:
            return ids[token]
    usual = "" if family.usual_mask is None else f" ({family.usual_mask} in published models of this family)"
    raise CheckpointError(
        f"{folder}: no file states the mask token: neither config.json nor {SIDECAR}, and the tokenizer has "
        f"no mask token. Pass its id or text with --model.mask-token{usual}, in Python mask_id=…, or write "
        f'it into {folder / SIDECAR}: {{"mask_token_id": …}}'
    )


def token_ids(folder: Path) -> dict[str, int]:
    """Ids of the tokens that a folder's tokenizer files list, without building the tokenizer."""
    ids: dict[str, int] = {}
    ids |= _optional(folder / "vocab.json") | _optional(folder / "added_tokens.json")
    whole, settings = _optional(folder / "tokenizer.json"), _optional(folder / "tokenizer_config.json")
    try:
        vocabulary = whole.get("model", {}).get("vocab", {})
        ids |= vocabulary if isinstance(vocabulary, dict) else {}
        ids |= {token["content"]: token["id"] for token in whole.get("added_tokens", ())}
        added = settings.get("added_tokens_decoder", {})
        return ids | {token["content"]: int(number) for number, token in added.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise CheckpointError(
            f"the tokenizer in {folder} is damaged: an unexpected value in tokenizer.json or "
            f"tokenizer_config.json ({type(problem).__name__}: {problem})"
        ) from None


def read_object(source: Path) -> dict[str, Any]:
    """Read a JSON object; errors name the file."""
    try:
        values = read_json(source, CheckpointError)
    except CheckpointError as problem:
        raise CheckpointError(f"no usable model in {source.parent}: {problem}") from None
    require(isinstance(values, dict), f"{source}: not a JSON object", CheckpointError)
    return dict(values)


def _optional(source: Path) -> dict[str, Any]:
    return read_object(source) if source.is_file() else {}


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _model_name(folder: Path) -> str:
    """Name of a model's folder; in the hub's cache that of the repository."""
    place = folder.resolve()
    return (place.parents[1] if place.parent.name == "snapshots" else place).name.lower()
