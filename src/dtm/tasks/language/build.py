"""Build language tasks: with the tokenizer of the model, and rows and rewards of the task."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from dtm.config import LanguageConfig
from dtm.errors import DataError, nearest, require
from dtm.models.families import read_shape
from dtm.models.families.settings import STORED, Asked
from dtm.tasks.answers.markup import last_pair
from dtm.tasks.language import BENCHMARKS, Benchmark, Chat, LanguageTask, Row, benchmark_rows, read_own
from dtm.tasks.language.rows import checked_rows, numbered, split_off
from dtm.tasks.language.scores import pass_at, scores
from dtm.tasks.language.task import Accuracy

HELD_OUT = 256
"""Number of training rows for validation, and for the test with a user's own data."""
END = "<|endoftext|>"
"""End-of-text token, at which some published parsers stop."""


def language_task(task: LanguageConfig, model: Path | None, asked: Asked = STORED) -> LanguageTask:
    """Build the task of a benchmark, or of a user's rows; an error names missing model, tokenizer or data."""
    folder = _require_model(model)
    _, shape = read_shape(folder, asked)
    benchmark = BENCHMARKS.get(task.kind)
    splits = _own_splits(task) if benchmark is None else _splits(task, benchmark)
    reward, reward_range = None, (0.0, 1.0)
    if benchmark is not None:
        require(
            task.reward in benchmark.rewards,
            f"task.reward: no {task.reward!r} of {task.kind}. {nearest(task.reward, benchmark.rewards)}",
        )
        reward, reward_range = benchmark.rewards[task.reward]
    return LanguageTask(
        task.kind,
        splits,
        Chat.load(folder),
        reward,
        reward_range,
        vocab_size=shape.vocab_size,
        mask_id=shape.mask_id,
        eos_id=shape.eos_id,
        completion_length=task.completion_length,
        prompt_length=task.prompt_length,
        accuracy=None if benchmark is None else judged(task, benchmark),
    )


def text_task(task: Any, model: Path | None, asked: Asked = STORED) -> LanguageTask:
    """Build a language task of a user's object with ``splits`` of text rows and a ``reward``.

    Optional attributes: ``name``, ``reward_range`` (0 to 1), ``completion_length`` (256), ``prompt_length``
    (1024), and ``metrics(completions, columns) -> dict``.
    """
    folder, name = _require_model(model), getattr(task, "name", type(task).__name__)
    _, shape = read_shape(folder, asked)
    splits = {
        split: checked_rows(numbered(rows, f"{name}, {split}")) for split, rows in dict(task.splits).items()
    }
    metrics = getattr(task, "metrics", None)
    lost = [split for split in ("train", "validation", "test") if not splits.get(split)]
    require(not lost, f"{name} has no rows in its split {', '.join(lost)}", DataError)
    return LanguageTask(
        name,
        splits,
        Chat.load(folder),
        task.reward,
        getattr(task, "reward_range", (0.0, 1.0)),
        vocab_size=shape.vocab_size,
        mask_id=shape.mask_id,
        eos_id=shape.eos_id,
        completion_length=getattr(task, "completion_length", 256),
        prompt_length=getattr(task, "prompt_length", 1024),
        accuracy=None if metrics is None else lambda texts, columns, group: metrics(texts, columns),
    )


def _require_model(model: Path | None) -> Path:
    require(
        model is not None, "this task needs a language model: name a folder or a hub model with --model.base"
    )
    assert model is not None
    return model


def judged(task: LanguageConfig, benchmark: Benchmark) -> Accuracy:
    """Return accuracy under the protocol's rules, pass@k for several completions, and the format's share."""

    def accuracy(
        completions: Sequence[str], columns: Mapping[str, Sequence[Any]], group: Int[Tensor, " N"]
    ) -> dict[str, float]:
        rows = zip(columns["question"], columns["ground_truth"], completions, strict=True)
        verdicts = [benchmark.grade(asked, truth, text + END, task.protocol) for asked, truth, text in rows]
        formed = sum(last_pair(text) is not None for text in completions) / len(completions)
        correct = [bool(verdict.correct) for verdict in verdicts]
        return {**scores(task.kind, verdicts, columns), **pass_at(correct, group), "format": formed}

    return accuracy


def _splits(task: LanguageConfig, benchmark: Benchmark) -> dict[str, Sequence[Row]]:
    require(
        task.data_dir is not None,
        f"{task.kind} needs its data sets, which are not part of the package: name their folder with "
        "--data-dir; it is said then which file is missing, and where it can be had. Or --data-dir "
        + ("generated, for items made here" if task.kind in ("countdown", "sudoku") else "hub, to download"),
    )
    folder = Path(str(task.data_dir))
    validation, train = split_off(
        benchmark_rows(benchmark, benchmark.train(folder), task.protocol, "training"), HELD_OUT, task.seed
    )
    return {
        "train": train,
        "validation": validation,
        "test": benchmark_rows(benchmark, benchmark.test(folder), task.protocol, "evaluation"),
    }


@cache
def validation_keys(kind: str, folder: Path) -> frozenset[Hashable]:
    """Return the keys of the validation rows, with the default protocol and seed."""
    benchmark = BENCHMARKS[kind]
    # Most keys need no prompt, and prompts of Sudoku are long.
    keys = (
        benchmark.same(item) or benchmark.prompt(item, "dtm", "training") for item in benchmark.train(folder)
    )
    rows = [Row("", same=key) for key in keys]
    return frozenset(row.key for row in split_off(rows, HELD_OUT, 0)[0])


def _own_splits(task: LanguageConfig) -> dict[str, Sequence[Row]]:
    require(
        task.data is not None,
        "task.data: name your rows with --data: a JSON-lines or CSV file, or a data set as hub:USER/NAME",
    )
    rows = read_own(str(task.data))
    test, others = split_off(rows, HELD_OUT, task.seed)
    validation, train = split_off(others, HELD_OUT, task.seed)
    return {"train": train, "validation": validation, "test": test}
