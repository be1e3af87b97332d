"""Llama, Qwen2 and Qwen3, and masked diffusion models made from them: numbers, names, settings left out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import dtm
from checkpoints import chatml_tokenizer
from dtm.cli import main
from dtm.errors import CheckpointError, ConfigError
from dtm.models import LoRA, Policy
from dtm.models.export import load_adapter, save_adapter, save_merged
from dtm.models.families import read_shape
from dtm.models.families.settings import Asked, Sidecar
from dtm.models.source import with_config
from dtm.models.storage import check_weights, save_hub
from dtm.random import stream
from ending import FINISHED

pytest.importorskip("transformers")

SOURCES = ["llama", "qwen2", "qwen3"]
MASK = Asked(mask_token="4")
FULL = Asked(mask_token="4", attention="full")


def change_config(folder, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in (config | changes).items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(kept))


@pytest.fixture
def write_adapted(write_source):
    """A source whose configuration says that it is adapted."""

    def write(source: str, **changes):
        folder = write_source(source, **changes)
        change_config(folder, model_type=f"a2d-{source}")
        return folder

    return write


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("source", SOURCES)
def test_logits_are_those_of_published_code(shared_data, source):
    folder = shared_data / "golden" / f"a2d_{source}_tiny"
    golden = load_file(folder / "golden.safetensors")
    mask_id = int(golden["mask_token_id"])
    asked, real = Asked(mask_token=str(mask_id), attention="full"), golden["attention_mask"] == 1
    model = dtm.load_model(folder, asked=asked)
    alone = model.logits(golden["input_ids"]) - golden["logits_no_mask"]
    padded = model.logits(golden["input_ids"], golden["attention_mask"]) - golden["logits"]
    assert alone.abs().max() < 1e-4
    assert padded[real].abs().max() < 1e-4
    shape = model.config
    assert (shape.mask_id, shape.eos_id, shape.shift, shape.attention_block) == (mask_id, 1, 0, None)


def test_block_causal_logits_are_those_of_published_code(shared_data):
    """bd3lm's blocks are columns, and prompts are padded on the left to whole blocks."""
    folder = shared_data / "golden" / "a2d_qwen3_tiny"
    golden = load_file(folder / "golden.safetensors")
    asked = Asked(
        mask_token=str(int(golden["mask_token_id"])),
        attention="block",
        block=int(golden["bd3lm_block_size"]),
    )
    real = golden["bd3lm_attention_mask"] == 1
    model = dtm.load_model(folder, asked=asked)

    def error(of) -> float:
        return float((of.logits(golden["bd3lm_input_ids"], real) - golden["bd3lm_logits"])[real].abs().max())

    assert error(model) < 1e-4
    for mistake in (
        {"attention_block": None},
        {"attention_block": 2 * asked.block},
        {"block_origin": "token"},
    ):
        assert error(with_config(model, **mistake)) > 1e-2, mistake


@pytest.mark.parametrize("block", [None, 3])
@pytest.mark.parametrize("source", SOURCES)
def test_logits_are_those_of_transformers_under_the_same_mask(write_adapted, source, block):
    """Full or block-causal attention as a mask of scores, over a row that is padded on the left."""
    from transformers import AutoModelForCausalLM

    folder = write_adapted(source)
    attention = "full" if block is None else "block"
    model = dtm.load_model(folder, asked=replace(MASK, attention=attention, block=block))
    change_config(folder, model_type=source)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.randint(5, 20, (2, 9), generator=stream(0, "tokens"))
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[1, :3] = False
    place = torch.arange(9)
    sees = torch.ones(9, 9, dtype=torch.bool) if block is None else place // 3 <= place[:, None] // 3
    hidden = ~(sees & real[:, None, :])[:, None]
    scores = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected = reference(tokens, attention_mask=scores, position_ids=place[None]).logits
        causal = reference(tokens, position_ids=place[None]).logits
    found = model.logits(tokens, real)
    assert (found - expected)[real].abs().max() < 1e-4
    assert (found - causal)[real].abs().max() > 1e-2  # the mask matters


