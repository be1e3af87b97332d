"""Tokenizers in the layouts of the hub: one file, or the parts that Dream has."""

from __future__ import annotations

import json

import pytest

from dtm.errors import ConfigError
from dtm.tasks.language import Chat

pytest.importorskip("transformers")

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)


@pytest.fixture
def dream(tmp_path):
    """The tokenizer of a Dream folder: bytes and one merge, the special tokens after them."""
    from tokenizers.pre_tokenizers import ByteLevel

    vocabulary = {token: number for number, token in enumerate([*sorted(ByteLevel.alphabet()), "he"])}
    special = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    settings = {
        "added_tokens_decoder": {
            str(len(vocabulary) + n): {"content": token, **special} for n, token in enumerate(SPECIALS)
        },
        "additional_special_tokens": SPECIALS[1:],
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "bos_token": "<|beginoftext|>",
        "eos_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "DreamTokenizer",
        "chat_template": TEMPLATE,
    }
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh e\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def test_dream_is_read_from_its_vocabulary_and_merges_without_its_code(dream):
    (dream / "tokenization_dream.py").write_text("raise SystemExit('this must not run')")
    chat = Chat.load(dream)
    assert len(chat) == 256 + 1 + len(SPECIALS)
    ids = chat.ask("the é\n17", prefill="<reasoning>")
    asked = "<|im_start|>user\nthe é\n17<|im_end|>\n<|im_start|>assistant\n<reasoning>"
    assert chat.read(ids, special=True) == asked
    assert (ids.count(258), ids.count(259), ids.count(260)) == (2, 1, 0)
    assert 256 in ids  # "he" is one token


@pytest.mark.parametrize("lost", ["vocab.json", "merges.txt"])
def test_half_of_a_tokenizer_is_refused(dream, lost):
    (dream / lost).unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json is missing, and so is .*" + lost):
        Chat.load(dream)
