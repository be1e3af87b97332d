"""The corpus of an adaptation: its shares, and the test items that it must not contain."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from checkpoints import chatml_tokenizer
from dtm.config.adapt import AdaptConfig, CorpusConfig
from dtm.errors import ConfigError, DataError, DtmWarning
from dtm.models import Transformer, TransformerConfig
from dtm.models.placement import Placement
from dtm.pretraining.corpus import ROUND, corpus_parts, corpus_shares, prefetched, round_batches
from dtm.random import stream
from dtm.tasks.corpus.mixture import Mixture
from dtm.tasks.corpus.part import Example
from dtm.tasks.corpus.sudoku import Sudoku
from dtm.tasks.countdown import items as countdown
from dtm.tasks.language import benchmarks
from dtm.tasks.language.benchmarks import BENCHMARKS
from dtm.tasks.language.build import validation_keys
from dtm.tasks.language.tokenizer import Chat
from dtm.tasks.sudoku.generate import split_solutions
from dtm.tasks.sudoku.items import test_items as sudoku_items

pytest.importorskip("transformers")

SHAPE = {"vocab_size": 8, "mask_id": 7, "eos_id": 2, "width": 8, "layers": 1, "heads": 1, "ffn": 8}
ONLY = {"general": 0.0, "countdown": 0.0, "arithmetic": 0.0, "sudoku": 0.0, "sudoku_lines": 0.0, "gsm8k": 0.0}


def only(**shares) -> CorpusConfig:
    return CorpusConfig(**ONLY | shares)


def drawn(corpus: CorpusConfig, name: str, count: int, side: int = 0) -> list[Example]:
    model = Transformer(TransformerConfig(**SHAPE), stream(0, "model"))
    config, chat = AdaptConfig(corpus=corpus), Chat(chatml_tokenizer())
    part = corpus_parts(config, model, chat, Placement.resolve("cpu", "float32"), Path())[side][name][1]
    random = Random(0)
    return [part.draw(random, 1.0) for _ in range(count)]


def test_shares_add_up_to_one_and_gsm8k_needs_its_data(tmp_path):
    corpus = CorpusConfig()
    shares = corpus_shares(corpus)
    assert "gsm8k" not in shares
    assert "own" not in shares
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["general"] == pytest.approx(corpus.general / (1 - corpus.gsm8k))
    assert corpus_shares(CorpusConfig(data_dir=str(tmp_path)))["gsm8k"] == pytest.approx(corpus.gsm8k)
    with pytest.raises(ConfigError, match=r"the corpus is empty: GSM8K needs --corpus\.data-dir"):
        corpus_shares(only(gsm8k=1.0))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"own": 0.5}, r"corpus\.own needs your rows: --corpus\.data FILE\.jsonl"),
        ({"data": "rows.jsonl"}, r"corpus\.data has no effect .* add --corpus\.own"),
        ({"sudoku_lines": -1.0}, r"corpus\.sudoku-lines must not be negative"),
        ({"right": 1.5}, r"corpus\.right must lie in \[0, 1\], got 1\.5"),
        ({"worked": -0.1}, r"corpus\.worked must lie in \[0, 1\], got -0\.1"),
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
    """The items that packed rows solve, written as items or as sums."""
    text = "\n".join(row.answer for row in rows)
    items = re.findall(r"\[([\d, ]+)\] (\d+): ", text)
    sums = [(", ".join(re.findall(r"\d+", line)), value) for line, value in re.findall(r"(.+)=(-?\d+)", text)]
    return {
        countdown.CountdownItem(tuple(map(int, numbers.split(", "))), int(target)).key
        for numbers, target in (*items, *sums)
    }


def solutions(rows: list[Example]) -> set[str]:
    return {re.search(r"\d{16}", row.answer).group() for row in rows}


def rewarded(data: Path) -> set:
    """Countdown's test items, and those that rewards are asked on."""
    benchmark = BENCHMARKS["countdown"]
    return {item.key for item in (*benchmark.test(data), *benchmark.train(data))}


def test_the_generated_items_of_rewards_are_held_out(monkeypatch):
    monkeypatch.setattr(benchmarks, "PUZZLES", 300)
    data = Path("generated")
    assert not rewarded(data) & countdown_keys(drawn(only(arithmetic=1.0), "arithmetic", 60))
    tested = {item.solution for item in BENCHMARKS["sudoku"].test(data)} | validation_keys("sudoku", data)
    assert not tested & solutions(drawn(only(sudoku=1.0), "sudoku", 300))


@pytest.fixture
def own_data(tmp_path) -> Path:
    """The files of the published data sets, with items of our own."""
    folder = tmp_path / "data"
    folder.mkdir()
    files = {
        "countdown_cd3_test.jsonl": [{"input": f"{n},2,3", "output": f"{n + 5}"} for n in range(10, 40)],
        "countdown_cd3_train_subset.jsonl": [{"nums": [n, 4, 3], "target": n + 7} for n in range(10, 40)],
        "gsm8k_test.jsonl": [{"question": f"Test question {n}?", "answer": f"#### {n}"} for n in range(50)],
        "gsm8k_train.jsonl": [
            {"question": f"Training question {n}?", "answer": f"It is {n}. #### {n}"} for n in range(400)
        ],
    }
    for name, rows in files.items():
        (folder / name).write_text("\n".join(map(json.dumps, rows)))
    puzzles = BENCHMARKS["sudoku"].test(Path("generated"))[:40]
    grids = [f"{item.puzzle},{item.solution}" for item in puzzles]
    (folder / "sudoku4x4_test_spg256.csv").write_text("\n".join(["Puzzle,Solution", *grids]))
    return folder


