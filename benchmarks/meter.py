"""The numbers behind results/meter.json: python benchmarks/meter.py --out runs/meter --jobs 2.

First the calibration of the progress meter, on a world small enough to enumerate, drawn by the real decoder:
its mean, its spread, the error that it prints and how often that covers the truth. Then `maze-small` with and
without phases that the meter ends, three seeds each, measured on the test pairs. Each run has a folder, and
one that has finished is not repeated.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import dtm
from dtm import api
from dtm.comparison.jobs import run_all
from dtm.comparison.sweep import spread
from dtm.config import EvaluationConfig
from dtm.engine import Decoder, generate
from dtm.engine.orders import MaxProbability, Order, SampledConfidence, Uniform
from dtm.loop.meter import Meter
from dtm.models import Policy
from dtm.random import stream
from dtm.records import Rollouts
from dtm.verify.exact import World, denoiser, number, random_world
from dtm.writing import write_json
from study import called, commits, inputs, machine, publish

RESULTS = Path(__file__).parents[1] / "results"
SEEDS = (0, 1, 2)
RULES: dict[str, float | Literal["never"]] = {"meter": 0.9, "never": "never"}
"""tilt.absorbed of the runs: phases that the meter ends, and phases of all their steps."""
H, VOCAB, LENGTH, PROMPT = 2.0, 3, 5, 1
PROMPTS, COMPLETIONS = 40, 8
"""Rollouts of one reading."""
ORDERS: dict[str, Order] = {
    "uniform": Uniform(),
    "max-probability": MaxProbability(),
    "sampled-confidence": SampledConfidence(),
}
EXACT = {"untrained": 0.0, "half way": 0.5, "perfect": 1.0}
"""The share that these students have tilted by."""
TEST = EvaluationConfig(split="test", prompts=236, completions=16)


# ── calibration ───────────────────────────────────────────────────────────────────────────────────


def students(world: World) -> dict[str, Tensor]:
    """Posteriors of an untrained, a half trained, a perfect and a wrong student."""
    target = world.tilted(H).posterior()
    noise = torch.rand(target.shape, generator=stream(0, "student"), dtype=target.dtype)
    wrong = 0.7 * target + 0.3 * noise / noise.sum(-1, keepdim=True)
    return {
        "untrained": world.posterior(),
        "half way": world.tilted(H / 2).posterior(),
        "perfect": target,
        "perfect, and 30 % noise": wrong,
    }


def rollouts(world: World, order: Order, prompts: int, seed: int) -> Rollouts:
    """Completions of random prompts by the exact posterior, and their rewards."""
    asked = torch.randint(VOCAB, (prompts, PROMPT), generator=stream(seed, "prompts"))
    length = LENGTH - PROMPT
    done = generate(
        world.denoiser(), asked, length, Decoder(order=order), seed=seed, completions=COMPLETIONS, batch=4096
    )
    reward = world.reward[number(done.tokens, VOCAB)].float()
    group = torch.arange(prompts).repeat_interleave(COMPLETIONS)
    parts = (done.tokens, done.attention, done.is_completion, done.revealed_at, done.log_prob)
    return Rollouts(*parts, reward, group, 0.0)


def policy(world: World, table: Tensor) -> Policy:
    """A student with the given posterior, beside the world's own as π_a."""
    made = Policy(world.denoiser())
    made.student.load_state_dict(denoiser(table).state_dict())
    return made


def calibration(truth: float, readings: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Readings against the truth: mean, spread, the error shown, and how often that covers the truth."""
    share, error = torch.tensor(readings, dtype=torch.float64).unbind(1)
    missed = (share - truth).abs() / error.clamp(min=1e-12)
    return {
        "truth": truth,
        "mean": float(share.mean()),
        "sd": float(share.std()),
        "error": float(error.mean()),
        "within_one_error": float((missed <= 1).double().mean()),
        "within_two_errors": float((missed <= 2).double().mean()),
    }


def calibrate(repeats: int) -> list[dict[str, Any]]:
    """Readings of every student under every order, against the reading of very many rollouts."""
    world, rows = random_world(VOCAB, LENGTH, seed=0, reward="maze", prompt=PROMPT, rate=0.5), []
    for (name, table), (order_name, order) in itertools.product(students(world).items(), ORDERS.items()):
        made = policy(world, table)

        def read(prompts: int, seed: int, made: Policy = made, order: Order = order) -> tuple[float, float]:
            found = Meter(rollouts(world, order, prompts, seed), H, stream(seed, "meter")).read(made, 8192)
            assert found is not None
            return found

        truth = EXACT[name] if name in EXACT else read(100 * PROMPTS, 10**6)[0]
        found = [read(PROMPTS, seed) for seed in range(repeats)]
        rows.append({"student": name, "order": order_name, **calibration(truth, found)})
    return rows


# ── phases that the meter ends ────────────────────────────────────────────────────────────────────


def recipe(rule: str, seed: int, smoke: bool) -> dtm.RunConfig:
    """The configuration of one run."""
    config = replace(dtm.recipe("maze-small"), seed=seed)
    config = replace(config, tilt=replace(config.tilt, absorbed=RULES[rule]))
    if not smoke:
        return config
    return replace(
        config,
        tilt=replace(config.tilt, step=2.5, final=5.0, max_steps=8),
        replay=replace(config.replay, prompts=8, completions=4),
        optimizer=replace(config.optimizer, batch=16),
        evaluation=EvaluationConfig(prompts=8, completions=4),
    )


def measure(run: dtm.Run, setting: EvaluationConfig) -> dict[str, float]:
    """Updates, minutes, and the tuned model on the test pairs."""
    tuned = api.measure(run.assembly, run.model, setting).measures
    phases = run.events("phase")
    return {
        "updates": run.summary["steps"],
        "minutes": run.summary["minutes"],
        "absorbed": sum(row["absorbed"] or 0.0 for row in phases) / len(phases),
        **{name: tuned[name] for name in ("reward", "valid", "coverage")},
    }


def spreads(rows: list[dict[str, float]]) -> dict[str, Mapping[str, float]]:
    """Mean, lowest and highest over seeds, of every measure."""
    return {name: spread([row[name] for row in rows]) for name in rows[0]}


def main() -> None:
    """Run what is missing, then write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("runs/meter"), metavar="DIR", help="folder of the runs"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="runs side by side (default: 1)")
    parser.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = list(itertools.product(RULES, SEEDS))
    configs = {f"{rule}-{seed}": recipe(rule, seed, options.smoke) for rule, seed in names}
    done = run_all(configs, options.out, options.jobs)
    setting = EvaluationConfig(split="test", prompts=8, completions=4) if options.smoke else TEST
    measured = {rule: [measure(done[f"{rule}-{seed}"], setting) for seed in SEEDS] for rule in RULES}
    folder = options.out / "results" if options.smoke else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "meter.json"
    write_json(
        path,
        {
            "calibration": calibrate(repeats=10 if options.smoke else 300),
            "rollouts": {"prompts": PROMPTS, "completions": COMPLETIONS, "h": H},
            "phases": {rule: spreads(rows) for rule, rows in measured.items()},
            "seeds": list(SEEDS),
            "commit": commits(done.values()),
            "command": called(),
            "machine": machine(done.values()),
        },
    )
    publish("meter", path, [path], inputs(configs.values()))


if __name__ == "__main__":
    main()
