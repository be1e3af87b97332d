"""The corpus of an adaptation: its parts, and batches made ahead of the steps that need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dtm.config.adapt import SHARES, AdaptConfig, CorpusConfig
from dtm.errors import require
from dtm.loop.instructions import write_instructions
from dtm.loop.pretraining import Corpus
from dtm.models.placement import Placement
from dtm.models.transformer import Transformer
from dtm.records import Sequences
from dtm.tasks.corpus.countdown import Arithmetic, Countdown
from dtm.tasks.corpus.general import Rows, read_rows, save_rows
from dtm.tasks.corpus.gsm8k import Gsm8k, Solved
from dtm.tasks.corpus.mixture import Mixture
from dtm.tasks.corpus.part import Part
from dtm.tasks.corpus.sudoku import Sudoku, SudokuLines
from dtm.tasks.countdown import items as countdown_items
from dtm.tasks.data import is_generated
from dtm.tasks.gsm8k.items import solved_items
from dtm.tasks.language.benchmarks import BENCHMARKS
from dtm.tasks.language.tokenizer import Chat
from dtm.tasks.sudoku.generate import split_solutions, training_solutions
from dtm.tasks.sudoku.items import test_items as sudoku_test_items

INSTRUCTIONS = "instructions.jsonl"
"""File of a run with the general instructions that the source wrote."""
HELD_OUT = 0.05
"""Share of the instructions that is kept out of training, to measure what tuning costs."""


def prefetched(mixture: Mixture, config: AdaptConfig) -> Corpus:
    """The batches of a mixture; those of the next step are made while a step runs."""
    settings, pool = config.pretrain, ThreadPoolExecutor(1)
    made: dict[int, Future[list[Sequences]]] = {}

    def draw(step: int) -> list[Sequences]:
        is_skilled = step < config.corpus.skilled * settings.steps
        return mixture.batches("corpus", step, settings.batch, 1.0 if is_skilled else config.corpus.right)

    def batches(step: int) -> list[Sequences]:
        for wanted in (step, step + 1, step + 2):
            if wanted not in made:
                made[wanted] = pool.submit(draw, wanted)
        return made.pop(step).result()

    return Corpus(batches, mixture.batches("held-out corpus", 0, settings.held_out, 1.0))


def corpus_parts(
    config: AdaptConfig, model: Transformer, chat: Chat, placement: Placement, folder: Path
) -> dict[str, tuple[float, Part]]:
    """The parts of the corpus that have a share, by name."""
    made = {
        "general": lambda: Rows(training_instructions(config, model, chat, placement, folder)),
        **_makers(config),
    }
    return {name: (share, made[name]()) for name, share in corpus_shares(config.corpus).items()}


def _makers(config: AdaptConfig) -> dict[str, Callable[[], Part]]:
    """How each part is made that does not need the source."""
    corpus, data = config.corpus, Path(config.corpus.data_dir)
    held_out = held_out_countdown(data)
    solutions = split_solutions(seed=0)[0]
    if not is_generated(data):
        solutions = training_solutions(sudoku_test_items(data))
    return {
        "countdown": lambda: Countdown(held_out),
        "arithmetic": lambda: Arithmetic(held_out),
        "sudoku": lambda: Sudoku(solutions),
        "sudoku_lines": lambda: SudokuLines(solutions),
        "gsm8k": lambda: Gsm8k([Solved.of(*row) for row in solved_items(data)]),
        "own": lambda: Rows(read_rows(Path(str(corpus.data)))),
    }


def tokens_per_row(config: AdaptConfig, chat: Chat, end_id: int) -> float:
    """Tokens of a row on average, padding included; instructions, which are not written yet, are short."""
    lengths, shares = config.corpus.lengths, corpus_shares(config.corpus)
    general = shares.pop("general", 0.0)
    short = sum(lengths[:2]) / 2
    if not shares:
        return short
    made = _makers(config)
    parts = {name: (share, made[name]()) for name, share in shares.items()}
    block = config.block if config.attention == "block" else 1
    mixture = Mixture(parts, chat, end_id, config.seed, lengths, block)
    drawn = [batch for step in range(4) for batch in mixture.batches("forecast", step, 64, 1.0)]
    tokens = sum(batch.tokens.numel() for batch in drawn) / sum(map(len, drawn))
    return general * short + (1 - general) * tokens


def corpus_shares(corpus: CorpusConfig) -> dict[str, float]:
    """The share of each part that is there; GSM8K is not without its data set."""
    shares = {name: getattr(corpus, name) for name in SHARES if getattr(corpus, name) > 0}
    if is_generated(Path(corpus.data_dir)):
        shares.pop("gsm8k", None)
    require(bool(shares), "the corpus is empty: GSM8K needs --corpus.data-dir")
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()}


def held_out_countdown(data: Path) -> frozenset[Any]:
    """Keys of Countdown's test items, and of the training items that rewards are asked on."""
    benchmark = BENCHMARKS["countdown"]
    items: Sequence[Any] = benchmark.test(data)
    if not is_generated(data):
        items = [*items, *countdown_items.train_items(data)]
    return frozenset(item.key for item in items)


def training_instructions(
    config: AdaptConfig, model: Transformer, chat: Chat, placement: Placement, folder: Path
) -> list[Any]:
    """General instructions for training; the source writes them once, and a resumed run reads them."""
    path = folder / INSTRUCTIONS
    if not path.is_file():
        model.to(placement.device)
        with placement.autocast():
            rows = write_instructions(model, chat, config.corpus.instructions, config.seed, BATCH)
        save_rows(rows, path)
    rows = read_rows(path)
    return rows[: len(rows) - round(HELD_OUT * len(rows))]


BATCH = 1024
"""Instructions that the source writes together."""
