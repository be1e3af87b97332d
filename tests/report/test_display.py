"""What a person sees of a run, on a terminal and in a file."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dtm.evaluation.evaluate import Evaluation
from dtm.loop.assemble import assemble
from dtm.report import display
from dtm.report.display import Display, measures_table, print_pretraining, summary_table
from dtm.runs.events import Event


def shown(table) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_is_followed_step_by_step(terminal, tiny, make_trainer, monkeypatch):
    monkeypatch.setattr(display, "PLAIN_EVERY", 0.0)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    with Display(tiny, assemble(tiny).loop, console) as follower:
        make_trainer(tiny, callbacks=[follower]).run()
    text = console.file.getvalue()
    for part in (
        "phase 1  a 0 → 1  4 steps (step limit)",
        "phase 2  a 1 → 2",
        "a = 2     held out, temperature 1:",
    ):
        assert part in text
    assert "stopped: reached the final tilt A = 2" in text
    assert "step 3" in text
    assert "rollouts/s" in text


def test_a_narrow_terminal_shows_the_whole_names_of_measures():
    console = Console(file=io.StringIO(), width=40)
    evaluation = Evaluation({"reward": 0.445, "reward_of_valid": 0.458}, 0.6, [], [], [])
    console.print(measures_table({"base": evaluation, "tuned": evaluation}))
    names = [line.split("│")[1].strip() for line in console.file.getvalue().splitlines() if "│" in line]
    assert "".join(names) == "rewardreward_of_valid"


def test_a_resumed_run_is_followed_before_it_has_drawn_any_rollouts(tiny, make_trainer, tmp_path):
    first = make_trainer(tiny, checkpoints=tmp_path)
    first._advance()
    first.save()
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with Display(tiny, assemble(tiny).loop, console) as follower:
        second = make_trainer(tiny, checkpoints=tmp_path, callbacks=[follower])
        second.resume(tmp_path)
        second._advance()
    assert "resumed at step 1, a = 0" in console.file.getvalue()
    assert "reward –" in console.file.getvalue()


def test_a_pretraining_shows_its_speed_in_steps_and_where_known_in_tokens():
    console = Console(file=io.StringIO(), width=160)
    values = {"steps": 200, "loss": 2.5, "held_out": 3.25, "steps_per_second": 0.04}
    print_pretraining(Event("step", 100, values), console)
    print_pretraining(Event("step", 200, {**values, "tokens_per_second": 12345.6}), console)
    first, second = console.file.getvalue().splitlines()
    assert first.endswith("held-out bound 3.250 nats  0.04 steps/s  41:40 left")
    assert second.endswith("0.04 steps/s  12,346 tokens/s  0:00 left")


def test_the_summary_shows_base_tuned_best_and_the_gap():
    summary = {
        "recipe": "maze-small", "seed": 1, "finished": "reached", "minutes": 2.5, "gap_closed": 0.42,
        "best": 0.7, "base": {"reward": 0.125, "valid": 0.5}, "tuned": {"reward": 0.375, "valid": 0.75},
    }  # fmt: skip
    text = shown(summary_table(summary))
    for part in ("0.125", "0.375", "0.700", "0.500", "0.750", "42% of the gap", "2.5 minutes"):
        assert part in text
    fell = summary | {"base": summary["tuned"], "tuned": summary["base"], "gap_closed": -0.59}
    assert "reward fell (0.375 → 0.125)" in shown(summary_table(fell))
    del summary["best"], summary["gap_closed"]
    assert "gap" not in shown(summary_table(summary))


def test_measures_of_several_models_stand_side_by_side():
    results = {
        "base": Evaluation({"reward": 0.1}, 0.7, [], [], []),
        "tuned": Evaluation({"reward": 0.3}, 0.7, [], [], []),
    }
    text = shown(measures_table(results))
    assert text.index("base") < text.index("tuned")
    for part in ("0.100", "0.300", "0.700"):
        assert part in text
