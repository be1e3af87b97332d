"""Padding of rows of different widths: attention masks, and records joined and aligned to blocks.

Prompts are padded on the left, so that completions of one length begin at the same column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from dtm.records import Prompts, Rollouts, Rows


def where_padded(attention: Bool[Tensor, "N L"]) -> Bool[Tensor, "N L"] | None:
    """The attention mask, or None if nothing is padded.

    A mask forces the slower attention kernels, and checking waits for the device: ask once per batch.
    """
    return None if bool(attention.all()) else attention


def prompt_width(is_completion: Bool[Tensor, "B L"]) -> Int[Tensor, ""]:
    """Columns before the first completion position of any row."""
    return is_completion.any(0).int().argmax()


def leads(is_completion: Bool[Tensor, "B L"], block: int | None) -> Int[Tensor, " B"]:
    """Count the columns before each completion in its first block; 0 without a ``block``.

    Blocks of block-causal attention are columns of a row, so that a prompt may end inside one.
    """
    first = is_completion.int().argmax(1)
    return torch.zeros_like(first) if block is None else first % block


def join_prompts(parts: Sequence[Prompts]) -> Prompts:
    """Concatenate prompts; shorter ones are padded further on the left, and the padding is masked."""
    width = max(part.tokens.shape[1] for part in parts)
    padding = [(width - part.tokens.shape[1], 0) for part in parts]
    columns = {name: [value for part in parts for value in part.columns[name]] for name in parts[0].columns}
    return Prompts(
        torch.cat([F.pad(part.tokens, short) for part, short in zip(parts, padding, strict=True)]),
        torch.cat([F.pad(part.attention, short) for part, short in zip(parts, padding, strict=True)]),
        [view for part in parts for view in part.views],
        columns,
    )


def concatenate(parts: Sequence[Rollouts]) -> Rollouts:
    """Concatenate rollouts of one tilt; shorter prompts are padded further on the left, and masked."""
    width = max(part.tokens.shape[1] for part in parts)
    padded = [_widen(part, width) for part in parts]
    joined = {name: torch.cat([part.tensors()[name] for part in padded]) for name in parts[0].tensors()}
    return Rollouts(**joined, tilt=parts[0].tilt)


def aligned(rows: Rows, block: int | None) -> Rows:
    """Pad rows further on the left until their completions begin at a multiple of ``block``.

    Models with block-causal attention need this: their blocks are columns. None: the rows as they are.
    """
    if block is None:
        return rows
    return _widen(rows, rows.tokens.shape[1] + -int(prompt_width(rows.is_completion)) % block)


def _widen(part: Rows, width: int) -> Rows:
    short = width - part.tokens.shape[1]
    if short == 0:
        return part
    filler = {"revealed_at": -1}  # elsewhere 0, or false
    wide = {name: tensor for name, tensor in part.tensors().items() if tensor.ndim == 2}
    padded = {name: F.pad(tensor, (short, 0), value=filler.get(name, 0)) for name, tensor in wide.items()}
    return replace(part, **padded)
