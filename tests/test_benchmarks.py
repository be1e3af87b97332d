"""Every study and benchmark runs from end to end in miniature, so that GPU minutes are not lost to a slip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        "maze.py --smoke",
        "maze_small.py --smoke",
        "maze_speed.py --rows 16 --batch 8 --steps 2 --json speed.json",
        "mini.py --smoke --jobs 2",
        "compare.py --smoke",
        "llada8b.py --smoke --out llada8b.json",
    ],
)
def test_a_benchmark_runs_in_miniature(call, tmp_path):
    script, *flags = call.split()
    command = [sys.executable, str(ROOT / "benchmarks" / script), *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.rglob("*.json"))
