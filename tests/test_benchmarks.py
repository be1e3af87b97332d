"""The studies and GPU benchmarks, from end to end in miniature: GPU minutes are not to be lost to a slip."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("maze.py --smoke", "runs/maze/results/summary.json"),
        ("maze_small.py --smoke", "runs/maze-small/results/maze-small.json"),
        ("run_page.py --smoke", "runs/run-page/run-page.json"),
        ("meter.py --smoke", "runs/meter/results/meter.json"),
        ("meter_language.py --recipe maze-small --prompts 6 --readings 3 --out meter.json", "meter.json"),
        ("maze_exact.py --pairs 8 --paths 8 --json exact.json", "exact.json"),
        ("maze_speed.py --rows 16 --batch 8 --steps 2 --json speed.json", "speed.json"),
        ("mini.py --smoke --jobs 2", "runs/mini/results/countdown-mini/ablations.json"),
        ("compare.py --smoke", "runs/compare/results/sudoku-seconds.json"),
        (
            "compare.py --smoke --laptop --newer --methods c-dtm,dmpo --also best-of-2",
            "runs/compare/results/sudoku-newer.json",
        ),
        ("llada8b.py --smoke --out llada8b.json", "llada8b.json"),
        ("families.py --smoke --out families.json", "families.json"),
        ("block_causal.py --scale smoke --seeds 1 --out block_causal.json", "block_causal.json"),
        ("processes.py --smoke --out processes.json", "processes.json"),
        ("against.py HEAD --smoke --pairs 1 --out against.json", "against.json"),
        *(
            (f"reliability.py {part} --scale 0.02 --minutes 0.7 --out .", f"{part}.json")
            for part in ("kills", "faults", "inputs", "soak", "fuzz")
        ),
    ],
)
def test_a_study_runs_in_miniature(call, result, tmp_path):
    script, *flags = call.split()
    command = [sys.executable, str(ROOT / "benchmarks" / script), *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / result).read_text())


@pytest.mark.slow
def test_a_failed_part_of_the_families_is_told_and_the_others_are_kept(tmp_path):
    code = (
        "import families, sys; families.PARTS['rollouts'] = lambda *_: 1 / 0;"
        "sys.argv = ['families.py', '--smoke', '--only', 'llada2.0-mini', '--out', 'found.json'];"
        "families.main()"
    )
    folder = ROOT / "benchmarks"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    case = json.loads((tmp_path / "found.json").read_text())["cases"]["llada2.0-mini"]
    assert "ZeroDivisionError" in case["rollouts_failed"]
    assert case["rows_per_s"] > 0


@pytest.mark.slow
def test_a_failed_case_of_the_processes_is_named_and_the_others_are_kept(tmp_path):
    code = (
        "import processes, sys; processes.CASES['adapters'] = {'adapter': {'rank': 2, 'targets': 'nothing'}};"
        "sys.argv = ['processes.py', '--smoke', '--only', 'adapters', 'all weights', '--out', 'found.json'];"
        "processes.main()"
    )
    folder = ROOT / "benchmarks"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "failed: adapters" in done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found["failed"]) == ["adapters"]
    assert "nothing" in found["failed"]["adapters"]
    assert found["cases"]["all weights"]["equal_rewards"] == 1


@pytest.mark.slow
def test_the_language_study_runs_in_miniature(write_source, shared_data, tmp_path):
    script = str(ROOT / "benchmarks" / "language.py")
    call = [sys.executable, script, "all", "--smoke", "--out", "study", "--only", "countdown,supervised"]
    call += ["--source", str(write_source("llama")), "--data-dir", str(shared_data), "--minutes", "8"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(path.read_text()) for path in (tmp_path / "study" / "rows").glob("*.json")]
    assert sorted((row["name"], row["seed"]) for row in rows) == [
        (name, seed) for name in ("countdown", "supervised") for seed in range(3)
    ]
    assert "sampled" in json.loads((tmp_path / "study" / "full" / "base.json").read_text())


@pytest.mark.slow
def test_the_prefix_cache_of_block_causal_models_changes_no_token(tmp_path):
    script = str(ROOT / "benchmarks" / "families.py")
    call = [sys.executable, script, "--smoke", "--parts", "rollouts", "--out", "found.json"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads((tmp_path / "found.json").read_text())["cases"]
    assert {case["float32_tokens_as_without_cache"] for case in cases.values()} == {1.0}
