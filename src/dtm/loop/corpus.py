"""The corpus of an adaptation: its parts, and batches made ahead of the steps that need them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from dtm.config.adapt import SHARES, AdaptConfig, CorpusConfig
from dtm.errors import require
from dtm.loop.instructions import training_instructions
from dtm.loop.pretraining import Corpus
from dtm.models.placement import Placement
from dtm.models.transformer import Transformer
from dtm.records import Sequences
from dtm.tasks.corpus.countdown import Arithmetic, Countdown
from dtm.tasks.corpus.general import Rows, read_rows
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


def prefetched(mixture: Mixture, config: AdaptConfig) -> Corpus:
    """The batches of a mixture, made ahead by processes of their own; the training keeps its processor."""
    settings, workers = config.pretrain, config.corpus.workers
    held_out = mixture.batches("held-out corpus", 0, settings.held_out, 1.0)
    if workers == 0:
        return Corpus(lambda step: step_batches(mixture, config, step), held_out)
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _keep, (mixture, config))
    made: dict[int, Future[list[Arrays]]] = {}

    def batches(step: int) -> list[Sequences]:
        for ahead in range(step, min(step + 2 * workers + 1, settings.steps)):
            if ahead not in made:
                made[ahead] = pool.submit(_kept_batches, ahead)
        return [Sequences(*map(torch.from_numpy, arrays)) for arrays in made.pop(step).result()]

    return Corpus(batches, held_out)


def step_batches(mixture: Mixture, config: AdaptConfig, step: int) -> list[Sequences]:
    """The batches of one step: right answers at first, careless ones among them later."""
    is_skilled = step < config.corpus.skilled * config.pretrain.steps
    right = 1.0 if is_skilled else config.corpus.right
    return mixture.batches("corpus", step, config.pretrain.batch, right)


Arrays = tuple[Any, Any, Any]
"""The tensors of `Sequences` as numpy arrays, which pass between processes without shared memory."""
_KEPT: list[tuple[Mixture, AdaptConfig]] = []
"""In a process that makes batches: the mixture."""


def _keep(mixture: Mixture, config: AdaptConfig) -> None:
    """Prepare a process: it leaves Ctrl-C to the training, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _KEPT.append((mixture, config))


def _kept_batches(step: int) -> list[Arrays]:
    made = step_batches(*_KEPT[0], step)
    return [(batch.tokens.numpy(), batch.attention.numpy(), batch.is_completion.numpy()) for batch in made]


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
