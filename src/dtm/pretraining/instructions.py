"""General instructions that the source model writes and answers itself.

An instruct model that is given the start of a user's message completes it to an instruction, and can then
answer it. Training on these rows keeps its chat behaviour without other data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from dtm.capacity.memory import cache_bytes
from dtm.capacity.preflight import available
from dtm.config.adapt import AdaptConfig
from dtm.distributed import ALONE, Group
from dtm.engine import Decoder, generate
from dtm.errors import DataError, require
from dtm.models.placement import Placement
from dtm.models.transformer import Transformer
from dtm.random import derived_seed
from dtm.records import Prompts
from dtm.tasks.corpus.general import read_rows, save_rows
from dtm.tasks.corpus.part import Example
from dtm.tasks.language.task import pad_left
from dtm.tasks.language.tokenizer import Chat

INSTRUCTIONS = "instructions.jsonl"
"""File of a run with the instructions that the source wrote."""
HELD_OUT = 0.05
"""Held-out share of the instructions, on which the cost of tuning is measured."""
BATCH = {"cuda": 4096, "cpu": 32}
"""Largest number of instructions written together, by device; fewer if the cache does not fit."""
ASKED, ANSWERED = 64, 320
"""Largest number of tokens of an instruction and of its answer."""
SHORTEST = 12
"""Shortest accepted instruction, in characters."""


def write_instructions(
    model: Transformer,
    chat: Chat,
    count: int,
    seed: int,
    batch: int,
    between: Callable[[], None] = lambda: None,
    group: Group = ALONE,
) -> list[Example]:
    """Let an autoregressive model write about ``count`` instructions and answer them.

    Sampled at temperature 0.8. Instructions that do not end, are very short or occur twice are dropped, and
    so are answers that do not end.
    """
    device = model.embedding.weight.device
    decoder = Decoder(block=1, cache="prefix", until_end=True, temperature=0.8)

    def complete(prompts: Sequence[Sequence[int]], length: int, purpose: str) -> list[str | None]:
        tokens, attention = pad_left(prompts, model.eos_id)
        asked = Prompts(tokens, attention, [""] * len(prompts)).to(device)
        noise, own = derived_seed(seed, purpose), group.share(len(prompts))

        def share() -> list[str | None]:
            done = generate(model, asked, length, decoder, seed=noise, batch=batch, rows=own, between=between)
            return [_ended(row, model.eos_id, chat) for row in done.tokens[:, -length:].tolist()]

        return [text for texts in group.together(share) for text in texts]

    begun = chat.user_turn()
    asked = complete([begun] * count, ASKED, "instructions")
    kept = list(dict.fromkeys(text for text in asked if text is not None and len(text) >= SHORTEST))
    require(
        bool(kept),
        "the source wrote no usable instruction; give your own rows: --corpus.general 0 "
        "--data FILE.jsonl --corpus.own 0.3",
        DataError,
    )
    answers = complete(chat.encode([chat.render(text) for text in kept]), ANSWERED, "answers")
    return [Example.of(text, answer) for text, answer in zip(kept, answers, strict=True) if answer]


def _ended(row: list[int], eos_id: int, chat: Chat) -> str | None:
    """Return the text before the end token; None without an end token."""
    return chat.read(row[: row.index(eos_id)]).strip() if eos_id in row else None


def training_instructions(
    config: AdaptConfig,
    model: Transformer,
    chat: Chat,
    placement: Placement,
    folder: Path,
    between: Callable[[], None] = lambda: None,
    group: Group = ALONE,
) -> list[Example]:
    """Return the instructions to train on; the source writes them once, and a resumed run reads them."""
    path = folder / INSTRUCTIONS
    if not group.by_first(path.is_file):
        require(
            model.attention_block == 1,
            "general instructions are written by an autoregressive source, and this one is a masked "
            "diffusion model: pass --corpus.general 0, or --data FILE.jsonl --corpus.own 0.3",
        )
        model.to(placement.device)
        batch = _batch(model, placement.device)
        with placement.autocast():
            written = write_instructions(
                model, chat, config.corpus.instructions, config.seed, batch, between, group
            )
        group.by_first(lambda: save_rows(written, path))
    rows = read_rows(path)
    return rows[: _training(rows)]


def _batch(model: Transformer, device: torch.device) -> int:
    """Return how many instructions to write together: their cache takes at most half of the free memory."""
    row = cache_bytes(model.config, 1, 2 * ASKED + ANSWERED, model.embedding.weight.element_size())
    return max(1, min(BATCH.get(device.type, 256), available(device) // (2 * row)))


def held_out_instructions(folder: Path) -> list[Example]:
    """Return the held-out instructions of a run."""
    rows = read_rows(folder / INSTRUCTIONS)
    return rows[_training(rows) :]


def _training(rows: Sequence[Example]) -> int:
    """Return the number of rows to train on."""
    return len(rows) - round(HELD_OUT * len(rows))