def test_items_of_a_data_folder_are_held_out(own_data):
    folder = str(own_data)
    assert not rewarded(own_data) & countdown_keys(
        drawn(only(arithmetic=1.0, data_dir=folder), "arithmetic", 30)
    )
    tested = {item.solution for item in sudoku_items(own_data)}
    assert len(tested) > 30
    assert not tested & solutions(drawn(only(sudoku=1.0, data_dir=folder), "sudoku", 150))
    asked = "".join(str(row.prompt) for row in drawn(only(gsm8k=1.0, data_dir=folder), "gsm8k", 300))
    held_out = "".join(map(str, validation_keys("gsm8k", own_data)))
    drawn_numbers, held_out_numbers = (
        set(re.findall(r"Training question (\d+)\?", text)) for text in (asked, held_out)
    )
    assert len(drawn_numbers) > 100
    assert len(held_out_numbers) == 40
    assert not drawn_numbers & held_out_numbers
    assert "Test question" not in asked


def test_the_published_items_of_rewards_are_held_out(shared_data):
    folder = str(shared_data)
    rows = drawn(only(arithmetic=1.0, data_dir=folder), "arithmetic", 60)
    assert not rewarded(shared_data) & countdown_keys(rows)
    tested = {item.solution for item in sudoku_items(shared_data)} | validation_keys("sudoku", shared_data)
    found = solutions(drawn(only(sudoku=1.0, data_dir=folder), "sudoku", 300))
    assert not tested & found
    assert len(found) > 100
    asked = {item.question for item in BENCHMARKS["gsm8k"].test(shared_data)}
    questions = [str(row.prompt) for row in drawn(only(gsm8k=1.0, data_dir=folder), "gsm8k", 600)]
    assert not any(question in "\n".join(questions) for question in asked)
    assert len(validation_keys("gsm8k", shared_data)) == 256
    assert not validation_keys("gsm8k", shared_data) & set(questions)


def test_rows_that_are_kept_out_are_none_of_the_training(tmp_path, own_data):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"prompt": "{n}", "completion": "b"}}\n' for n in range(40)))
    corpus = only(own=1.0, gsm8k=1.0, sudoku=1.0, data=str(path), data_dir=str(own_data))
    for name in ("own", "gsm8k", "sudoku"):
        training, kept_out = (
            {(str(row.prompt)) for row in drawn(corpus, name, 400, side=side)} for side in (0, 1)
        )
        assert training
        assert kept_out
        assert not training & kept_out


def test_own_rows_that_are_too_long_are_left_out_and_counted(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"prompt": "a", "completion": "{"b " * 5000}"}}\n')
    corpus = only(own=1.0, data=str(path))
    with pytest.raises(DataError, match="all rows are longer than 1376 tokens; raise the last of"):
        drawn(corpus, "own", 1)
    with path.open("a") as file:
        file.write('{"prompt": "a", "completion": "b"}\n')
    with pytest.warns(DtmWarning, match="1 of 2 rows are longer than 1376 tokens: dropped"):
        assert drawn(corpus, "own", 2) == [Example.of("a", "b")] * 2


def test_your_own_rows_are_a_part(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n')
    assert drawn(only(own=1.0, data=str(path)), "own", 2) == [Example.of("a", "b")] * 2
    with pytest.raises(DataError, match=r"corpus\.data: no file"):
        drawn(only(own=1.0, data=str(tmp_path / "nothing")), "own", 1)


def test_processes_make_the_same_batches_ahead_and_right_answers_to_sudoku_come_first():
    start = AdaptConfig()
    config = replace(
        start,
        pretrain=replace(start.pretrain, steps=4 * ROUND, batch=1, held_out=2),
        corpus=replace(only(sudoku=1.0), skilled=0.5, right=0.0, workers=1),
    )
    chat = Chat(chatml_tokenizer())
    mixture = Mixture({"sudoku": (1.0, Sudoku(split_solutions(seed=0)[0]))}, chat, 2, 0, (8192,))
    ahead = prefetched(mixture, mixture, config)
    for number, place in ((0, 0), (1, 0), (2, 5), (2, 1), (3, 2)):
        made, expected = ahead.batch(ROUND * number + place), round_batches(mixture, config, number)
        assert torch.equal(made.tokens, expected[place].tokens)
        assert torch.equal(made.is_completion, expected[place].is_completion)
        clean = mixture.steps("corpus", number, ROUND, 1, 1.0)
        right = [torch.equal(one.tokens, other.tokens) for one, other in zip(expected, clean, strict=True)]
        assert all(right) == (number < 2)
