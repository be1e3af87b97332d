"""Checkpoints in the hub's layouts, written by the tests, and a plain second implementation of the models.

Names, shapes and arithmetic are spelled out here from the hub's side, without the package's tables, so that
the tests hold on machines without any published file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dtm.random import stream

LLADA: dict[str, Any] = {
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 4,
    "mlp_hidden_size": 48,
    "mlp_ratio": 4,
    "vocab_size": 19,
    "embedding_size": 24,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "mask_token_id": 18,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "rope": True,
    "alibi": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "weight_tying": False,
    "multi_query_attention": None,
}
DREAM: dict[str, Any] = {
    "model_type": "Dream",
    "architectures": ["DreamModel"],
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 19,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "mask_token_id": 18,
    "pad_token_id": 1,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
BASES = {"llada": LLADA, "dream": DREAM}

LETTERS = [chr(code) for code in range(32, 127)] + ["\n", "…"]
SPECIALS = [
    "<|startoftext|>",
    "<|endoftext|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|mask|>",
]
VOCABULARY = {token: number for number, token in enumerate([*SPECIALS, *LETTERS])}
TEMPLATE = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)


def llada_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width, inner = config["d_model"], config["mlp_hidden_size"]
    narrow = width // config["n_heads"] * config["n_kv_heads"]
    rows = config["embedding_size"] or config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.transformer.wte.weight": (rows, width),
        "model.transformer.ln_f.weight": (width,),
    }
    if not config["weight_tying"]:
        shapes["model.transformer.ff_out.weight"] = (rows, width)
    for n in range(config["n_layers"]):
        block = f"model.transformer.blocks.{n}."
        shapes |= {
            block + "attn_norm.weight": (width,),
            block + "ff_norm.weight": (width,),
            block + "q_proj.weight": (width, width),
            block + "k_proj.weight": (narrow, width),
            block + "v_proj.weight": (narrow, width),
            block + "attn_out.weight": (width, width),
            block + "ff_proj.weight": (inner, width),
            block + "up_proj.weight": (inner, width),
            block + "ff_out.weight": (width, inner),
        }
        if config["include_qkv_bias"]:
            shapes |= {block + f"{p}_proj.bias": (width if p == "q" else narrow,) for p in "qkv"}
    return shapes


def dream_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width, inner, rows = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = config.get("head_dim") or width // config["num_attention_heads"]
    wide, narrow = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (rows, width),
        "model.norm.weight": (width,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (rows, width)
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        shapes |= {
            layer + "input_layernorm.weight": (width,),
            layer + "post_attention_layernorm.weight": (width,),
            layer + "self_attn.q_proj.weight": (wide, width),
            layer + "self_attn.q_proj.bias": (wide,),
            layer + "self_attn.k_proj.weight": (narrow, width),
            layer + "self_attn.k_proj.bias": (narrow,),
            layer + "self_attn.v_proj.weight": (narrow, width),
            layer + "self_attn.v_proj.bias": (narrow,),
            layer + "self_attn.o_proj.weight": (width, wide),
            layer + "mlp.gate_proj.weight": (inner, width),
            layer + "mlp.up_proj.weight": (inner, width),
            layer + "mlp.down_proj.weight": (width, inner),
        }
    return shapes


SHAPES = {"llada": llada_shapes, "dream": dream_shapes}


@pytest.fixture
def write_hub(tmp_path) -> Callable[..., Path]:
    """A random checkpoint of a family, with changes to its configuration, in one file or in shards."""

    def write(
        family: str,
        shards: int = 1,
        dtype: torch.dtype = torch.float32,
        scale: float = 0.2,
        name: str = "hub",
        **changes: Any,
    ) -> Path:
        folder, config = tmp_path / name, BASES[family] | changes
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        noise = stream(0, "checkpoint")
        tensors = {
            tensor: (torch.randn(shape, generator=noise) * scale + ("norm" in tensor or "ln_f" in tensor)).to(
                dtype
            )
            for tensor, shape in SHAPES[family](config).items()
        }
        if shards == 1:
            save_file(tensors, folder / "model.safetensors")
            return folder
        files = [f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)]
        for n, file in enumerate(files):
            save_file({key: tensors[key] for key in list(tensors)[n::shards]}, folder / file)
        placed = {key: files[n % shards] for n, key in enumerate(tensors)}
        size = sum(value.nbytes for value in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": placed}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    return write


@pytest.fixture
def write_talking(write_hub) -> Callable[..., Path]:
    """A random checkpoint of a family with a character-level tokenizer that has LLaDA's special tokens."""

    def write(family: str, **changes: Any) -> Path:
        from tokenizers import Tokenizer, decoders, models
        from transformers import PreTrainedTokenizerFast

        ids = {"vocab_size": len(VOCABULARY), "mask_token_id": 5, "eos_token_id": 1, "pad_token_id": 1}
        wide = {"embedding_size": 128} if family == "llada" else {}
        folder = write_hub(family, **ids | wide | changes)
        letters = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[]))
        letters.add_special_tokens(SPECIALS)
        letters.decoder = decoders.Fuse()
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=letters,
            bos_token="<|startoftext|>",
            eos_token="<|endoftext|>",
            pad_token="<|endoftext|>",
            mask_token="<|mask|>",
            additional_special_tokens=SPECIALS[2:5],
        )
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(folder)
        return folder

    return write


