"""`dtm chat`: lines in, answers out, with a history for each model."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import torch

import dtm
from dtm.cli import main
from dtm.models.adapters import LoRA
from dtm.models.export import save_adapter
from dtm.models.policy import Policy
from dtm.models.source import load_source
from dtm.models.storage import save_hub
from dtm.random import stream
from dtm.tasks.language.tokenizer import Chat

pytest.importorskip("transformers")

SHORT = ("--length", "16", "--device", "cpu")


@pytest.fixture
def talk(monkeypatch, capsys):
    """The output of a conversation whose lines come from a pipe."""

    def run(model: Path, *lines: str, flags: tuple[str, ...] = (), code: int = 0) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
        assert main(["chat", str(model), *SHORT, *flags]) == code
        printed = capsys.readouterr()
        return printed.out if code == 0 else " ".join(printed.err.split())

    return run


@pytest.fixture
def asked(monkeypatch) -> list:
    """The conversations that models were given."""
    seen: list = []
    usual = Chat.ask
    monkeypatch.setattr(
        Chat,
        "ask",
        lambda self, messages, **more: seen.append(list(messages)) or usual(self, messages, **more),
    )
    return seen


@pytest.fixture
def adapter(write_talking, tmp_path) -> Path:
    """An adapter that changes the answers of its base."""
    base = write_talking("dream")
    policy = Policy(dtm.load_model(base), lora=LoRA(rank=2, alpha=4.0, targets=("all",)))
    with torch.no_grad():
        for name, value in policy.student.named_parameters():
            if "lora" in name:
                value.add_(torch.randn(value.shape, generator=stream(0, name)))
    save_adapter(policy.student, policy.lora, tmp_path / "adapter", base)
    return tmp_path / "adapter"


def test_each_line_is_answered_and_the_model_reads_the_whole_conversation(write_talking, talk, asked):
    text = talk(write_talking("dream"), "hello", "", "and you")
    first, second = asked
    assert first == [{"role": "user", "content": "hello"}]
    assert [turn["role"] for turn in second] == ["user", "assistant", "user"]
    assert second[0] == first[0]
    assert text.startswith(second[1]["content"] + "\n")
    assert len(text) > len(second[1]["content"]) + 1


def test_a_new_conversation_forgets_and_quit_ends(write_talking, talk, asked):
    model = write_talking("dream")
    text = talk(model, "hello", "/new", "hello", "/huh", "/quit", "never asked")
    assert asked == [[{"role": "user", "content": "hello"}]] * 2
    answers, hint = text.split("no command /huh: ")
    assert answers == 2 * answers[: len(answers) // 2]
    assert hint.startswith("/new begins a new conversation")


def test_the_seed_decides_at_a_temperature(write_talking, talk):
    model = write_talking("dream")
    warm = [talk(model, "hello", flags=("--temperature", "1", "--seed", seed)) for seed in ("0", "0", "1")]
    assert warm[0] == warm[1] != warm[2]


def test_the_base_answers_beside_the_tuned_model_with_its_own_history(adapter, talk, asked):
    text = talk(adapter, "hello", "again", flags=("--base",))
    base, tuned = asked[2:]
    assert text.startswith(f"base: {base[1]['content']}\ntuned: {tuned[1]['content']}\nbase: ")
    assert base[0] == tuned[0]
    assert base[1] != tuned[1]


def test_answers_are_uncovered_on_a_terminal_side_by_side_with_a_base(adapter, talk, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    assert "░" in talk(adapter, "hello")
    assert len(pauses) == 9  # the fully masked answer, and each of the 8 steps
    both = talk(adapter, "hello", flags=("--base",))
    assert any("base" in line and "tuned" in line for line in both.splitlines())
    assert both.count("step 8 of 8") >= 2


def test_a_person_is_told_the_commands_and_ends_with_control_d(write_talking, monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    lines = iter(["hello", ""])

    def read(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", read)
    assert main(["chat", str(write_talking("dream")), *SHORT]) == 0
    assert "/quit or Ctrl-D ends" in capsys.readouterr().out


def test_a_block_causal_model_is_decoded_in_its_own_blocks(write_source, tmp_path, talk):
    source = load_source(write_source("llama"), attention_block=8, mask_token=None)
    save_hub(source.model, source.tokenizer, tmp_path / "base")
    assert talk(tmp_path / "base", "the sum")
    assert "attends in blocks of 8" in talk(tmp_path / "base", "a", flags=("--block", "16"), code=2)
    assert "must be a multiple of the block of 8" in talk(tmp_path / "base", flags=("--length", "12"), code=2)


def test_a_model_without_a_base_refuses_to_show_one(write_talking, talk):
    assert "neither a tuned run nor an adapter" in talk(write_talking("dream"), flags=("--base",), code=2)


def test_a_maze_run_has_no_text_to_chat_in(finished, capsys):
    assert main(["chat", str(finished.path)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "is a run of the task maze, which has no tokenizer: there is no text to chat in" in told
    assert f"Use `dtm sample {finished.path}`" in told