@pytest.mark.parametrize("source", SOURCES)
def test_a_model_saved_by_transformers_is_read_strictly(write_source, source):
    folder = write_source(source)
    model = dtm.load_model(folder, asked=MASK)
    stored = load_file(folder / "model.safetensors")
    family, shape = read_shape(folder, MASK)
    assert {family.hub_name(name): value.shape for name, value in model.state_dict().items()} == {
        name: value.shape for name, value in stored.items()
    }
    for name, value in model.state_dict().items():
        assert torch.equal(value, stored[family.hub_name(name)])
    assert (shape.family, shape.shift, shape.attention_block) == (source, 1, 1)
    assert (shape.qkv_bias, shape.qk_norm) == (source == "qwen2", source == "qwen3")
    assert (shape.eos_id, shape.rope_base, shape.norm_eps) == (2, 100000.0, 1e-5)
    stored.pop("model.norm.weight")
    save_file(stored | {"extra": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"misses tensor 'model\.norm\.weight'"):
        dtm.load_model(folder, asked=MASK)


# ── configurations ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "changes", "named"),
    [
        ("llama", {"mlp_bias": True}, "'mlp_bias' is True; it can only be False"),
        ("llama", {"attention_bias": True}, "'attention_bias'"),
        ("llama", {"rope_interleaved": True}, "'rope_interleaved'"),
        ("llama", {"rope_scaling": {"rope_type": "llama3"}}, "'rope_scaling'"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "'rope_parameters' is"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "factor": 2}}, "'rope_parameters' is"),
        ("llama", {"rope_theta": 5.0}, "'rope_theta' is 5.0, and 100000.0 in 'rope_parameters'"),
        ("llama", {"rope_parameters": "absent"}, "'rope_theta' is missing"),
        ("llama", {"quantization_config": {}}, "'quantization_config' is {}; it is unknown to this loader"),
        ("qwen2", {"use_sliding_window": True}, "'use_sliding_window'"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "'layer_types' is"),
        ("qwen3", {"layer_types": ["full_attention"]}, "all 2 layers"),
        ("qwen3", {"eos_token_id": []}, "'eos_token_id' is .*an integer or a list of integers"),
        ("qwen3", {"head_dim": 16}, r"k_norm\.weight' is \(12,\), config\.json says \(16,\)"),
    ],
)
def test_an_unsupported_setting_is_refused_by_name(write_adapted, source, changes, named):
    folder = write_adapted(source)
    change_config(folder, **changes)
    with pytest.raises(CheckpointError, match=named):
        dtm.load_model(folder, asked=FULL)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": "absent", "rope_theta": 100000.0, "rope_scaling": None},
        {"is_llama_config": True, "pretraining_tp": 1, "rope_interleaved": False, "mlp_bias": False},
        {"eos_token_id": [2, 0]},
        {"head_dim": None},
    ],
)
def test_other_ways_to_write_the_same_configuration_are_read(write_adapted, changes):
    folder = write_adapted("llama")
    expected = replace(read_shape(folder, FULL)[1], head_width=None)
    change_config(folder, **changes)
    assert replace(read_shape(folder, FULL)[1], head_width=None) == expected


def test_a_tied_head_may_be_stored_again_if_it_is_equal(write_adapted):
    folder = write_adapted("llama", tie_word_embeddings=True)
    stored = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in stored
    expected = dtm.load_model(folder, asked=FULL).state_dict()
    head = stored["model.embed_tokens.weight"].clone()
    save_file(stored | {"lm_head.weight": head}, folder / "model.safetensors")
    check_weights(folder, FULL)
    again = dtm.load_model(folder, asked=FULL).state_dict()
    assert again.keys() == expected.keys()
    assert all(torch.equal(again[name], value) for name, value in expected.items())
    head[3, 3] += 1
    save_file(stored | {"lm_head.weight": head}, folder / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"'lm_head\.weight' differs from 'model\.embed_tokens\.weight'"
    ):
        dtm.load_model(folder, asked=FULL)


# ── settings that the layout leaves out ──────────────────────────────────────────────────────────


def test_the_mask_token_is_asked_for_then_stated_then_the_tokenizers(write_adapted):
    folder, stored = write_adapted("qwen3"), Asked(attention="full")
    with pytest.raises(CheckpointError, match=r"Pass its id or text with --model\.mask-token"):
        read_shape(folder)
    tokenizer = chatml_tokenizer(mask_token="<|MASK|>")
    tokenizer.save_pretrained(folder)
    assert read_shape(folder, stored)[1].mask_id == tokenizer.mask_token_id == len(tokenizer) - 1
    Sidecar(mask_token_id=3, eos_token_id=0).write(folder)
    shape = read_shape(folder, stored)[1]
    assert (shape.mask_id, shape.eos_id) == (3, 0)
    assert read_shape(folder, FULL)[1].mask_id == 4
    assert read_shape(folder, replace(FULL, mask_token="<reponame>"))[1].mask_id == 3
    with pytest.raises(CheckpointError, match="has no such token; pass its id instead"):
        read_shape(folder, Asked(mask_token="<nothing>"))


