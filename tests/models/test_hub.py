"""Hub checkpoints: the numbers of a second implementation and of published code, or an error by name."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import dtm
from dtm.errors import CheckpointError
from dtm.models.families import read_shape
from dtm.models.storage import without_memory
from dtm.models.weights import read_index
from dtm.random import stream

MASK = 18
SHAPES = [
    ("llada", {}),
    ("llada", {"n_kv_heads": 2, "include_qkv_bias": True}),
    ("llada", {"n_kv_heads": 1, "multi_query_attention": True}),
    ("llada", {"weight_tying": True, "embedding_size": None}),
    ("dream", {}),
    ("dream", {"num_key_value_heads": 4}),
    ("dream", {"tie_word_embeddings": True, "eos_token_id": 2}),
    ("dream", {"head_dim": 16}),
]


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Three rows of 5, 9 and 7 real tokens, padded on the left."""
    tokens = torch.randint(2, MASK, (3, 9), generator=stream(0, "rows"))
    tokens[:, -3:] = MASK
    attention = torch.arange(9) >= torch.tensor([[4], [0], [2]])
    return tokens.masked_fill(~attention, 1), attention


def contents(folder) -> tuple[dict, dict]:
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    return json.loads((folder / "config.json").read_text()), tensors


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(("family", "changes"), SHAPES)
def test_logits_are_those_of_a_second_implementation(write_hub, reference, family, changes, shards):
    folder = write_hub(family, shards, **changes)
    model = dtm.load_model(folder)
    tokens, attention = rows()
    for mask in (None, attention):
        expected = reference(*contents(folder), tokens, mask)
        difference = (model.logits(tokens, mask) - expected)[attention].abs().max()
        assert difference < 1e-5
    assert (model.logits(tokens) - expected)[attention].abs().max() > 1e-3  # the mask would have mattered


@pytest.mark.parametrize("name", ["llada_tiny", "dream_tiny"])
def test_logits_are_those_of_the_published_code(shared_data, name):
    folder = shared_data / "golden" / name
    golden = load_file(folder / "reference_logits.safetensors")
    model, real = dtm.load_model(folder), golden["attention_mask"].bool()
    alone = model.logits(golden["input_ids"]) - golden["logits_no_mask"]
    masked = model.logits(golden["input_ids"], golden["attention_mask"]) - golden["logits_attention_mask"]
    assert alone.abs().max() < 1e-4
    assert masked[real].abs().max() < 1e-4


