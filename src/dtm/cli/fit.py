"""`dtm fit`: find the settings that fit a GPU's memory, from the model's config.json alone."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import TYPE_CHECKING

from dtm.cli.asking import MODEL, add_model_options
from dtm.cli.parse import make_parser
from dtm.errors import ConfigError, require

if TYPE_CHECKING:
    from dtm.capacity.fit import Fit
    from dtm.models.families.settings import Asked
    from dtm.models.shape import TransformerConfig

UNITS = {"K": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

NUMBERS = {
    "prompt": (172, "tokens per prompt"),
    "completion": (256, "tokens per completion"),
    "block": (32, "tokens per block of decoding; a block-causal model has its own"),
    "rank": (128, "rank of the adapters"),
    "rollouts": (480, "rollouts in the buffer"),
    "gpus": (1, "number of GPUs of this memory, with one process each"),
}


def fit(arguments: list[str]) -> int:
    """Print the largest settings of a model that fit a GPU's memory."""
    options = _fit_parser().parse_args(arguments)
    for name in NUMBERS:
        value = getattr(options, name)
        require(value >= 1, f"--{name} must be at least 1, got {value}")
    shards = options.gpus if options.shard_size is None else options.shard_size
    require(
        shards == options.gpus or (shards >= 2 and options.gpus % shards == 0),
        f"--shard-size must be at least 2 and divide --gpus {options.gpus}, got {shards}",
    )

    from rich.console import Console
    from rich.table import Table

    from dtm.capacity.fit import CONTEXT, advice, fit, fit_in_full
    from dtm.capacity.memory import TrainingShape, active_parameters, parameters
    from dtm.capacity.preflight import available, format_bytes
    from dtm.methods.c_dtm import HELD
    from dtm.models.adapters import LoRA
    from dtm.models.families import read_sizes
    from dtm.models.families.settings import Asked
    from dtm.models.hub import find_folder
    from dtm.models.placement import Placement

    token, attention, blocks = (getattr(options, name) for name in MODEL)
    asked = Asked(mask_token=token, attention=attention or "stored", block=blocks)
    shape = read_sizes(find_folder(options.model), asked)
    here, block = options.memory is None, shape.attention_block or options.block
    memory = available(Placement.resolve().device) if here else parse_size(options.memory)
    run = TrainingShape(
        rows=1,
        length=options.prompt + -options.prompt % (shape.attention_block or 1) + options.completion,
        prompt=options.prompt,
        scored=(block + 1) // 2,
        rollouts=options.rollouts,
        lora=LoRA(rank=options.rank, targets=tuple(options.targets.split(","))),
        held=max(1, HELD // shape.vocab_size),
        compiled=True,
    )
    found = fit(shape, run, block, memory - CONTEXT)
    table = Table(
        "base", "micro-batch, all blocks recomputed", "none recomputed", "decoding batch", "with cache"
    )
    active = "" if shape.experts is None else f", {active_parameters(shape) / 1e9:.1f} active"
    table.title = (
        f"{parameters(shape) / 1e9:.1f} billion weights{active}, adapters of rank {options.rank}, "
        f"{run.length} tokens per row: the most rows that fit {format_bytes(memory)}"
    )
    for one in found:
        counts = one.rows_recomputed, one.rows_kept, one.batch_exact, one.batch_cached
        table.add_row("NF4" if one.nf4 else "bfloat16", *map(str, counts))
    Console().print(table)
    if shape.attention_block is not None:
        print(f"block-causal attention in blocks of {block}")
    if options.gpus > 1:
        print(f"with adapters, each of {options.gpus} GPUs holds the base and takes a part of every batch")
        found_in_full = fit_in_full(shape, run, block, memory - CONTEXT, shards)
        is_cached = shape.attention_block is not None
        print(sharded_advice(found_in_full, options.gpus, shards, is_cached))
    same = _model_flags(shape, asked) + (
        f"--adapter.rank {options.rank} --adapter.targets {options.targets} "
        f"--task.completion-length {options.completion} --decoding.block {block}"
    )
    for name, flags in advice(shape, run, found, memory - CONTEXT).items():
        print(f"{name + ':':<16} {flags} {same}")
    return 0


def _model_flags(shape: TransformerConfig, asked: Asked) -> str:
    """Return the flags with which `dtm train` gives the model the shape of the estimate."""
    mask = "" if asked.mask_token is None else f"--model.mask-token {shlex.quote(asked.mask_token)} "
    if shape.attention_block is not None:
        return f"{mask}--model.attention block --model.block {shape.attention_block} "
    return mask + ("" if asked.attention == "stored" else "--model.attention full ")


def sharded_advice(found: Fit, gpus: int, shards: int, is_cached: bool = False) -> str:
    """Return the flags for training all weights sharded over several GPUs, or that this does not fit.

    ``shards``: GPUs of a shard group; others hold replicas. ``is_cached``: rollouts keep the prefix cache of
    block-causal attention.
    """
    from dtm.capacity.preflight import format_bytes

    batch = found.batch_cached if is_cached else found.batch_exact
    kept = format_bytes(found.smallest.persistent)
    replicas = "" if shards == gpus else f" in {gpus // shards} replicas of {shards}"
    how = f"all weights trained, sharded over {gpus} GPUs{replicas}"
    if not (found.rows_recomputed and batch):
        least = format_bytes(found.smallest.total)
        return f"{how}: does not fit, one row needs {least} on each"
    return (
        f"{how}: {kept} of state on each; --adapter.rank None --distributed.shard full "
        f"--distributed.shard-size {shards} --model.recompute all "
        f"--optimizer.micro-batch {found.rows_recomputed} --decoding.batch {batch}"
    )


def _fit_parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "fit", "Print the largest settings with which a model can be tuned in a given memory."
    )
    parser.add_argument("model", metavar="MODEL", help="a model's folder (config.json is enough) or hub name")
    parser.add_argument("--memory", metavar="SIZE", help="for example 24GiB (default: free memory here)")
    for name, (default, meaning) in NUMBERS.items():
        parser.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"{meaning} (default: {default})"
        )
    meaning = "GPUs that keep all weights together; other groups of as many hold replicas (default: --gpus)"
    parser.add_argument("--shard-size", type=int, metavar="N", help=meaning)
    add_model_options(parser.add_argument)
    parser.add_argument("--targets", default="all", help="adapted projections: all, published, or names")
    return parser


def parse_size(text: str) -> int:
    """Bytes from a number with a unit.

    >>> parse_size("24GiB"), parse_size("1.5 GB"), parse_size("80G")
    (25769803776, 1500000000, 80000000000)
    """
    found = re.fullmatch(r"([\d.]+)\s*([KMG]?i?)B?", text.strip())
    if found is None or found[2] not in UNITS:
        raise ConfigError(f"--memory {text}: write a size such as 24GiB or 80GB")
    try:
        return round(float(found[1]) * UNITS[found[2]])
    except ValueError:
        raise ConfigError(f"--memory {text}: write a size such as 24GiB or 80GB") from None
