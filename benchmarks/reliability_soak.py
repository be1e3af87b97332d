"""A long run, watched from outside: memory, open files and disk over its steps."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from forked import Command
from reliability_world import World

EVERY = 15.0
"""Seconds between readings."""
PAGE = 4096
NOISE = """import random
def reward(prompts, completions, **columns):
    return [random.random() for _ in completions]
"""
"""A reward that cannot be learnt: training goes on for ever."""


def run(world: World, minutes: float) -> dict[str, Any]:
    """Train for so many minutes, read the counters of the process, and ask it to stop."""
    out, reward = world.folder / "soak", world.folder / "noise.py"
    reward.write_text(NOISE)
    flags = ("--reward", f"{reward}:reward", "--tilt.final", "1e9", "--checkpoint.every", "20")
    command, readings = Command(world.train(out, *flags), world.folder), list[dict[str, float]]()
    begin = time.perf_counter()
    while not command.has_ended() and time.perf_counter() < begin + 60 * minutes:
        time.sleep(EVERY)
        reading = read(command.process, out, time.perf_counter() - begin)
        if reading is not None:
            readings.append(reading)
    os.kill(command.process, signal.SIGTERM)
    ended = command.wait()
    assert ended.code == 128 + signal.SIGTERM, ended.said
    later = readings[len(readings) // 4 :]  # the first quarter fills caches and the buffer
    names = ("resident_bytes", "open_files", "checkpoint_bytes", "state_bytes")
    steps = later[-1]["step"] - later[0]["step"]
    return {
        "hours": round(readings[-1]["seconds"] / 3600, 3),
        "steps": int(readings[-1]["step"]),
        "growth_per_1000_steps": {name: round(1000 * slope(later, name), 1) for name in names},
        "first": later[0],
        "last": later[-1],
        "log_bytes_per_step": round((later[-1]["log_bytes"] - later[0]["log_bytes"]) / steps, 1),
        "readings": readings,
    }


def read(process: int, out: Path, seconds: float) -> dict[str, float] | None:
    """The counters of a process and of its run; None once it has ended, or before its first checkpoint."""
    kernel = Path("/proc") / str(process)
    try:
        newest = max((out / "checkpoints").glob("step-*"))
        return {
            "seconds": round(seconds, 1),
            "step": int(newest.name.split("-")[1]),
            "resident_bytes": PAGE * int((kernel / "statm").read_text().split()[1]),
            "open_files": len(list((kernel / "fd").iterdir())),
            "checkpoint_bytes": size(newest),
            "state_bytes": (newest / "state.json").stat().st_size,
            "log_bytes": (out / "metrics.jsonl").stat().st_size + size(out / "samples"),
        }
    except (OSError, ValueError):
        return None


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def slope(readings: list[dict[str, float]], name: str) -> float:
    """Growth of a counter per step, by least squares."""
    xs, ys = [row["step"] for row in readings], [row[name] for row in readings]
    middle, level = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - middle) ** 2 for x in xs)
    return sum((x - middle) * (y - level) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