def test_every_tensor_of_the_8b_checkpoint_has_its_place(shared_data):
    folder = shared_data / "hub" / "llada-8b-instruct"
    family, config = read_shape(folder)
    names = read_index(folder)
    assert len(names) == 291
    assert {family.hub_name(name) for name in without_memory(config).state_dict()} == names.keys()
    assert (config.mask_id, config.eos_id, config.vocab_size) == (126336, 126081, 126464)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_padded_batch_equals_its_unpadded_rows(write_hub, family):
    model = dtm.load_model(write_hub(family))
    tokens, attention = rows()
    where = attention & (torch.rand(tokens.shape, generator=stream(0, "where")) < 0.7)
    where |= attention & (attention.cumsum(1) == 1)  # the first token too, which has nothing before it
    together = model(tokens, attention, where)
    alone = [
        model(row[real][None], None, chosen[real][None])
        for row, real, chosen in zip(tokens, attention, where, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("family", "shift"), [("llada", 0), ("dream", 1)])
def test_log_pi_comes_from_the_shifted_state_and_knows_real_tokens_alone(write_hub, family, shift):
    model = dtm.load_model(write_hub(family))
    tokens, _ = rows()
    where = torch.ones_like(tokens, dtype=torch.bool)
    logits = model.logits(tokens)[..., : model.vocab_size]
    logits[..., MASK] = -torch.inf
    expected = logits.log_softmax(-1)
    if shift:
        expected = torch.cat([expected[:, :1], expected[:, :-1]], dim=1)
    log_pi = model(tokens, None, where).unflatten(0, tokens.shape)
    assert model.shift == shift
    assert log_pi.shape[-1] == 19  # not the 24 rows of LLaDA's embedding
    torch.testing.assert_close(log_pi.exp(), expected.exp(), atol=1e-6, rtol=0)


def test_the_dtype_is_the_stored_one_unless_asked_otherwise(write_hub):
    folder = write_hub("llada", shards=2, dtype=torch.bfloat16)
    assert {p.dtype for p in dtm.load_model(folder).parameters()} == {torch.bfloat16}
    assert {p.dtype for p in dtm.load_model(folder, dtype=torch.float32).parameters()} == {torch.float32}


def test_a_hub_model_saved_natively_comes_back_with_its_shift_and_names(write_hub, tmp_path):
    model = dtm.load_model(write_hub("dream"))
    dtm.save_model(model, tmp_path / "native")
    again = dtm.load_model(tmp_path / "native")
    assert again.config == model.config
    assert (again.shift, again.config.family) == (1, "dream")
    tokens, attention = rows()
    assert torch.equal(again.logits(tokens, attention), model.logits(tokens, attention))


def test_the_files_may_change_while_the_model_lives(write_hub):
    folder = write_hub("llada")
    model = dtm.load_model(folder)
    before = model.logits(rows()[0])
    (folder / "model.safetensors").write_bytes(b"")
    assert torch.equal(model.logits(rows()[0]), before)


# ── errors by name ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("llada", {"block_type": "sequential"}, "'block_type' is 'sequential'; it can only be 'llama'"),
        ("llada", {"activation_type": "gelu"}, "'activation_type'"),
        ("llada", {"layer_norm_type": "default"}, "'layer_norm_type'"),
        ("llada", {"alibi": True}, "'alibi'"),
        ("llada", {"rope": False}, "'rope'"),
        ("llada", {"attention_layer_norm": True}, "'attention_layer_norm'"),
        ("llada", {"scale_logits": True}, "'scale_logits'"),
        ("llada", {"input_emb_norm": True}, "'input_emb_norm'"),
        ("llada", {"include_bias": True}, "'include_bias'"),
        ("llada", {"block_group_size": 2}, "'block_group_size'"),
        ("llada", {"residual_dropout": 0.1}, "'residual_dropout'"),
        ("llada", {"multi_query_attention": True}, "1 key-value heads, 'n_kv_heads' is 4"),
        ("llada", {"n_experts": 8}, "'n_experts' is 8; it is unknown to this loader"),
        ("llada", {"d_model": None}, "'d_model' is None; it must be an integer"),
        ("llada", {"rope_theta": "big"}, "'rope_theta' is 'big'; it must be a finite number"),
        ("dream", {"hidden_act": "gelu"}, "'hidden_act'"),
        ("dream", {"rope_scaling": {"type": "yarn"}}, "'rope_scaling'"),
        ("dream", {"use_sliding_window": True}, "'use_sliding_window'"),
        ("dream", {"head_dim": 7}, r"config\.json: .*even head width, got 7"),
        ("dream", {"model_type": "dreem"}, "'model_type' is 'dreem'.*Did you mean 'Dream'"),
    ],
)
def test_an_unsupported_setting_is_refused_by_name(write_hub, family, changes, named):
    folder = write_hub(family)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError, match=named):
        dtm.load_model(folder)


@pytest.mark.parametrize("key", ["block_type", "weight_tying", "mask_token_id", "n_layers"])
def test_a_missing_setting_is_named(write_hub, key):
    folder = write_hub("llada")
    config = json.loads((folder / "config.json").read_text())
    del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"'{key}' is missing"):
        dtm.load_model(folder)


def edit(path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("model.norm.weight"), r"misses tensor 'model\.norm\.weight' \(the model's 'norm"),
        (lambda t: t.update(extra=torch.zeros(1)), "unexpected tensor 'extra'"),
        (
            lambda t: t.update({"lm_head.weight": torch.zeros(19, 31)}),
            r"'lm_head\.weight' is \(19, 31\), config\.json says \(19, 32\)",
        ),
    ],
)
def test_a_wrong_tensor_is_named(write_hub, change, named):
    folder = write_hub("dream")
    edit(folder / "model.safetensors", change)
    with pytest.raises(CheckpointError, match=named):
        dtm.load_model(folder)


def test_an_absent_shard_is_named(write_hub):
    folder = write_hub("llada", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors is absent"):
        dtm.load_model(folder)


def test_a_shard_that_lacks_what_the_index_promises_is_named(write_hub):
    folder = write_hub("llada", shards=3)
    edit(folder / "model-00001-of-00003.safetensors", lambda t: t.pop("model.transformer.wte.weight"))
    with pytest.raises(
        CheckpointError, match=r"00001-of-00003\.safetensors misses tensor 'model\.transformer\.wte"
    ):
        dtm.load_model(folder)


def test_a_truncated_shard_is_named(write_hub):
    folder = write_hub("llada", shards=3)
    shard = folder / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:50])
    with pytest.raises(CheckpointError, match=r"model-00003-of-00003\.safetensors"):
        dtm.load_model(folder)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        dtm.load_model(tmp_path / "nowhere")


def test_a_hub_name_stands_for_its_downloaded_copy(write_hub, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CheckpointError, match=r"`hf download org/tiny`"):
        dtm.load_model("org/tiny")
    repository = tmp_path / "cache" / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "snapshots").mkdir()
    write_hub("dream").rename(repository / "snapshots" / ("0" * 40))
    assert dtm.load_model("org/tiny").config.family == "dream"
