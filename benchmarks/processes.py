"""The same run on one and on two processes of one machine: losses, time per step, memory of sharded weights.

    python benchmarks/processes.py --publish               # on one GPU
    python benchmarks/processes.py --smoke --out two.json  # tiny, on a CPU

Runs go through the command line (`dtm train maze-small --processes N`) with a base of random weights and a
reward that varies on its paths. Cases: all weights in every process, adapters, sharded weights (FSDP2), and
rollouts drawn ahead. Two processes on one GPU talk over gloo, since nccl wants a card for each. They also
share its arithmetic, so the difference in time per step is what a second process costs, not what it gains.
Nothing is compiled, since that would take most of the time. Reported are the largest relative difference
between the losses of one and of two processes, the share of completions of the base with equal rewards,
seconds per step, seconds saved by drawing ahead, and the peak of memory beside the estimate of `dtm fit`. A
case that fails is named with its error; the others are published.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dtm
from dtm.capacity.memory import estimate
from dtm.config import RunConfig
from dtm.config.serialise import to_yaml, update
from dtm.loop.assemble import assemble
from dtm.report.run import read_samples
from dtm.writing import write_json, write_text
from measuring import GIB
from study import provenance, publish

RESULTS = Path(__file__).parents[1] / "results" / "processes.json"
PROCESSES = (1, 2)
Changes = Mapping[str, Any]
CASES: dict[str, Changes] = {
    "all weights": {},
    "adapters": {"adapter": {"rank": 16}},
    "sharded": {"distributed": {"shard": "full"}},
    "rollouts ahead": {"decoding": {"ahead": True}},
}
"""Case → changed fields. One process shards nothing: there its run is that of "all weights"."""
FULL: Changes = {
    "compile": "off",
    "model": {"width": 512, "heads": 8, "layers": 8, "ffn": 1408},
    "tilt": {"step": 1.0, "final": 1.0, "max_steps": 12, "absorbed": "never"},
    "replay": {"prompts": 64, "refresh_every": 4},
    "optimizer": {"batch": 128},
    "evaluation": {"prompts": 16},
}
SMOKE: Changes = {
    **FULL,
    "model": {"width": 16, "heads": 2, "layers": 2, "ffn": 32},
    "tilt": {"step": 1.0, "final": 1.0, "max_steps": 3, "absorbed": "never"},
    "replay": {"prompts": 4, "refresh_every": 2},
    "optimizer": {"batch": 8},
}
WARM = 3
"""Steps that are not timed."""
LONGEST = 150.0
"""Seconds after which a run counts as failed: processes that wait for each other never end."""


def reward(prompts: Sequence[Any], completions: Sequence[Sequence[Any]], **columns: Any) -> list[float]:
    """The share of different cells on a path: it varies on the paths of random weights, which are invalid."""
    return [len(set(path)) / max(1, len(path)) for path in completions]


def configured(base: Path, sizes: Changes, case: str) -> RunConfig:
    """The configuration of a case; its base is made on first use."""
    config = update(dtm.recipe("maze-small"), {"device": "auto", **sizes}, "sizes")
    if not base.is_dir():
        dtm.save_model(assemble(config).new_model(), base)
    own = {"function": f"{Path(__file__).resolve()}:reward", "low": 0.0, "high": 1.0}
    return update(config, {"model": {"base": str(base)}, "reward": own, **CASES[case]}, case)


def trained(config: RunConfig, processes: int, scratch: Path) -> dtm.Run:
    """Train with the command line; the configuration goes through a file."""
    name = f"run-{len(list(scratch.iterdir()))}"
    file, out = scratch / f"{name}.yaml", scratch / name
    write_text(file, to_yaml(config))
    command = [sys.executable, "-m", "dtm", "train", config.recipe, "--config", str(file), "--out", str(out)]
    done = subprocess.run(
        [*command, "--processes", str(processes)], capture_output=True, text=True, timeout=LONGEST
    )
    if done.returncode not in (0, 3):  # 3: nothing learnt, as expected of random weights
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return dtm.Run.open(out)


def measured(config: RunConfig, run: dtm.Run, processes: int) -> dict[str, Any]:
    """Time per step, and the peak of memory beside its estimate."""
    moments = [event["seconds"] for event in run.events("step")][min(WARM, config.tilt.max_steps - 2) :]
    assembly = assemble(config)
    assert assembly.shape is not None
    shards = processes if config.distributed.shard == "full" else 1
    expected = estimate(assembly.shape, replace(assembly.training_shape, shards=shards)).total
    saved = [event["saved_seconds"] for event in run.events("rollouts") if "saved_seconds" in event]
    return {
        "seconds_per_step": statistics.median(after - before for before, after in pairwise(moments)),
        "saved_seconds": sum(saved) if saved else None,
        "peak_gib": run.summary["peak_memory"] / GIB,
        "estimate_gib": expected / GIB,
    }


def differences(runs: Sequence[dtm.Run]) -> dict[str, Any]:
    """The largest relative difference between losses, and the share of equal rewards of the base.

    The share is 1 on a CPU. On a GPU a token can differ where a probability is rounded differently.
    """
    first, second = ([event["loss"] for event in run.events("step")] for run in runs)
    rewards = [[reward for _, _, reward in read_samples(run.folder.samples, first=True)] for run in runs]
    return {
        "loss_difference": max(abs(a - b) / max(abs(a), 1e-8) for a, b in zip(first, second, strict=True)),
        "equal_rewards": statistics.mean(float(a == b) for a, b in zip(*rewards, strict=True)),
        "steps": len(first),
    }


def main() -> None:
    """Run every case and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="cases")
    parser.add_argument("--smoke", action="store_true", help="a tiny size")
    parser.add_argument("--out", type=Path, help="file for the results")
    parser.add_argument("--publish", action="store_true", help=f"write {RESULTS.name} into results/")
    parser.add_argument("--commit", help="of a tree that was copied without its history")
    options = parser.parse_args()
    if options.publish and (options.smoke or options.only != list(CASES)):
        parser.error("--publish measures everything: leave out --only and --smoke")
    out = RESULTS if options.publish else options.out
    results: dict[str, Any] = {"cases": {}, "failed": {}, **provenance(None, options.commit)}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for case in options.only:
            config = configured(scratch / "base", SMOKE if options.smoke else FULL, case)
            try:
                runs = [trained(config, processes, scratch) for processes in PROCESSES]
            except (RuntimeError, subprocess.TimeoutExpired) as problem:  # the other cases go on
                results["failed"][case] = str(problem).strip().splitlines()[-1]
                print(f"{case}: {problem}", flush=True)
                continue
            found = {str(n): measured(config, run, n) for n, run in zip(PROCESSES, runs, strict=True)}
            results["cases"][case] = {**found, **differences(runs)}
            print(case, results["cases"][case], flush=True)
            if out is not None:
                write_json(out, results)
    if out is not None:
        write_json(out, results)
    if options.publish and results["cases"]:
        publish("processes", RESULTS, [RESULTS], {})
    if results["failed"]:
        sys.exit(f"failed: {', '.join(results['failed'])}; see above")


if __name__ == "__main__":
    main()
