"""The corpus of an adaptation: its parts, and batches prepared ahead by worker processes."""

from __future__ import annotations

import math
import signal
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import cache, lru_cache
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import torch

from dtm.config.adapt import SHARES, AdaptConfig, CorpusConfig
from dtm.distributed import ALONE, Group
from dtm.errors import ConfigError, DataError, DtmWarning, require
from dtm.models.placement import Placement
from dtm.models.transformer import Transformer
from dtm.pretraining.examples import Corpus
from dtm.pretraining.instructions import INSTRUCTIONS, held_out_instructions, training_instructions
from dtm.records import Sequences
from dtm.tasks.corpus.countdown import Arithmetic, Countdown
from dtm.tasks.corpus.general import Rows, read_rows
from dtm.tasks.corpus.gsm8k import Gsm8k
from dtm.tasks.corpus.mixture import Mixture
from dtm.tasks.corpus.part import Example, Part
from dtm.tasks.corpus.solutions import SolvedQuestion
from dtm.tasks.corpus.sudoku import Sudoku, SudokuLines
from dtm.tasks.data import is_generated
from dtm.tasks.gsm8k.items import solved_items
from dtm.tasks.gsm8k.prompts import prompt as gsm8k_prompt
from dtm.tasks.language.benchmarks import BENCHMARKS
from dtm.tasks.language.build import validation_keys
from dtm.tasks.language.tokenizer import Chat
from dtm.tasks.sudoku.generate import split_solutions, training_solutions
from dtm.tasks.sudoku.items import test_items as sudoku_test_items

Parts = dict[str, tuple[float, Part]]
"""Name → share of the rows, and the part."""
Makers = dict[str, Callable[[], Part]]
Kind = TypeVar("Kind")
ROUND = 16
"""Number of steps whose rows are drawn together and sorted by length."""
OWN_HELD_OUT = 20
"""One in this many of a user's rows is held out. With fewer rows none is held out, and the bound is measured
on the training rows."""


