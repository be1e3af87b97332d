"""`dtm sample --best-of` and `--smc`: what is printed, for runs and for models, and what is refused."""

from __future__ import annotations

import re

import pytest

from dtm.cli import main
from dtm.tasks.language import benchmarks

REWARD = """
def short(prompts, completions, **columns):
    return [-float(len(text)) for text in completions]
"""


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(REWARD)

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["sample", *arguments])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def test_the_best_of_a_runs_draws_is_shown_with_its_cost(finished, call):
    code, text = call(str(finished.path), "--best-of", "4", "--prompts", "3", "--seed", "4")
    assert code == 0
    assert text.count("\nreward ") == 3
    assert "best-of-4: each answer is the highest reward of 4 completions\n" in text
    assert "at most log n − (n − 1)/n = 0.64 nats" in text
    assert re.search(
        r"cost of an answer: \d+ forward passes and 4 reward calls; of all 3: \d+ and 12\n", text
    )
    assert call(str(finished.path), "--best-of", "4", "--prompts", "3", "--seed", "4") == (0, text)


def test_smc_says_that_its_answers_are_draws_and_which_law_they_have(finished, call):
    run = (str(finished.path), "--base", "--prompts", "2")
    code, text = call(*run, "--smc", "3", "--tilt", "2", "--gibbs", "1", "--show", "all")
    assert code == 0
    assert text.count("\nreward ") == 6
    weights = [float(value) for value in re.findall(r"weight (\d\.\d+)", text)]
    assert [sum(weights[:3]), sum(weights[3:])] == pytest.approx([1, 1], abs=2e-3)
    assert "smc-3-gibbs-1: each answer is shown with all 3 completions and their weights\n" in text
    assert "weights: the law ρ e^(a r), a = 2, ρ that of the decoder; bias O(1/N)\n" in text
    assert re.search(r"log Z -?\d\.\d+, effective \d\.\d of 3", text)
    _, best = call(*run, "--smc", "3", "--tilt", "2", "--show", "best")
    assert "the highest reward of 3 completions; not a draw of the tilted law" in best
    _, soft = call(*run, "--best-of", "3", "--tilt", "2")
    assert "weights: e^(a r), a = 2; a tilt by less than a, never above N" in soft


def test_a_model_is_steered_on_a_task(write_talking, call, monkeypatch, tmp_path):
    """On rows of one's own with one's own reward, and on a benchmark with its reward."""
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "{n}+{n}?"}}\n' for n in range(40)))
    monkeypatch.setattr(benchmarks, "PUZZLES", 600)
    folder, decoding = str(write_talking("llada")), ("--length", "8", "--block", "4", "--prompts", "1")
    own = ("--task", "custom", "--data", "rows.jsonl", "--reward", "my.py:short")
    for task in (own, ("--task", "countdown", "--data-dir", "generated")):
        code, text = call(folder, *task, *decoding, "--smc", "2", "--tilt", "1")
        assert code == 0, text
        assert text.count("\nreward ") == 1
        assert "smc-2: each answer is one of 2 completions" in text


def test_a_prompt_is_steered_by_a_reward_of_ones_own(write_talking, call):
    """The best answer is the shortest."""
    decoding = ("--length", "8", "--block", "4")
    asked = (str(write_talking("dream")), "--prompt", "1+1?", "--reward", "my.py:short")
    code, text = call(*asked, "--best-of", "6", *decoding)
    assert code == 0, text
    shown = re.findall(r"reward (-\d+\.\d+)", text)
    _, every = call(*asked, "--best-of", "6", "--show", "all", *decoding)
    found = re.findall(r"reward (-\d+\.\d+)", every)
    assert len(found) == 6
    assert [float(reward) for reward in shown] == [max(map(float, found))]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--best-of", "0"], "at least 1 completion, got 0"),
        (["--smc", "4"], "give a with --tilt A"),
        (["--smc", "0", "--tilt", "1"], "at least 1 particle, got 0"),
        (["--smc", "4", "--tilt", "-1"], "not negative, got -1.0: negate the reward"),
        (["--smc", "4", "--tilt", "1", "--best-of", "4"], "give either --best-of or --smc"),
        (["--smc", "4", "--tilt", "1", "--draws", "0"], "--draws must be at least 1"),
        (
            ["--smc", "4", "--tilt", "1", "--values", "greedy", "--draws", "3"],
            "a greedy value has one completion",
        ),
        (["--smc", "1", "--tilt", "1", "--gibbs"], "at least 2 particles"),
        (["--best-of", "4", "--gibbs", "2"], "--gibbs needs --smc N"),
        (["--best-of", "4", "--correct"], "--correct needs --smc N"),
        (["--tilt", "2"], "--tilt needs --best-of N or --smc N (--best-of 1: plain answers)"),
        (["--task", "countdown"], "--task needs --best-of N or --smc N (--best-of 1: plain answers)"),
        (["--best-of", "4", "--prompt", "hi"], "give your own with --reward FILE.py:FUNCTION"),
        (["--best-of", "4", "--reward", "my.py:short"], "a run has its own data and reward"),
        (["--best-of", "4", "--length", "8"], "a run is decoded with its own settings"),
        (["--best-of", "4", "--temperature", "0"], "would be alike: steer with --temperature 1"),
        (["--best-of", "4", "--prompts", "0"], "evaluation.prompts must be at least 1"),
        (["--best-of", "4", "--task", "countdown", "--base"], "--base is for runs"),
    ],
)
def test_mistakes_are_answered(arguments, said, finished, call):
    code, text = call(str(finished.path), *arguments)
    assert code == 2
    assert said in " ".join(text.split())


def test_a_model_without_a_reward_is_refused(write_talking, call):
    folder = str(write_talking("llada"))
    for arguments, said in (
        (["--smc", "4", "--tilt", "1"], "name a reward with --task"),
        (["--best-of", "2", "--task", "countdwn"], "Did you mean 'countdown'"),
        (["--best-of", "2", "--task", "custom", "--data", "none.jsonl"], "none.jsonl"),
        (["--best-of", "2", "--prompt", "hi", "--reward", "no.py:f"], "there is no file no.py"),
    ):
        code, text = call(folder, *arguments)
        assert code == 2
        assert said in " ".join(text.split())
