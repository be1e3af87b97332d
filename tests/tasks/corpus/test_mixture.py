"""Batches of a mixture: where completions begin, what is padding, what is learnt."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from checkpoints import chatml_tokenizer
from dtm.errors import DataError
from dtm.tasks.corpus.countdown import EQUATIONS, LINES, Arithmetic
from dtm.tasks.corpus.mixture import Mixture
from dtm.tasks.corpus.part import Example, pieces
from dtm.tasks.language.tokenizer import Chat

pytest.importorskip("transformers")

END = 2


@dataclass(frozen=True)
class Words:
    """Prompts and answers of several lengths."""

    longest: int = 12

    def draw(self, random, right):
        return Example.of("the " * random.randint(1, self.longest), "sum " * random.randint(1, self.longest))


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(chatml_tokenizer())


@pytest.fixture
def mixture(chat) -> Mixture:
    return Mixture({"words": (1.0, Words())}, chat, END, seed=0, lengths=(48, 64, 96))


def rows_of(batches):
    """Token ids, attention and completion of each row."""
    for batch in batches:
        yield from zip(batch.tokens, batch.attention, batch.is_completion, strict=True)


def test_with_full_attention_a_completion_begins_where_its_prompt_ends(mixture, chat):
    for tokens, real, learnt in rows_of(mixture.batches("corpus", 0, 40, 1.0)):
        assert real.all()
        begin = int(learnt.nonzero()[0])
        assert learnt[begin:].all()  # the answer, and the end tokens after it
        assert chat.read(tokens[:begin].tolist(), special=True).endswith("<|im_start|>assistant\n")
        answer = tokens[begin:].tolist()
        first = answer.index(END)
        assert set(chat.read(answer[:first]).split()) == {"sum"}
        assert set(answer[first:]) == {END}


def test_steps_have_one_length_each_and_about_the_same_tokens(mixture):
    mixture = replace(mixture, lengths=(24, 32, 96))
    steps = mixture.steps("corpus", 0, 16, 40, 1.0)
    tokens = [batch.tokens.numel() for batch in steps]
    assert len(steps) == 16
    assert sum(map(len, steps)) == 16 * 40
    assert {batch.tokens.shape[1] for batch in steps} == {24, 32, 96}
    assert max(tokens) < 1.6 * sum(tokens) / 16
    drawn, divided = (
        sorted(tuple(row) for batch in batches for row in batch.tokens.tolist())
        for batches in (mixture.batches("corpus", 0, 640, 1.0), steps)
    )
    assert drawn == divided


def test_a_step_is_never_empty(mixture):
    steps = replace(mixture, lengths=(24, 32, 96)).steps("corpus", 0, 16, 1, 1.0)
    assert 1 <= len(steps) <= 16
    assert all(len(batch) for batch in steps)


def test_with_blocks_completions_begin_at_whole_blocks_and_prompts_are_padded_on_the_left(mixture, chat):
    for tokens, real, learnt in rows_of(replace(mixture, block=16).batches("corpus", 0, 40, 1.0)):
        begin, first = int(learnt.nonzero()[0]), int(real.nonzero()[0])
        assert begin % 16 == 0
        assert real[first:].all()
        assert first < 16
        assert set(tokens[:first].tolist()) <= {END}
        assert chat.read(tokens[first:begin].tolist(), special=True).startswith("<|im_start|>user\n")
        assert learnt[begin:].all()


@pytest.mark.parametrize("block", [1, 8])
def test_questions_of_packed_rows_are_learnt_with_blocks_alone(chat, block):
    mixture = Mixture({"sums": (1.0, Arithmetic(()))}, chat, END, 0, lengths=(1024,), block=block)
    for tokens, _, learnt in rows_of(mixture.batches("corpus", 0, 4, 1.0)):
        begin = int(learnt.nonzero()[0])
        end = int((tokens[begin:] == END).nonzero()[0]) + begin
        if block == 8:
            assert learnt[begin:].all()
            continue
        text = chat.read(tokens[learnt & (torch.arange(len(tokens)) < end)].tolist())
        assert len(text.splitlines()) in (LINES, EQUATIONS)
        assert ":" not in text
        assert "[" not in text
        assert learnt[end:].all()


def test_pieces_are_encoded_one_by_one(chat):
    @dataclass(frozen=True)
    class One:
        def draw(self, random, right):
            return Example("?", pieces([("the", " sum"), (" of", " the")]))

    batch = Mixture({"one": (1.0, One())}, chat, END, 0, lengths=(48,)).batches("corpus", 0, 1, 1.0)[0]
    tokens, learnt = batch.tokens[0], batch.is_completion[0]
    told = tokens[learnt].tolist()
    assert told[: told.index(END)] == [id for text in (" sum", " the") for id in chat.encode([text])[0]]


@pytest.mark.parametrize("block", [1, 8])
def test_the_given_start_of_an_answer_belongs_to_the_prompt(chat, block):
    @dataclass(frozen=True)
    class One:
        def draw(self, random, right):
            return Example.worked("?", "<reasoning>\nthe sum of the\n</reasoning>")

    mixture = Mixture({"one": (1.0, One())}, chat, END, 0, lengths=(96,), block=block)
    batch = mixture.batches("corpus", 0, 1, 1.0)[0]
    tokens, learnt = batch.tokens[0], batch.is_completion[0]
    begin = int(learnt.nonzero()[0])
    assert learnt[begin:].all()
    assert chat.read(tokens[:begin].tolist()).endswith("<reasoning>\n")
    told = tokens[begin:].tolist()
    assert chat.read(told[: told.index(END)]) == "the sum of the\n</reasoning>"


def test_rows_that_are_too_long_are_left_out(chat):
    short, long = Words(2), Words(200)
    parts = {"short": (0.5, short), "long": (0.5, long)}
    batches = Mixture(parts, chat, END, 0, lengths=(48,)).batches("corpus", 0, 60, 1.0)
    assert 20 < sum(map(len, batches)) < 60


def test_a_corpus_without_a_row_that_fits_is_refused(mixture):
    with pytest.raises(DataError, match=r"no row of the corpus fits into corpus\.lengths \(8,\): raise the"):
        replace(mixture, lengths=(8,)).batches("corpus", 0, 20, 1.0)


def test_batches_are_decided_by_the_seed_the_purpose_and_the_step(mixture):
    def drawn(of: Mixture, purpose: str, step: int):
        return [batch.tokens.tolist() for batch in of.batches(purpose, step, 8, 1.0)]

    first = drawn(mixture, "corpus", 3)
    assert first == drawn(mixture, "corpus", 3)
    assert first != drawn(mixture, "corpus", 4)
    assert first != drawn(mixture, "held-out corpus", 3)
    assert first != drawn(replace(mixture, seed=1), "corpus", 3)


def test_parts_come_in_their_shares(chat):
    parts = {"short": (3.0, Words(1)), "packed": (1.0, Arithmetic(()))}
    batches = Mixture(parts, chat, END, 0, lengths=(64, 512)).batches("corpus", 0, 200, 1.0)
    assert [batch.tokens.shape[1] for batch in batches] == [64, 512]
    assert 120 < len(batches[0]) < 180