@pytest.mark.parametrize(
    ("source", "usual"),
    [("qwen3", "151669 in"), ("qwen2", r"<\|mask\|>, added"), ("llama", r"<\|mask\|>, added")],
)
def test_the_error_about_a_mask_token_names_the_usual_one(write_adapted, source, usual):
    with pytest.raises(CheckpointError, match=rf"--model\.mask-token \({usual}"):
        read_shape(write_adapted(source))


def test_an_added_token_of_known_text_is_the_mask(write_adapted):
    folder = write_adapted("qwen2")
    tokenizer = chatml_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|mask|>"]})
    tokenizer.save_pretrained(folder)
    shape = read_shape(folder, Asked(attention="full"))[1]
    assert shape.mask_id == tokenizer.convert_tokens_to_ids("<|mask|>")


@pytest.mark.parametrize("source", SOURCES)
def test_attention_is_asked_for_then_stated_and_never_guessed(write_adapted, source):
    folder = write_adapted(source)
    with pytest.raises(
        CheckpointError, match=r"--model\.attention full .*--model\.attention block --model\.block B \(32 in"
    ):
        read_shape(folder, MASK)
    assert read_shape(folder, FULL)[1].attention_block is None
    Sidecar(mask_token_id=4).write(folder)  # states the mask token only
    with pytest.raises(CheckpointError, match=r"--model\.attention full"):
        read_shape(folder)
    Sidecar(mask_token_id=4, attention="block", block=8).write(folder)
    assert read_shape(folder)[1].attention_block == 8
    assert read_shape(folder, Asked(attention="full"))[1].attention_block is None
    assert read_shape(folder, Asked(attention="block", block=4))[1].attention_block == 4


def test_a_block_diffusion_model_by_name_needs_its_block(write_adapted):
    folder = write_adapted("qwen3", name="Qwen3-diffusion-bd3lm-v0.1")
    with pytest.raises(CheckpointError, match=r"--model\.attention block --model\.block B"):
        read_shape(folder, MASK)
    asked = replace(MASK, attention="block", block=32)
    assert read_shape(folder, asked)[1].attention_block == 32


@pytest.mark.parametrize(
    ("contents", "named"),
    [
        ({"mask_token": 4}, "unknown key 'mask_token'. Did you mean 'mask_token_id'"),
        ({"mask_token_id": "4"}, "'mask_token_id' is '4'; it must be a whole number"),
        ({"attention": "causal"}, "'attention' is 'causal'; it must be full or block"),
        ({"attention": "block"}, "block attention needs a block"),
        ({"attention": "full", "block": 4}, "and full attention none"),
    ],
)
def test_a_wrong_sidecar_is_named(write_adapted, contents, named):
    folder = write_adapted("llama")
    (folder / "dtm.json").write_text(json.dumps(contents))
    with pytest.raises(CheckpointError, match=named):
        read_shape(folder)


@pytest.mark.parametrize(
    "settings", [{"attention": "block"}, {"block": 4}, {"attention": "full", "block": 4}]
)
def test_block_attention_and_its_block_belong_together(settings):
    for kind in (Asked, dtm.config.ModelConfig):
        with pytest.raises(ConfigError, match=r"--model\.attention block --model\.block B"):
            kind(**settings)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_written_in_the_public_layout_comes_back(write_adapted, tmp_path, source, tied):
    folder, out = write_adapted(source, tie_word_embeddings=tied), tmp_path / "public"
    model = dtm.load_model(folder, asked=replace(MASK, attention="block", block=8))
    save_hub(model, chatml_tokenizer(), out)
    again = dtm.load_model(out)
    assert replace(again.config, head_width=None) == replace(model.config, head_width=None)
    assert again.config.head_size == model.config.head_size
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    assert ("lm_head.weight" in load_file(out / "model.safetensors")) is not tied
    written = json.loads((out / "config.json").read_text())
    assert written["model_type"] == f"a2d-{source}"
    assert written["architectures"] == [f"A2D{source.capitalize()}LMHeadModel"]
    assert json.loads((out / "dtm.json").read_text()) == {
        "mask_token_id": 4, "eos_token_id": 2, "attention": "block", "block": 8,
    }  # fmt: skip
    assert dtm.tasks.language.Chat.load(out).ask("Hi").count(1) == 2  # <|im_start|>
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(CheckpointError, match="is not empty"):
        save_hub(model, None, out)


