"""What fits a memory: at its limits, against the estimate itself, and on the command line."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from dtm.capacity.fit import CONTEXT, advice, fewest_recomputed, fit, fit_in_full, pretraining_rows
from dtm.capacity.memory import TrainingShape, estimate
from dtm.cli import main
from dtm.cli.fit import parse_size
from dtm.cli.parse import with_flags
from dtm.engine import build_decoder
from dtm.errors import ConfigError
from dtm.models import LoRA, TransformerConfig
from dtm.models.families import read_shape
from dtm.recipes import recipe
from dtm.runs.bases import asked_for

LLADA_8B = TransformerConfig(
    vocab_size=126464, mask_id=126336, eos_id=126081, width=4096, layers=32, heads=32, ffn=12288,
    family="llada",
)  # fmt: skip
RUN = TrainingShape(rows=1, length=428, scored=16, rollouts=480, lora=LoRA(targets=("published",)), held=132)
GIB = 2**30


@pytest.mark.parametrize("room", [11 * GIB, 23 * GIB, 80 * GIB])
def test_one_row_more_would_not_fit(room):
    for found in fit(LLADA_8B, RUN, 32, room):
        kinds = ((found.rows_recomputed, 32), (found.rows_kept, 0))
        for rows, recompute in kinds:
            need = [
                estimate(LLADA_8B, replace(RUN, nf4=found.nf4, rows=n, recompute=recompute)).total
                for n in (rows, rows + 1)
            ]
            assert need[1] > room
            assert rows == 0 or need[0] <= room


@pytest.mark.parametrize("compiled", [False, True])
def test_pretraining_takes_as_many_rows_as_fit_and_at_least_one(compiled):
    rows = [pretraining_rows(LLADA_8B, 256, 2, compiled, room * GIB) for room in (1, 16, 64, 128)]
    assert rows[0] == 1
    assert rows == sorted(rows)
    assert 2 * rows[2] <= rows[3] <= 2 * rows[2] + 1
    longer = pretraining_rows(LLADA_8B, 512, 2, compiled, 128 * GIB)
    assert longer in (rows[3] // 2, rows[3] // 2 - 1)
    assert pretraining_rows(LLADA_8B, 256, 2, compiled, 128 * GIB, skew=2.0) < rows[3]  # more is scored


def test_more_memory_never_fits_less_and_four_bits_fit_more():
    sizes = [fit(LLADA_8B, RUN, 32, room * GIB) for room in (8, 12, 24, 48, 96)]
    for name in ("rows_recomputed", "rows_kept", "batch_exact", "batch_cached"):
        for kind in (0, 1):
            counts = [getattr(found[kind], name) for found in sizes]
            assert counts == sorted(counts)
        assert all(getattr(found[1], name) >= getattr(found[0], name) for found in sizes)


def test_the_advice_fits_and_recomputes_no_block_too_many():
    room = 23 * GIB
    found = fit(LLADA_8B, RUN, 32, room)
    told = advice(LLADA_8B, RUN, found, room)
    assert set(told) == {"exact decoding", "with a cache"}
    words = told["with a cache"].split()
    rows, blocks = (
        int(words[words.index(flag) + 1]) for flag in ("--optimizer.micro-batch", "--model.recompute")
    )
    assert "--model.no-nf4" in words
    assert estimate(LLADA_8B, replace(RUN, rows=rows, recompute=blocks)).total <= room
    assert estimate(LLADA_8B, replace(RUN, rows=rows, recompute=blocks - 1)).total > room
    assert fewest_recomputed(LLADA_8B, replace(RUN, rows=rows), room) == blocks


def test_what_does_not_fit_is_told_with_the_least_that_would():
    with pytest.raises(ConfigError, match=r"needs about 9\.\d GiB.*lower --rank.*weights are 5\.\d GiB"):
        advice(LLADA_8B, RUN, fit(LLADA_8B, RUN, 32, 5 * GIB), 5 * GIB)


def test_the_command_prints_a_table_and_flags_that_train_accepts(write_hub, capsys):
    folder = write_hub("llada")
    (folder / "model.safetensors").unlink()  # the shape is enough
    assert main(["fit", str(folder), "--memory", "2GiB", "--rank", "4", "--targets", "published"]) == 0
    printed = capsys.readouterr().out
    assert "bfloat16" in printed
    flags = printed.split("with a cache:")[1].split()
    config = with_flags(recipe("llada-countdown"), flags, "dtm train")
    assert (config.model.nf4, config.decoding.cache, config.optimizer.micro_batch) == (False, "block", 12)
    assert (config.adapter.rank, config.adapter.targets, config.decoding.block) == (4, "published", 32)
    assert config.task.completion_length == 256


@pytest.mark.parametrize(
    ("family", "given", "block"),
    [
        ("sdar", (), 4),
        ("sdar", ("--model.attention", "block", "--model.block", "8"), 8),
        ("llada2", (), 32),
        ("llada_moe", (), None),
    ],
)
def test_a_block_causal_model_gets_its_blocks_and_the_exact_cache(
    write_published, capsys, family, given, block
):
    folder = write_published(family)
    asked = ("--model.mask-token", "20", "--memory", "2GiB", "--rank", "4", "--completion", "64")
    assert main(["fit", str(folder), *asked, *given]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert ("with a cache:" in printed) == (block is None)
    assert ("block-causal attention" in printed) == (block is not None)
    name = "exact decoding:" if block is None else "exact, with the prefix cache:"
    flags = printed.split(name)[1].split("with a cache:")[0].split()
    config = with_flags(recipe("llada-custom"), flags, "dtm train")
    assert (config.model.mask_token, config.model.block) == ("20", block)
    assert config.decoding.block == (block or 32)
    assert config.decoding.cache == "prefix"
    shape = read_shape(folder, asked_for(config.model))[1]  # as train reads it
    build_decoder(config.decoding).require_blocks(shape.attention_block)
    assert shape.attention_block == block


def test_an_adapted_model_of_unknown_attention_needs_the_flag(write_source, capsys):
    folder = write_source("llama")
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "a2d-llama"}
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["fit", str(folder), "--memory", "2GiB", "--rank", "4"]) == 2
    assert "--model.attention full" in capsys.readouterr().err
    assert main(["fit", str(folder), "--memory", "2GiB", "--rank", "4", "--model.attention", "full"]) == 0
    assert "--model.attention full" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "size"), [("24GiB", 24 * GIB), ("1.5GB", 1_500_000_000), ("512 MiB", 2**29)]
)
def test_sizes_are_read_with_their_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["lots", "24XB", "1.2.3GiB"])
def test_what_is_no_size_is_refused(text, capsys, write_hub):
    assert main(["fit", str(write_hub("llada")), "--memory", text]) == 2
    assert "write a size such as 24GiB" in capsys.readouterr().err


def test_the_context_is_left_free(write_hub, capsys):
    assert main(["fit", str(write_hub("llada")), "--memory", f"{CONTEXT // 2**20}MiB"]) == 2
    assert "the model does not fit" in capsys.readouterr().err


def test_a_number_below_one_is_refused_by_name(write_hub, capsys):
    assert main(["fit", str(write_hub("llada")), "--block", "0"]) == 2
    assert "--block must be at least 1, got 0" in capsys.readouterr().err


def test_all_weights_of_8b_need_shares_and_more_gpus_hold_less_each():
    full = replace(RUN, lora=None, weight_bytes=4, recompute=32)
    held = [estimate(LLADA_8B, replace(full, shards=gpus)).persistent for gpus in (1, 2, 4, 8)]
    assert held[0] > 140 * GIB  # student, π_a, gradient and two moments in float32: 5 · 4 · 8e9 bytes
    for gpus, each in zip((2, 4, 8), held[1:], strict=True):
        assert each == pytest.approx(held[0] / gpus, rel=1e-3)
    # Rollouts hold π_a as a whole, so that 8 GPUs need more than an eighth.
    whole = estimate(LLADA_8B, replace(full, rows=0, decoded=1, shards=8))
    assert whole.total > held[0] / 8 + held[0] / 5
    found = {gpus: fit_in_full(LLADA_8B, RUN, 32, 79 * GIB, gpus) for gpus in (1, 4, 8)}
    assert found[1].rows_recomputed == 0
    assert 0 < found[4].rows_recomputed < found[8].rows_recomputed


def test_fit_says_what_several_gpus_hold(write_hub, capsys):
    folder = str(write_hub("llada"))
    assert main(["fit", folder, "--memory", "40GiB", "--gpus", "4", "--rank", "2"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "sharded over 4 GPUs" in told
    assert "--distributed.shard full" in told
    assert main(["fit", folder, "--memory", "40GiB", "--gpus", "16", "--shard-size", "4", "--rank", "2"]) == 0
    replicated = " ".join(capsys.readouterr().out.split())
    assert "sharded over 16 GPUs in 4 replicas of 4" in replicated
    assert "--distributed.shard-size 4" in replicated
    of_state = [re.search(r"[\d.]+ .iB of state on each", text)[0] for text in (told, replicated)]
    assert of_state[0] == of_state[1]
    for size in ("1", "3"):
        assert main(["fit", folder, "--gpus", "4", "--shard-size", size]) == 2
        refused = f"--shard-size must be at least 2 and divide --gpus 4, got {size}"
        assert refused in capsys.readouterr().err
    assert main(["fit", folder, "--memory", "40GiB", "--gpus", "0"]) == 2
