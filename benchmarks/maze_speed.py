"""Rollouts and updates of the maze model against the hardware: python benchmarks/maze_speed.py.

Every rate is a median after warm-up; beside it stands the floor: the seconds that its multiplications would
take at the rate of a large matrix product measured in the same run, and the seconds that reading and writing
each block's activations once would take at the measured bandwidth. --json FILE keeps the numbers; --rows,
--batch and --steps make it small enough for any machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

import dtm
from dtm.engine import generate
from dtm.loop.assemble import assemble
from dtm.loop.trainer import Trainer
from dtm.models.transformer import Transformer
from dtm.random import stream
from dtm.runs.environment import commit, environment


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median time of a call, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        synchronise()
        begin = time.perf_counter()
        work()
        synchronise()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def synchronise() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_flops(device: torch.device) -> float:
    """Multiply-adds, two operations each, a second of a large matrix product in the run's precision."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (512, torch.float32)
    matrix = torch.randn(size, size, device=device, dtype=dtype)
    return 2 * size**3 / seconds(lambda: matrix @ matrix, 5)


def bandwidth(device: torch.device) -> float:
    """Bytes read and written a second by a large copy."""
    data = torch.empty(2**29 if device.type == "cuda" else 2**24, dtype=torch.uint8, device=device)
    return 2 * data.numel() / seconds(lambda: data.clone(), 5)


def row_bytes(model: Transformer, length: int, scored: float) -> float:
    """Bytes that one row's forward pass moves if every block input, projection and output moves once.

    The last block's output and feed-forward layer are those of the scored positions.
    """
    shape = model.config
    block = 2 * 4 * shape.width + 2 * 2 * (5 * shape.width + 3 * shape.ffn)
    second_half = 4 * shape.width + 2 * 2 * (shape.width + 3 * shape.ffn)
    return shape.layers * length * block - (length - scored) * second_half


class Passes:
    """Counts a model's passes and their rows of so many positions, as its ``on_pass``."""

    def __init__(self, length: int) -> None:
        self.length, self.rows, self.passes = length, 0, 0

    def __call__(self, model: object, computed: int, *rest: object) -> None:
        """Count one."""
        self.rows += computed // self.length
        self.passes += 1


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", metavar="DIR", help="a pretrained base; random weights decode more slowly")
    parser.add_argument("--rows", type=int, default=2560, metavar="N", help="rollouts of a buffer")
    parser.add_argument("--batch", type=int, default=768, metavar="N", help="rows of an update")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="updates of a phase")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to a file")
    options = parser.parse_args()
    recipe = dtm.recipe("maze")
    config = replace(
        recipe,
        decoding=replace(recipe.decoding, batch=options.rows),
        replay=replace(recipe.replay, prompts=options.rows // 8, completions=8, refresh_every=options.steps),
        optimizer=replace(recipe.optimizer, batch=options.batch),
        tilt=replace(recipe.tilt, max_steps=options.steps, absorbed="never"),
        model=replace(recipe.model, base=options.base),
    )
    assembly = assemble(config)
    if options.base is None:
        assembly = assemble(config, model=assembly.new_model())
    device, task = assembly.placement.device, assembly.task
    trainer = Trainer(assembly)
    flops, speed = peak_flops(device), bandwidth(device)
    length = 3 + task.completion_length
    model: Transformer = trainer.policy.teacher  # type: ignore[assignment]
    counted, ledger = Passes(length), model.on_pass
    prompts = task.prompts("train", options.rows // 8, stream(0, "prompts")).to(device)

    def rollouts() -> None:
        counted.rows = counted.passes = 0
        with assembly.placement.autocast():
            generate(
                model,
                prompts,
                assembly.task.completion_length,
                assembly.decoder,
                completions=8,
                batch=options.rows,
            )

    model.on_pass = counted
    buffer = seconds(rollouts, 3)
    model.on_pass = ledger
    replay = trainer.open_phase()
    update = seconds(lambda: trainer.step(replay), 20)
    scored = (config.decoding.block or task.completion_length) / 2
    forward = (
        model.config.flops(length, length, scored) / flops,
        row_bytes(model, length, scored) / speed,
    )
    rows = [
        ("a buffer of rollouts", buffer, counted.rows, forward),
        ("an update", update, options.batch, tuple(4 * floor for floor in forward)),
    ]
    print("| | seconds | floor: multiplications | floor: bandwidth | times the larger floor |")
    print("|---|--:|--:|--:|--:|")
    table = []
    for name, took, passed, floor in rows:
        floors = [passed * part for part in floor]
        table.append({"what": name, "seconds": took, "flops": floors[0], "bandwidth": floors[1]})
        print(f"| {name} | {took:.4f} | {floors[0]:.4f} | {floors[1]:.4f} | {took / max(floors):.1f} |")
    phase = 2 * buffer + options.steps * update
    print(
        f"{options.rows / buffer:.0f} rollouts/s ({counted.passes} passes, {counted.rows / options.rows:.1f} "
        f"full rows each); {1 / update:.1f} updates/s of {options.batch} rows; a phase of {options.steps} "
        f"updates and two buffers: {phase:.1f} s"
    )
    if options.json is not None:
        kept = {"rows": table, "phase_seconds": phase, "rollouts_per_s": options.rows / buffer}
        kept |= {"updates_per_s": 1 / update, "commit": commit(), "environment": environment()}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
