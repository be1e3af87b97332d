"""Calibration of the progress meter on a language model: results/meter-language.json.

    python benchmarks/meter_language.py --recipe smollm-countdown --base MODEL --data-dir DATA

Which tilt a trained language model has absorbed is unknown. So the reward is made for the student: with
r = ℓ / h, where ℓ = log ρ_θ/ρ_a along the decoder's own steps, the student is π_a tilted by h, and the meter
must read 1. The student is the base with random adapters; ℓ sums over all steps of a rollout, of which the
meter draws two. A second student has adapters of half the size: its share is what all steps of all rollouts
give. An untrained one must read 0.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import dtm
from dtm import tilts
from dtm.config.serialise import update
from dtm.engine.collect import prompts_in_order
from dtm.loop.assemble import assemble
from dtm.loop.assembly import Assembly
from dtm.loop.meter import Meter
from dtm.masking import visited
from dtm.models import Policy
from dtm.models.adapters import LoRA, adapter_parameters
from dtm.models.denoiser import Denoiser
from dtm.random import stream
from dtm.records import Rollouts
from dtm.writing import write_json
from meter import calibration
from study import inputs, provenance, publish

RESULTS = Path(__file__).parents[1] / "results" / "meter-language.json"
H = 3.0
STUDENTS = {"untrained": 0.0, "half the adapter": 0.5, "whole adapter": 1.0}
"""Students, and the share of the adapter that they have; the reward is that of the last one."""


def rollouts(assembly: Assembly, model: Denoiser, prompts: int, completions: int) -> Rollouts:
    """Completions of training prompts by the recipe's decoder, without rewards."""
    asked = prompts_in_order(assembly.task, 0, prompts, prompts, seed=0).to(assembly.placement.device)
    engine = assembly.engine(assembly.decoder)
    engine.load(model)
    done = engine.generate(asked, completions, seed=0)
    nothing = torch.zeros(len(done), device=done.tokens.device)
    group = torch.arange(prompts, device=done.tokens.device).repeat_interleave(completions)
    return Rollouts(
        done.tokens, done.attention, done.is_completion, done.revealed_at, done.log_prob, nothing, group, 0.0
    )


@torch.no_grad()
def whole_log_prob(model: Denoiser, rows: Rollouts, together: int) -> Float[Tensor, " N"]:
    """log ρ of every rollout along the steps in which it was revealed."""
    found = torch.zeros(len(rows), dtype=torch.float64, device=rows.tokens.device)
    for step in range(int(rows.revealed_at.max()) + 1):
        revealing = (rows.revealed_at == step).any(1).nonzero().squeeze(1)
        for part in torch.split(revealing, together):
            states = visited(rows.select(part), torch.full_like(part, step), model.mask_id)
            if len(states.row):  # not if only end tokens are revealed
                hidden = model(states.tokens, states.attention, states.scored, head=False)
                found.index_add_(0, part[states.row], model.log_prob(hidden, states.x1).double())
    return found


def calibrate(
    assembly: Assembly, prompts: int, completions: int, readings: int, size: float
) -> list[dict[str, Any]]:
    """Readings of every student on disjoint sets of prompts, against its share on all of them."""
    base, together = assembly.base.to(assembly.placement.device), assembly.config.optimizer.rows
    policy = Policy(base, lora=LoRA(rank=8, alpha=8.0))
    noise = stream(0, "adapters", device=assembly.placement.device)
    drawn = {
        name: torch.randn(value.shape, generator=noise, device=value.device) / value.shape[-1] ** 0.5
        for name, value in adapter_parameters(policy.student).items()
    }

    def resize(share: float) -> None:
        for name, value in adapter_parameters(policy.student).items():
            value.data.copy_((share * size if "lora_B" in name else 1.0) * drawn[name])

    with assembly.placement.autocast():
        rows = rollouts(assembly, policy.teacher, readings * prompts, completions)
        print(f"{len(rows)} rollouts", flush=True)
        before = whole_log_prob(policy.teacher, rows, together)
        ratios = {}
        for name, share in STUDENTS.items():
            resize(share)
            ratios[name] = whole_log_prob(policy.student, rows, together) - before
        rows = replace(rows, reward=(ratios["whole adapter"] / H).float())
        found = []
        for name, share in STUDENTS.items():
            resize(share)
            truth, _ = tilts.absorbed_share(ratios[name].cpu(), rows.reward.cpu(), rows.group.cpu(), H)
            read = []
            for number in range(readings):
                own = (rows.group // prompts == number).nonzero().squeeze(1)
                meter = Meter(rows.select(own), H, stream(number, "meter", device=assembly.placement.device))
                reading = meter.read(policy, together)
                assert reading is not None  # rewards always differ
                read.append(reading)
            spread = {"sd_of_log_ratio": float(ratios[name].std())}
            found.append({"student": name, **calibration(truth, read), **spread})
            print(found[-1], flush=True)
    return found


def main() -> None:
    """Draw, read and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="smollm-countdown")
    parser.add_argument("--base", help="folder of the base (default: the recipe's)")
    parser.add_argument("--data-dir", help="folder with the benchmarks' data sets, for language tasks")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    parser.add_argument("--prompts", type=int, default=64, help="prompts of one reading")
    parser.add_argument("--readings", type=int, default=16, help="40 take more than five minutes of an H200")
    parser.add_argument(
        "--size", type=float, default=0.2, help="of the adapter: ℓ should deviate by one to three nats"
    )
    parser.add_argument("--commit", help="of a tree that was copied without its history")
    options = parser.parse_args()
    config = dtm.recipe(options.recipe)
    changes: dict[str, dict[str, str]] = {}
    if options.base:
        changes["model"] = {"base": options.base}
    if options.data_dir:
        changes["task"] = {"data_dir": options.data_dir}
    assembly = assemble(update(config, changes, options.recipe))
    completions = config.replay.completions
    made = {
        "calibration": calibrate(assembly, options.prompts, completions, options.readings, options.size),
        "rollouts": {"prompts": options.prompts, "completions": completions, "h": H},
        "readings": options.readings,
        "recipe": options.recipe,
        **provenance(None, options.commit),
    }
    write_json(options.out, made)
    if options.out.resolve() == RESULTS:
        publish("meter-language", RESULTS, [RESULTS], inputs([assembly.config]))


if __name__ == "__main__":
    main()