def test_a_public_folder_can_be_written_in_another_precision(write_adapted, tmp_path):
    save_hub(dtm.load_model(write_adapted("llama"), asked=FULL), None, tmp_path / "half", torch.bfloat16)
    assert {value.dtype for value in dtm.load_model(tmp_path / "half").parameters()} == {torch.bfloat16}
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("source", SOURCES)
def test_transformers_reads_a_source_written_in_the_public_layout(write_source, tmp_path, source):
    from transformers import AutoModelForCausalLM

    folder = write_source(source)
    save_hub(dtm.load_model(folder, asked=MASK), chatml_tokenizer(), tmp_path / "again")
    first, second = (AutoModelForCausalLM.from_pretrained(each) for each in (folder, tmp_path / "again"))
    tokens = torch.randint(0, 300, (1, 9), generator=stream(0, "tokens"))
    torch.testing.assert_close(first(tokens).logits, second(tokens).logits)


def test_other_families_are_not_written_in_the_public_layout(write_hub, tmp_path):
    with pytest.raises(CheckpointError, match=r"family llada.*dtm\.save_model"):
        save_hub(dtm.load_model(write_hub("llada")), None, tmp_path / "out")


@pytest.mark.parametrize("source", SOURCES)
def test_adapters_are_exported_and_merged(write_adapted, tmp_path, source):
    folder, asked = write_adapted(source, tie_word_embeddings=True), FULL
    policy = Policy(dtm.load_model(folder, asked=asked), lora=LoRA(rank=2))
    with torch.no_grad():
        for parameter in policy.trained():
            parameter.normal_(0, 0.2, generator=stream(0, "adapter"))
    save_adapter(policy.student, policy.lora, tmp_path / "adapter", folder)
    tokens = torch.randint(0, 300, (2, 7), generator=stream(0, "tokens"))
    expected = policy.student.logits(tokens)
    student, _ = load_adapter(tmp_path / "adapter", dtm.load_model(folder, asked=asked))
    torch.testing.assert_close(student.logits(tokens), expected)
    save_merged(policy.student, policy.lora, tmp_path / "merged", folder, asked)
    merged = dtm.load_model(tmp_path / "merged")  # dtm.json states what was asked for
    assert merged.config == policy.base.config
    torch.testing.assert_close(merged.logits(tokens), expected, atol=1e-4, rtol=1e-4)


# ── whole runs ───────────────────────────────────────────────────────────────────────────────────


def test_a_run_trains_exports_and_merges_an_adapted_model(write_adapted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = write_adapted("llama", vocab_size=300, tie_word_embeddings=True)
    rows = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(30)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "my_reward.py").write_text(
        "def reward(prompts, completions, answer, **columns):\n"
        "    return [0.1 * len(set(text)) for text in completions]\n"
    )
    flags = (
        "--device cpu --data own.jsonl --reward my_reward.py:reward --task.completion-length 8 "
        "--decoding.block 8 --model.no-nf4 --adapter.rank 2 --tilt.final 1 --tilt.step 1 --tilt.max-steps 2 "
        "--replay.prompts 2 --replay.completions 2 --optimizer.batch 2 --optimizer.micro-batch 2 "
        "--evaluation.prompts 2 --evaluation.completions 1 --out run"
    )
    start = ["train", "llada-custom", "--model.base", str(folder)]
    assert main([*start, *flags.split(), "--dry-run"]) == 2
    assert "--model.mask-token" in capsys.readouterr().err
    flags += " --model.mask-token <empty_output>"
    assert main([*start, *flags.split(), "--dry-run"]) == 2
    assert "--model.attention full" in capsys.readouterr().err
    assert main([*start, *flags.split(), "--model.attention", "full"]) in FINISHED
    run = dtm.Run.open(tmp_path / "run")
    assert run.model.config.mask_id == 4
    assert run.config.model.mask_token == "<empty_output>"
    assert main(["export", "run", "--merged", "--out", "merged"]) == 0
    merged = dtm.load_model(tmp_path / "merged")
    assert (merged.config.family, merged.config.mask_id) == ("a2d-llama", 4)
    tokens = torch.randint(0, 300, (2, 7), generator=stream(0, "tokens"))
    torch.testing.assert_close(merged.logits(tokens), run.model.logits(tokens), atol=1e-4, rtol=1e-4)