def reference_logits(
    config: dict[str, Any], tensors: dict[str, Tensor], ids: Tensor, attention: Tensor | None = None
) -> Tensor:
    """The model of a hub checkpoint in float64, one position pair at a time where it matters."""
    tensors = {name: value.double() for name, value in tensors.items()}
    llada = config["model_type"] == "llada"
    heads = config["n_heads" if llada else "num_attention_heads"]
    kv_heads = config["n_kv_heads" if llada else "num_key_value_heads"] or heads
    head_width = config.get("head_dim") or config["d_model" if llada else "hidden_size"] // heads
    layers = config["n_layers" if llada else "num_hidden_layers"]
    names = (
        ("attn_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_norm", "ff_proj", "up_proj", "ff_out")
        if llada
        else (
            *(
                "input_layernorm",
                "self_attn.q_proj",
                "self_attn.k_proj",
                "self_attn.v_proj",
                "self_attn.o_proj",
            ),
            *("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        )
    )
    embedding = tensors["model.transformer.wte.weight" if llada else "model.embed_tokens.weight"]

    def norm(x: Tensor, name: str) -> Tensor:
        return (
            x
            / (x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt()
            * tensors[name + ".weight"]
        )

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ tensors[name + ".weight"].T + tensors.get(name + ".bias", torch.zeros(()))

    def turn(x: Tensor) -> Tensor:  # [B, L, heads, width], complex rotation of the channel pairs (e, e + E/2)
        half = x.shape[-1] // 2
        speed = config["rope_theta"] ** -(torch.arange(half).double() / half)
        angle = torch.arange(x.shape[1]).double()[:, None, None] * speed
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([turned.real, turned.imag], -1)

    x = embedding[ids]
    for n in range(layers):
        a_norm, q, k, v, out, f_norm, gate, up, down = (
            (f"model.transformer.blocks.{n}." if llada else f"model.layers.{n}.") + name for name in names
        )
        inner = norm(x, a_norm)
        query, key, value = (linear(inner, name).unflatten(-1, (-1, head_width)) for name in (q, k, v))
        key, value = (part.repeat_interleave(heads // kv_heads, 2) for part in (key, value))
        scores = torch.einsum("blhe,bmhe->bhlm", turn(query), turn(key)) / head_width**0.5
        if attention is not None:
            scores = scores.masked_fill(~attention[:, None, None, :], -torch.inf)
        mixed = torch.einsum("bhlm,bmhe->blhe", scores.softmax(-1), value).flatten(2)
        x = x + linear(mixed, out)
        inner = norm(x, f_norm)
        gated = linear(inner, gate)
        x = x + linear(gated * gated.sigmoid() * linear(inner, up), down)
    x = norm(x, "model.transformer.ln_f" if llada else "model.norm")
    head = "model.transformer.ff_out" if llada else "lm_head"
    return linear(x, head) if head + ".weight" in tensors else x @ embedding.T


@pytest.fixture
def reference() -> Callable[..., Tensor]:
    """The second implementation."""
    return reference_logits


CHATML_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<reponame>", "<empty_output>"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SOURCE_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "rope_theta": 100000.0,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}


def chatml_tokenizer(**special: str) -> Any:
    """A byte-level BPE tokenizer with single digits and SmolLM2's kind of special tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=CHATML_SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(["the answer is the sum of the numbers", "user assistant system"] * 9, trainer)
    named = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "pad_token": "<|endoftext|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, **named | special)
    tokenizer.chat_template = CHATML
    return tokenizer


def save_source(folder: Path, source: str, **changes: Any) -> Path:
    """Write a random model of a few thousand weights in the layout of Llama, Qwen2 or Qwen3."""
    import transformers

    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[source]
    sizes = SOURCE_SIZES | ({"head_dim": 12} if source == "qwen3" else {}) | changes
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=stream(0, "source")))
    model.save_pretrained(folder)
    chatml_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def write_source(tmp_path) -> Callable[..., Path]:
    """A random Llama, Qwen2 or Qwen3 model that `transformers` saved, with a tokenizer."""

    return lambda source, name="source", **changes: save_source(tmp_path / name, source, **changes)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Published metadata and golden files, where a machine has them; they are not part of the repository."""
    folder = Path(os.environ.get("DTM_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no {folder}; name it with DTM_SHARED_DATA")
    return folder
