"""The corpus of an adaptation: its shares, and the test items that it must not contain."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from checkpoints import chatml_tokenizer
from dtm.config.adapt import AdaptConfig, CorpusConfig
from dtm.errors import ConfigError, DataError
from dtm.loop.corpus import corpus_parts, corpus_shares, held_out_countdown, prefetched, step_batches
from dtm.models import Transformer, TransformerConfig
from dtm.models.placement import Placement
from dtm.random import stream
from dtm.tasks.corpus.countdown import Countdown
from dtm.tasks.corpus.mixture import Mixture
from dtm.tasks.corpus.part import Example
from dtm.tasks.countdown import items as countdown
from dtm.tasks.language.benchmarks import BENCHMARKS
from dtm.tasks.language.tokenizer import Chat
from dtm.tasks.sudoku.items import test_items as sudoku_items

pytest.importorskip("transformers")

SHAPE = {"vocab_size": 8, "mask_id": 7, "eos_id": 2, "width": 8, "layers": 1, "heads": 1, "ffn": 8}
ONLY = {"general": 0.0, "countdown": 0.0, "arithmetic": 0.0, "sudoku": 0.0, "sudoku_lines": 0.0, "gsm8k": 0.0}


def only(**shares) -> CorpusConfig:
    return CorpusConfig(**ONLY | shares)


def drawn(corpus: CorpusConfig, name: str, count: int) -> list[Example]:
    model = Transformer(TransformerConfig(**SHAPE), stream(0, "model"))
    config, chat = AdaptConfig(corpus=corpus), Chat(chatml_tokenizer())
    part = corpus_parts(config, model, chat, Placement.resolve("cpu", "float32"), Path())[name][1]
    random = Random(0)
    return [part.draw(random, 1.0) for _ in range(count)]


def test_shares_add_up_to_one_and_gsm8k_needs_its_data(tmp_path):
    shares = corpus_shares(CorpusConfig())
    assert "gsm8k" not in shares
    assert "own" not in shares
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["general"] == pytest.approx(0.3 / 0.85)
    assert corpus_shares(CorpusConfig(data_dir=str(tmp_path)))["gsm8k"] == pytest.approx(0.15)
    with pytest.raises(ConfigError, match=r"the corpus is empty: GSM8K needs --corpus\.data-dir"):
        corpus_shares(only(gsm8k=1.0))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"own": 0.5}, r"corpus\.own needs your rows: --corpus\.data FILE\.jsonl"),
        ({"sudoku_lines": -1.0}, r"corpus\.sudoku-lines must not be negative"),
        ({"right": 1.5}, r"corpus\.right is a share in \[0, 1\], got 1\.5"),
        ({"lengths": (64, 32, 128)}, r"corpus\.lengths must ascend"),
        ({"lengths": (0, 32, 128)}, r"corpus\.lengths must ascend"),
        ({"instructions": 0}, r"corpus\.instructions must be at least 1"),
        (ONLY, "the shares of the corpus add up to 0"),
    ],
)
def test_wrong_settings_are_named(wrong, named):
    with pytest.raises(ConfigError, match=named):
        CorpusConfig(**wrong)


def test_lengths_are_whole_blocks_of_block_causal_attention():
    with pytest.raises(ConfigError, match=r"multiples of block 32, got \[40\]"):
        AdaptConfig(attention="block", corpus=CorpusConfig(lengths=(32, 40, 64)))


def countdown_keys(rows: list[Example]) -> set:
    found = re.findall(r"\[([\d, ]+)\] (\d+): ", "".join(row.answer for row in rows))
    return {
        countdown.CountdownItem(tuple(map(int, numbers.split(", "))), int(target)).key
        for numbers, target in found
    }


def solutions(rows: list[Example]) -> set[str]:
    return {re.search(r"\d{16}", row.answer).group() for row in rows}


def test_the_generated_test_items_are_held_out():
    data = Path("generated")
    held_out = held_out_countdown(data)
    assert held_out == {item.key for item in BENCHMARKS["countdown"].test(data)}
    assert not held_out & countdown_keys(drawn(only(arithmetic=1.0), "arithmetic", 50))
    tested = {item.solution for item in BENCHMARKS["sudoku"].test(data)}
    assert not tested & solutions(drawn(only(sudoku=1.0), "sudoku", 100))


def test_the_published_test_items_and_the_items_of_rewards_are_held_out(shared_data):
    held_out = held_out_countdown(shared_data)
    assert held_out == {
        item.key for item in (*countdown.test_items(shared_data), *countdown.train_items(shared_data))
    }
    folder = str(shared_data)
    rows = drawn(only(arithmetic=1.0, data_dir=folder), "arithmetic", 50)
    assert not held_out & countdown_keys(rows)
    tested = {item.solution for item in sudoku_items(shared_data)}
    found = solutions(drawn(only(sudoku=1.0, data_dir=folder), "sudoku", 300))
    assert not tested & found
    assert len(found) > 100
    asked = {item.question for item in BENCHMARKS["gsm8k"].test(shared_data)}
    questions = "\n".join(str(row.prompt) for row in drawn(only(gsm8k=1.0, data_dir=folder), "gsm8k", 50))
    assert not any(question in questions for question in asked)


def test_your_own_rows_are_a_part(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n')
    assert drawn(only(own=1.0, data=str(path)), "own", 2) == [Example.of("a", "b")] * 2
    with pytest.raises(DataError, match=r"corpus\.data: no file"):
        drawn(only(own=1.0, data=str(tmp_path / "nothing")), "own", 1)


def test_processes_make_the_same_batches_ahead_and_right_answers_come_first():
    start = AdaptConfig()
    config = replace(
        start,
        pretrain=replace(start.pretrain, steps=4, batch=3, held_out=2),
        corpus=replace(only(countdown=1.0), skilled=0.5, right=0.0, workers=1),
    )
    chat = Chat(chatml_tokenizer())
    mixture = Mixture({"countdown": (1.0, Countdown(frozenset()))}, chat, 2, 0, (4096,))
    ahead = prefetched(mixture, config)
    for step in (0, 1, 2, 3, 2):
        (made,), (expected,) = ahead.batches(step), step_batches(mixture, config, step)
        assert torch.equal(made.tokens, expected.tokens)
        assert torch.equal(made.is_completion, expected.is_completion)
        (clean,) = mixture.batches("corpus", step, 3, 1.0)
        assert torch.equal(made.tokens, clean.tokens) == (step < 2)
