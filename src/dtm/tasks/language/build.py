"""From a configuration to a language task: tokenizer and ids of the model, rows and rewards of the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtm.config import LanguageConfig, RunConfig
from dtm.errors import ConfigError, nearest, require
from dtm.models.families import read_shape
from dtm.models.hub import find_folder
from dtm.tasks.language import BENCHMARKS, Benchmark, Chat, LanguageTask, Row, benchmark_rows, read_own
from dtm.tasks.language.rows import split_off
from dtm.tasks.language.scores import scores

HELD_OUT = 256
"""Training rows that are kept for validation, and of one's own data also for the test."""
END = "<|endoftext|>"
"""Where a completion was cut: some published parsers stop at it."""


def language_task(config: RunConfig, task: LanguageConfig) -> LanguageTask:
    """The task; whatever is missing (model, tokenizer, data) is said by name."""
    base = config.model.base
    if base is None:
        raise ConfigError(f"recipe {config.recipe!r} needs a model: a folder or a hub name with --model.base")
    folder = find_folder(base)
    _, shape = read_shape(folder)
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


def judged(
    task: LanguageConfig, benchmark: Benchmark
) -> Callable[[Sequence[str], Mapping[str, Sequence[Any]]], dict[str, float]]:
    """Accuracy under the protocol's rules."""

    def accuracy(completions: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> dict[str, float]:
        rows = zip(columns["question"], columns["ground_truth"], completions, strict=True)
        verdicts = [benchmark.grade(asked, truth, text + END, task.protocol) for asked, truth, text in rows]
        return scores(task.kind, verdicts, columns)

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


def _own_splits(task: LanguageConfig) -> dict[str, Sequence[Row]]:
    require(task.data is not None, "task.data: name your JSON-lines file with --data")
    rows = read_own(Path(str(task.data)))
    test, others = split_off(rows, HELD_OUT, task.seed)
    validation, train = split_off(others, HELD_OUT, task.seed)
    return {"train": train, "validation": validation, "test": test}
