"""Files that somebody else wrote: whatever is in them, reading ends in a sentence that names the file."""

from __future__ import annotations

import contextlib
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from dtm.cli import main
from dtm.config import RunConfig
from dtm.config.serialise import load_yaml
from dtm.errors import CheckpointError, ConfigError, DataError, DtmError
from dtm.evaluation.grade import Totals, grade_rows, open_lines
from dtm.models.families import read_shape
from dtm.models.shape import TransformerConfig
from dtm.models.storage import load_model, save_model
from dtm.models.transformer import Transformer
from dtm.tasks.language import Chat, read_own

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture
def folder(tmp_path):
    """A tiny model in the native layout."""
    shape = TransformerConfig(vocab_size=8, mask_id=7, eos_id=6, width=8, layers=1, heads=2, ffn=8)
    save_model(Transformer(shape), tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "seed: [" * 5000,
        "seed: 2024-99-99",
        "seed: 1" + "0" * 5000,
        "\x00",
        "? [a]\n: 1",
        "a: &a 1\nb: *a",
    ],
    ids=["aliases", "nesting", "date", "digits", "nul", "key", "alias"],
)
def test_yaml_of_any_kind_is_read_or_refused_by_name(text, tmp_path):
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"odd\.yaml"):
        load_yaml(path, RunConfig())


def test_a_configuration_of_gigabytes_is_not_read(tmp_path):
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 32)
    with pytest.raises(ConfigError, match=r"big\.yaml has 4,294,967,296 bytes"):
        load_yaml(path, RunConfig())


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 10**9},
        {"layers": 0},
        {"layers": "4"},
        {"layers": True},
        {"width": 2.0},
        {"vocab_size": 10**12},
        {"rope_base": math.nan},
        {"rope_base": 0.0},
        {"norm_eps": math.inf},
        {"heads": -2},
        {"model_type": ["llada"]},
    ],
    ids=str,
)
def test_a_shape_that_cannot_be_is_refused_with_its_file(change, folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=rf"config\.json.*{next(iter(change))}"):
        read_shape(folder)


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"a":' * 5000, "[" * 100_000, "1" * 5000])
def test_a_damaged_config_is_refused_with_its_file(text, folder):
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_shape(folder)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda value: value.fill_(math.nan), "not finite"),
        (lambda value: value.index_fill_(0, torch.tensor(0), math.inf), "not finite"),
        (lambda value: value.long(), "stored as I64; weights must be one of F16, BF16, F32, F64"),
    ],
)
def test_weights_that_are_no_finite_numbers_are_refused(spoil, said, folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["norm.weight"] = spoil(weights["norm.weight"].clone())
    save_file(weights, path)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: 'norm\.weight' .*{said}"):
        load_model(folder)


def test_a_safetensors_file_with_any_byte_changed_loads_or_is_refused(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for place in range(0, 400, 13):
        for byte in (0, 0x22, 0xFF):
            path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            with contextlib.suppress(CheckpointError):
                load_model(folder)


def test_a_chat_template_that_does_not_end_is_refused(write_talking, monkeypatch):
    monkeypatch.setattr("dtm.tasks.language.tokenizer.TEMPLATE_SECONDS", 0.3)
    model = write_talking("dream")
    path = model / "tokenizer_config.json"
    (model / "chat_template.jinja").unlink(missing_ok=True)
    loops = "".join(f"{{% for {name} in range(99999) %}}" for name in "abcd") + "{% endfor %}" * 4
    settings = json.loads(path.read_text())
    for template, said in ((loops, r"within 0\.3 s"), ("{{ 1 / 0 }}", "ZeroDivisionError"), ("{%", "Syntax")):
        path.write_text(json.dumps(settings | {"chat_template": template}))
        with pytest.raises(CheckpointError, match=f"the tokenizer in .*{said}"):
            Chat.load(model)


@pytest.mark.parametrize("template", ["", " \n", "{% if messages | length > 9 %}later{% endif %}"])
def test_a_chat_template_that_renders_nothing_is_refused(template, write_talking):
    """A prompt of no tokens would fail in the decoder."""
    model = write_talking("dream")
    (model / "chat_template.jinja").write_text(template)
    with pytest.raises(CheckpointError, match=r"the tokenizer in .*: the chat template renders nothing"):
        Chat.load(model)


def test_a_conversation_of_which_the_template_renders_nothing_is_refused(write_talking):
    model = write_talking("dream")
    (model / "chat_template.jinja").write_text("{% if messages[0].content != 'hush' %}said{% endif %}")
    with pytest.raises(DataError, match="the chat template renders nothing"):
        Chat.load(model).ask("hush", prefill="<answer>")


def test_a_tokenizer_that_makes_no_tokens_is_refused(write_talking):
    """The letters of this vocabulary are lower-case."""
    model = write_talking("dream")
    (model / "chat_template.jinja").write_text("ÄÖÜ")
    with pytest.raises(CheckpointError, match=r"the tokenizer in .*: the tokenizer makes no tokens"):
        Chat.load(model)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": []}', '{"model": {"type": "BPE", "vocab": 3}}'])
def test_a_damaged_tokenizer_is_refused_with_its_folder(text, write_talking):
    model = write_talking("dream")
    (model / "tokenizer.json").write_text(text)
    with pytest.raises(DtmError, match="the tokenizer in "):
        Chat.load(model)


def test_a_tokenizer_that_fails_on_text_is_refused_with_its_folder(write_talking):
    path = write_talking("dream") / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": {"a": 1}}))
    with pytest.raises(CheckpointError, match=r"the tokenizer in .*: it fails with TypeError"):
        Chat.load(path.parent)


def test_rows_of_any_kind_are_read_or_refused_by_line(tmp_path, monkeypatch):
    monkeypatch.setattr("dtm.files.MAX_LINE", 100)
    path = tmp_path / "rows.jsonl"
    for bad in (b"[" * 90, b'{"prompt": "' + b"x" * 300 + b'"}', b"\xff", b"1" * 99, b"{"):
        path.write_bytes(b'{"prompt": "a"}\n' + bad + b"\n")
        with pytest.raises(DataError, match=r"rows\.jsonl, line 2"):
            read_own(path)


def test_a_row_too_long_to_grade_is_told_and_the_others_are_graded(tmp_path, monkeypatch):
    monkeypatch.setattr("dtm.files.MAX_LINE", 100)
    path, row = tmp_path / "rows.jsonl", {"question": "", "ground_truth": "5", "generation": r"\boxed{5}"}
    good = json.dumps(row).encode()
    path.write_bytes(good + b"\n" + b"9 " * 500 + b"\n" + good + b"\n")
    totals = Totals()
    first, second, third = grade_rows("gsm8k", "fixed", open_lines(str(path)), totals)
    assert "line 2: longer than 100 bytes" in str(second)
    assert first["correct"]
    assert third["correct"]
    assert (totals.rows, totals.errors) == (2, 1)


def test_values_on_the_command_line_are_refused_by_their_flag(capsys):
    assert main(["sweep", "maze-small", "--vary", "tilt.step=[1"]) == 2
    assert "--vary tilt.step=[1 is not valid YAML" in capsys.readouterr().err
