"""The four benchmarks, and a user's own data, as tasks for language models."""

from dtm.tasks.language.benchmarks import BENCHMARKS, Benchmark, benchmark_rows
from dtm.tasks.language.own import read_own
from dtm.tasks.language.rows import Row
from dtm.tasks.language.task import LanguageTask
from dtm.tasks.language.tokenizer import Chat

__all__ = ["BENCHMARKS", "Benchmark", "Chat", "LanguageTask", "Row", "benchmark_rows", "read_own"]
