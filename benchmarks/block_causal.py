"""c-DTM on a block-causal model and on one with full attention, with the same settings.

    python benchmarks/block_causal.py --out block_causal.json               # sudoku-mini on a GPU: minutes
    python benchmarks/block_causal.py --scale small --publish               # a smaller model, on a CPU
    python benchmarks/block_causal.py --scale smoke                         # seconds

``--publish`` writes results/block-causal.json.

Two bases of one size are pretrained on the recipe's examples: full attention with any-order masks, and
block-causal attention with masks in every block. Each is tuned with the recipe's settings and several seeds;
the block-causal one is decoded with the prefix cache, which is exact. Reported are held-out measures of base
and tuned models, and the tokens and operations (FLOPs) that each run spent on rollouts and updates.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import dtm
from dtm import api
from dtm.config import RunConfig
from dtm.loop.assemble import assemble
from dtm.loop.assembly import new_shape
from dtm.masking import CountMasking, EveryBlock
from dtm.models.transformer import Transformer
from dtm.pretraining.examples import task_corpus
from dtm.pretraining.pretrainer import Pretrainer
from dtm.random import stream
from dtm.writing import write_json
from study import provenance, publish

RESULTS = Path(__file__).parents[1] / "results" / "block-causal.json"

SCALES: dict[str, dict[str, dict[str, Any]]] = {
    "recipe": {},
    "small": {
        "model": {"width": 96, "layers": 3, "heads": 4, "ffn": 256},
        "decoding": {"batch": 256},
        "tilt": {"step": 4.5, "final": 13.5, "max_steps": 30},
        "replay": {"prompts": 48, "completions": 8, "refresh_every": 15},
        "optimizer": {"batch": 96},
        "evaluation": {"prompts": 96, "completions": 4},
        "pretrain": {"steps": 1200, "batch": 96, "held_out": 256},
    },
    "smoke": {
        "model": {"width": 16, "layers": 1, "heads": 2, "ffn": 16},
        "decoding": {"batch": 16},
        "tilt": {"step": 1.0, "final": 1.0, "max_steps": 2},
        "replay": {"prompts": 4, "completions": 2, "refresh_every": 1},
        "optimizer": {"batch": 4},
        "evaluation": {"prompts": 4, "completions": 1},
        "pretrain": {"steps": 2, "batch": 4, "held_out": 4},
    },
}
"""Changes of the recipe's sections."""


def configured(scale: str) -> RunConfig:
    """The recipe at one of the scales."""
    config = dtm.recipe("sudoku-mini")
    changes = {
        section: replace(getattr(config, section), **fields) for section, fields in SCALES[scale].items()
    }
    return replace(config, **changes)


def pretrained(config: RunConfig, block: int | None, folder: Path) -> RunConfig:
    """Pretrain a base with full or block-causal attention, and return the run that starts from it."""
    assembly = assemble(config)
    shape = replace(new_shape(config, assembly.task), attention_block=block)
    masks: tuple[CountMasking, CountMasking] = assembly.pretraining_masks()
    if block is not None:
        masks = EveryBlock(block), EveryBlock(block)
    pretrainer = Pretrainer(
        Transformer(shape, stream(config.seed, "initial weights")),
        task_corpus(assembly.task, config.pretrain, config.seed, assembly.placement.device),
        masks,
        config.pretrain,
        assembly.placement,
        seed=config.seed,
    )
    print(f"{folder.name}: bound of the base {pretrainer.run():.2f} nats per sequence", flush=True)
    dtm.save_model(pretrainer.model, folder)
    return replace(
        config,
        model=replace(config.model, base=str(folder)),
        decoding=replace(config.decoding, cache="none" if block is None else "prefix"),
    )


def tuned(config: RunConfig, out: Path) -> dict[str, Any]:
    """Measures of a base and of the model tuned from it, and what the tuning took."""
    begin = time.perf_counter()
    run = dtm.train(config, out=out)
    seconds = time.perf_counter() - begin
    assembly = run.assembly
    before, after = (api.measure(assembly, model).measures for model in (assembly.base, run.model))
    cost = {key: run.summary[key] for key in ("steps", "tilt", "spent_tokens", "spent_flops")}
    return {"base": before, "tuned": after, "seconds": seconds, **cost}


def main() -> None:
    """Run both attentions with every seed, and print the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="recipe")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="file for the results")
    parser.add_argument("--publish", action="store_true", help=f"write {RESULTS.name} into results/")
    options = parser.parse_args()
    out = RESULTS if options.publish else options.out
    config = configured(options.scale)
    results: dict[str, Any] = {
        "scale": options.scale,
        **provenance(list(range(options.seeds))),
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name, block in (("full", None), ("block-causal", config.decoding.block)):
            start = pretrained(config, block, Path(scratch) / name)
            runs = [
                tuned(replace(start, seed=seed), Path(scratch) / f"{name}-{seed}")
                for seed in range(options.seeds)
            ]
            results[name] = runs
            for measure in runs[0]["tuned"]:
                pairs = [(run["base"][measure], run["tuned"][measure]) for run in runs]
                means = [statistics.mean(values) for values in zip(*pairs, strict=True)]
                print(f"{name}, {measure}: base {means[0]:.4f}, tuned {means[1]:.4f}", flush=True)
            spent = [statistics.mean(run[f"spent_{unit}"] for run in runs) for unit in ("tokens", "flops")]
            print(f"{name}: {spent[0]:.3g} tokens and {spent[1]:.3g} FLOPs per run", flush=True)
            if out is not None:
                write_json(out, results)
    if options.publish:
        publish("block-causal", RESULTS, [RESULTS], {})


if __name__ == "__main__":
    main()
