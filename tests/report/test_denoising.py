"""`dtm sample MODEL --prompt`: what is shown is what was decoded, step by step."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from dtm.cli import main
from dtm.engine.frames import frames
from dtm.report.denoising import drawn, show

TOKENS, STEPS = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 0, 0, 2])


def read(ids) -> str:
    return "".join("abcd"[token] for token in ids)


def test_each_step_uncovers_its_tokens_and_keeps_the_others():
    found = list(frames(TOKENS, STEPS))
    assert [drawn(frame, read).plain for frame in found] == ["░░░░", "░bc░", "abc░", "abcd"]
    assert [[kind for kind, _ in frame.runs] for frame in found] == [
        ["masked"],
        ["masked", "new", "masked"],
        ["new", "old", "masked"],
        ["old", "new"],
    ]


def test_a_file_gets_a_few_snapshots_and_a_terminal_every_step(monkeypatch):
    many = list(frames(torch.zeros(64, dtype=torch.long), torch.arange(64)))
    plain = Console(file=io.StringIO(), width=200)
    show(many, read, plain)
    text = plain.file.getvalue()
    assert [line for line in text.splitlines() if "step" in line] == [
        f"── step {step} of 64" for step in (0, 16, 32, 48, 64)
    ]
    assert text.splitlines()[-1] == "a" * 64
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    terminal = Console(file=io.StringIO(), width=200, force_terminal=True)
    show(many, read, terminal)
    assert all(f"step {step} of 64" in terminal.file.getvalue() for step in range(65))


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_a_model_answers_a_prompt_and_the_seed_decides(write_talking, capsys):
    pytest.importorskip("transformers")
    folder = write_talking("dream")

    def text(*flags):
        asked = ("--prompt", "Say hello.", "--length", 16, "--device", "cpu")
        assert run("sample", folder, *asked, *flags) == 0
        return capsys.readouterr().out

    greedy = text("--block", 8, "--steps", 4)
    assert greedy.splitlines()[:2] == ["── step 0 of 4", "░" * 16]
    assert greedy == text("--block", 8, "--steps", 4, "--seed", 1)
    assert "step 8 of 8" in text()
    warm = [text("--temperature", 1, "--seed", seed) for seed in (0, 0, 1)]
    assert warm[0] == warm[1] != warm[2]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (
            ["--prompt", "a", "--length", "33", "--block", "32"],
            "--length 33 must be a multiple of the block of 32",
        ),
        (
            ["--prompt", "a", "--length", "64", "--steps", "30"],
            "--steps 30: each step must reveal the same number of tokens",
        ),
        (["--prompt", "a", "--prompts", "3"], "--prompts is for runs, without --prompt"),
        (["--length", "64"], "--length needs --prompt"),
        ([], "is a model and not a run: give the question with --prompt TEXT"),
        (["--prompt", "a"], "tokenizer.json is missing"),
    ],
)
def test_a_mistake_ends_with_code_2_and_names_the_remedy(flags, named, write_hub, capsys):
    assert run("sample", write_hub("llada"), *flags) == 2
    assert named in " ".join(capsys.readouterr().err.split())