def prefetched(mixture: Mixture, kept_out: Mixture, config: AdaptConfig) -> Corpus:
    """Return a corpus whose batches worker processes prepare ahead, with held-out rows."""
    settings, workers = config.pretrain, config.corpus.workers
    held_out = {
        name: (share, replace(kept_out, parts={name: (1.0, part)}).batches("held-out corpus", 0, rows, 1.0))
        for name, (share, part) in kept_out.parts.items()
        for rows in (math.ceil(share * settings.held_out),)
    }
    if workers == 0:
        whole = lru_cache(maxsize=1)(lambda number: round_batches(mixture, config, number))
        return Corpus(lambda step: _of_step(whole(step // ROUND), step), held_out)
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _keep, (mixture, config))
    made: dict[int, Future[list[Arrays]]] = {}

    def start(step: int) -> None:
        now, last = step // ROUND, (settings.steps - 1) // ROUND
        for number in [number for number in made if number < now]:
            del made[number]
        for ahead in range(now, min(now + workers, last) + 1):
            if ahead not in made:
                made[ahead] = pool.submit(_kept_batches, ahead)

    def batch(step: int) -> Sequences:
        start(step)
        try:
            return Sequences(*map(torch.from_numpy, _of_step(made[step // ROUND].result(), step)))
        except BrokenProcessPool:
            raise ConfigError(
                "a process that makes batches has ended. In a script, call dtm.adapt below "
                '`if __name__ == "__main__":`, or set corpus.workers to 0'
            ) from None

    return Corpus(batch, held_out, start)


def round_batches(mixture: Mixture, config: AdaptConfig, number: int) -> list[Sequences]:
    """Return the batches of a round of steps: only right answers to Sudoku at first, with guesses later."""
    is_skilled = number * ROUND < config.corpus.skilled * config.pretrain.steps
    right = 1.0 if is_skilled else config.corpus.right
    return mixture.steps("corpus", number, ROUND, config.pretrain.batch, right)


def _of_step(made: Sequence[Kind], step: int) -> Kind:
    """Return the batch of a step; a round of very few rows has fewer batches than steps."""
    return made[step % ROUND % len(made)]


Arrays = tuple[Any, Any, Any]
"""The tensors of `Sequences` as numpy arrays, which pass between processes without shared memory."""
_KEPT: list[tuple[Mixture, AdaptConfig]] = []
"""The mixture, in a worker process."""


def _keep(mixture: Mixture, config: AdaptConfig) -> None:
    """Set up a worker process: it ignores signals, which the training handles, and ends with the training."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    _KEPT.append((mixture, config))


def _end_with_parent() -> None:
    """End this process when the training process is gone, for any reason."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    signal.raise_signal(signal.SIGKILL)


def _kept_batches(number: int) -> list[Arrays]:
    made = round_batches(*_KEPT[0], number)
    return [(batch.tokens.numpy(), batch.attention.numpy(), batch.is_completion.numpy()) for batch in made]


def corpus_parts(
    config: AdaptConfig,
    model: Transformer,
    chat: Chat,
    placement: Placement,
    folder: Path,
    between: Callable[[], None] = lambda: None,
    group: Group = ALONE,
) -> tuple[Parts, Parts]:
    """Return the parts with a share above 0: those to train on, and the held-out parts.

    The source writes its instructions into the folder, unless the file exists.
    """
    shares, (training, held_out) = corpus_shares(config.corpus), task_parts(config, chat)
    if "general" in shares:
        training["general"] = Rows(
            training_instructions(config, model, chat, placement, folder, between, group)
        )
        # With few instructions none is held out, and the bound is measured on those of the training.
        held_out["general"] = Rows(held_out_instructions(folder) or read_rows(folder / INSTRUCTIONS))
    return (
        {name: (share, training[name]) for name, share in shares.items()},
        {name: (share, held_out[name]) for name, share in shares.items()},
    )


def task_parts(config: AdaptConfig, chat: Chat) -> tuple[dict[str, Part], dict[str, Part]]:
    """Return the parts that need no source model, to train on and held out; mistakes in data surface here."""
    names = [name for name in corpus_shares(config.corpus) if name != "general"]
    training, held_out = _makers(config, chat)
    return {name: training[name]() for name in names}, {name: held_out[name]() for name in names}


def _makers(config: AdaptConfig, chat: Chat) -> tuple[Makers, Makers]:
    """Return functions that make the parts without the source model, for training and held-out rows.

    Validation and test items of the tasks are excluded. So are Countdown's training items, because tuning
    uses them and new items are free.
    """
    data = Path(config.corpus.data_dir)
    countdown = BENCHMARKS["countdown"]

    @cache
    def held_out_keys() -> frozenset[Any]:
        return frozenset(item.key for item in (*countdown.test(data), *countdown.train(data)))

    @cache
    def solutions() -> tuple[list[str], list[str]]:
        if is_generated(data):
            usable = split_solutions(seed=0)[0]
        else:
            usable = training_solutions(sudoku_test_items(data))
        return _split(usable, lambda solution: solution in validation_keys("sudoku", data))

    @cache
    def solved() -> tuple[list[SolvedQuestion], list[SolvedQuestion]]:
        rows = [SolvedQuestion.of(*row) for row in solved_items(data)]
        return _split(rows, lambda row: gsm8k_prompt(row.item) in validation_keys("gsm8k", data))

    @cache
    def own() -> tuple[list[Example], list[Example]]:
        rows = own_rows(config, chat)
        if len(rows) < OWN_HELD_OUT:
            return rows, rows
        return [row for place, row in enumerate(rows) if place % OWN_HELD_OUT], rows[::OWN_HELD_OUT]

    def makers(side: int) -> Makers:
        return {
            "countdown": lambda: Countdown(held_out_keys(), config.corpus.worked),
            "arithmetic": lambda: Arithmetic(held_out_keys()),
            "sudoku": lambda: Sudoku(solutions()[side]),
            "sudoku_lines": lambda: SudokuLines(solutions()[side]),
            "gsm8k": lambda: Gsm8k(solved()[side], config.corpus.worked),
            "own": lambda: Rows(own()[side]),
        }

    return makers(0), makers(1)


def own_rows(config: AdaptConfig, chat: Chat) -> list[Example]:
    """Read a user's rows and drop those that are too long; a warning counts them."""
    path = Path(str(config.corpus.data))
    rows = read_rows(path)
    fits = mixture_of({}, config, chat, 0).fits(rows)
    longest = config.corpus.lengths[-1]
    require(
        any(fits),
        f"{path}: all rows are longer than {longest} tokens; raise the last of --corpus.lengths",
        DataError,
    )
    if not all(fits):
        notice = f"{path}: {fits.count(False)} of {len(rows)} rows are longer than {longest} tokens: dropped"
        warnings.warn(notice, DtmWarning, stacklevel=2)
    return [row for row, is_short in zip(rows, fits, strict=True) if is_short]


def mixture_of(parts: Parts, config: AdaptConfig, chat: Chat, end_id: int) -> Mixture:
    """Return a mixture of parts with the lengths and blocks of an adaptation."""
    return Mixture(parts, chat, end_id, config.seed, config.corpus.lengths, config.attention_block or 1)


def _split(rows: Sequence[Kind], is_held_out: Callable[[Kind], bool]) -> tuple[list[Kind], list[Kind]]:
    """Split the rows into training rows and held-out rows."""
    return [row for row in rows if not is_held_out(row)], [row for row in rows if is_held_out(row)]


def tokens_per_row(config: AdaptConfig, chat: Chat, end_id: int) -> float:
    """Estimate the mean tokens per row, padding included; instructions, not written yet, count as short."""
    lengths, shares = config.corpus.lengths, corpus_shares(config.corpus)
    general = shares.pop("general", 0.0)
    short = sum(lengths[:2]) / 2
    if not shares:
        return short
    parts, _ = task_parts(config, chat)
    mixture = mixture_of({name: (share, parts[name]) for name, share in shares.items()}, config, chat, end_id)
    drawn = [batch for step in range(4) for batch in mixture.batches("forecast", step, 64, 1.0)]
    tokens = sum(batch.tokens.numel() for batch in drawn) / sum(map(len, drawn))
    return general * short + (1 - general) * tokens


def corpus_shares(corpus: CorpusConfig) -> dict[str, float]:
    """Return the share of each part; GSM8K is dropped without its data set."""
    shares = {name: getattr(corpus, name) for name in SHARES if getattr(corpus, name) > 0}
    if is_generated(Path(corpus.data_dir)):
        shares.pop("gsm8k", None)
    require(bool(shares), "the corpus is empty: GSM8K needs --corpus.data-dir")
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()}
