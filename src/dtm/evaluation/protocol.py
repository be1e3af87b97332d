"""The published evaluations of Countdown, Sudoku, GSM8K and MATH500, item by item.

A protocol is its authors' prompts, prefill, decoding and answer parser; docs/evaluation.md lists our
corrections. All protocols decode blocks of 32 tokens at two tokens per step, the most confident first, at
temperature 0, and count every test item once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from dtm.distributed import ALONE, Group
from dtm.engine import Decoder, SampledConfidence
from dtm.errors import nearest, require
from dtm.evaluation.complete import Done, complete
from dtm.evaluation.fingerprint import fingerprint
from dtm.evaluation.grade import verdict_fields
from dtm.evaluation.length import effective_lengths
from dtm.evaluation.subject import Subject
from dtm.tasks.language import BENCHMARKS, benchmark_rows
from dtm.tasks.language.scores import scores
from dtm.tasks.protocols import Protocol

BLOCK, TOKENS_PER_STEP = 32, 2
PROTOCOLS: tuple[str, ...] = get_args(Protocol)


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """Settings of an evaluation under a published protocol."""

    task: str
    """countdown, sudoku, gsm8k or math500."""
    protocol: str = "dtm"
    """Published prompts, prefill and parser to use: dtm, spg or d1."""
    length: int = 256
    """L, the tokens per completion."""
    limit: int | None = None
    """Use only the first items of the test set; None: all."""
    batch: int = 8
    """Rows decoded together on a GPU. On a CPU each row is decoded alone: this is not slower there, and makes
    its numbers independent of the other rows."""
    until_end: bool = False
    """Stop a row after the block with its end token; the rest becomes end tokens. The text before the end
    token does not change. The published protocols decode further and read the text that follows, at up to
    L / B times the cost."""

    def __post_init__(self) -> None:
        require(self.task in BENCHMARKS, f"no task {self.task!r}. {nearest(self.task, BENCHMARKS)}")
        require(
            self.protocol in PROTOCOLS, f"no protocol {self.protocol!r}. {nearest(self.protocol, PROTOCOLS)}"
        )
        require(
            self.length >= BLOCK and self.length % BLOCK == 0,
            f"--length must be a multiple of the protocols' block of {BLOCK} tokens, got {self.length}",
        )
        require(self.limit is None or self.limit >= 1, f"--limit must be at least 1, got {self.limit}")
        require(self.batch >= 1, f"--batch must be at least 1, got {self.batch}")

    def decoder(self, attention_block: int | None = None) -> Decoder:
        """Return the protocol's decoder: low-confidence remasking in blocks, two tokens per step.

        A block-causal model is decoded in its own blocks, with the prefix cache, which is exact.
        """
        block = attention_block or BLOCK
        return Decoder(
            order=SampledConfidence(),
            block=block,
            tokens_per_step=min(TOKENS_PER_STEP, block),
            temperature=0.0,
            cache="none" if attention_block is None else "prefix",
            until_end=self.until_end,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an examination, and the fingerprint of its inputs."""

    asked: Examination
    measures: dict[str, float]
    rows: list[dict[str, Any]]
    """One row per item, in the order of the file, in the format of `dtm grade`."""
    fingerprint: Mapping[str, Mapping[str, Any]]
    seconds: float


def examine(
    subject: Subject,
    asked: Examination,
    data: Path,
    done: Done = lambda rows, items: None,
    group: Group = ALONE,
) -> Outcome:
    """Decode every item of the test set once, and grade the answers."""
    begin = time.perf_counter()
    benchmark = BENCHMARKS[asked.task]
    protocol = cast(Protocol, asked.protocol)
    items = benchmark_rows(benchmark, benchmark.test(data)[: asked.limit], protocol, "evaluation")
    prompts = [subject.chat.ask(item.prompt, item.prefill) for item in items]
    decoder = asked.decoder(subject.model.attention_block)
    together = 1 if subject.device.type == "cpu" else asked.batch
    with subject.autocast():
        written = complete(
            subject.model, prompts, asked.length, decoder, together, subject.device, done, group
        )
    generations = [subject.chat.read(ids, special=True) for ids in written.tolist()]
    lengths = effective_lengths(written, subject.model.eos_id).tolist()
    columns = {name: [item.columns[name] for item in items] for name in items[0].columns}
    questions, truths = columns["question"], columns["ground_truth"]
    verdicts = [
        benchmark.grade(question, truth, text, protocol)
        for question, truth, text in zip(questions, truths, generations, strict=True)
    ]
    rows = [
        {"question": question, "ground_truth": truth, "generation": text, "length": length}
        | verdict_fields(verdict)
        for question, truth, text, length, verdict in zip(
            questions, truths, generations, lengths, verdicts, strict=True
        )
    ]
    measures = scores(asked.task, verdicts, columns) | {"length": sum(lengths) / len(lengths)}
    deciding = fingerprint(subject, asked.task, protocol, items, prompts, decoder, asked.length, together)
    return Outcome(asked, measures, rows, deciding, time.perf_counter() - begin)
