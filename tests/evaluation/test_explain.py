"""Fingerprints: what decides a score changes them, what does not leaves them; and differences in words."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from dtm.cli import main
from dtm.evaluation.explain import DECIDES, ROUNDS
from dtm.evaluation.fingerprint import code_version, digest, model_identity
from dtm.evaluation.protocol import Examination, Outcome, examine
from dtm.evaluation.results import place, write_outcome
from dtm.evaluation.subject import ModelFiles, Subject

pytest.importorskip("transformers")


@pytest.fixture
def outcome(write_talking, tmp_path) -> Outcome:
    """Two Countdown items put to a random model."""
    (tmp_path / "data").mkdir()
    rows = [{"input": "20,2,3", "output": "25"}, {"input": "7,2,3", "output": "42"}]
    (tmp_path / "data" / "countdown_cd3_test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    subject = Subject.load(ModelFiles.find(str(write_talking("llada"))), "cpu")
    return examine(subject, Examination(task="countdown", length=32), tmp_path / "data")


@pytest.fixture
def explained(outcome, tmp_path, capsys):
    """The explanation of the outcome against itself with fields changed, e.g. ``decoding={"length": 64}``."""

    def explain(rows=None, **changes):
        mark = copy.deepcopy(dict(outcome.fingerprint))
        for group, fields in changes.items():
            mark[group] = {**mark[group], **fields}
        other = Outcome(outcome.asked, outcome.measures, rows or outcome.rows, mark, 1.0)
        a, b = (place(outcome.asked, name, tmp_path / name) for name in "ab")
        write_outcome(outcome, a)
        write_outcome(other, b)
        assert main(["eval", "--explain", str(a), str(b)]) == 0
        return capsys.readouterr().out

    return explain


def test_equal_results_differ_in_nothing(explained):
    text = explained()
    assert "nothing that decides the number differs." in text
    assert "last bits" not in text
    assert "items of both: 2; other generations: 0; right in A alone: 0, in B alone: 0" in text


def test_a_name_and_a_machine_do_not_decide(explained):
    text = explained(names={"model": "elsewhere"}, hardware={"gpu": "H200"}, packages={"torch": "9.9"})
    assert "nothing that decides the number differs." in text
    assert "settings that change rounding differ:" in text
    assert "gpu: None → H200" in text
    assert "elsewhere" not in text


def test_differences_come_in_groups_and_in_words(explained, outcome):
    rows = [{**outcome.rows[0], "generation": "x", "correct": True}, outcome.rows[1]]
    text = explained(
        rows,
        prompts={"texts": "0" * 16, "protocol": "spg"},
        decoding={"length": 64},
        model={"adapter": "1" * 16},
        numerics={"precision": "bfloat16"},
    )
    places = [text.index(f"  {DECIDES[group]}\n") for group in ("prompts", "decoding", "model", "numerics")]
    assert places == sorted(places)
    for said in (
        "other prompts or beginnings of the answer\n",
        "protocol: dtm → spg",
        "tokens of a completion: 32 → 64",
        "another adapter, or none\n",
        "precision: float32 → bfloat16",
        "other generations: 1; right in A alone: 0, in B alone: 1",
    ):
        assert said in text
    assert DECIDES["items"] not in text


def test_a_fingerprint_is_all_groups_and_json(outcome):
    assert outcome.fingerprint.keys() == {*DECIDES, *ROUNDS, "names"}
    assert json.loads(json.dumps(outcome.fingerprint)) == outcome.fingerprint


def test_order_does_not_decide_and_contents_do():
    assert digest([["a", 1], ["b", 2]]) == digest([["b", 2], ["a", 1]])
    assert digest([["a", 1], ["b", 2]]) != digest([["a", 2], ["b", 1]])
    assert digest([["\ud800"]]) != digest([])


def test_code_is_known_by_what_it_says_and_not_by_its_comments(tmp_path):
    found = []
    for text in ("limit = 3", "limit = 3  # at most", "limit = 4"):
        (tmp_path / "rules.py").write_text(text)
        found.append(code_version([tmp_path / "rules.py"]))
    assert found[0] == found[1] != found[2]


def test_a_setting_is_told_with_both_values(explained):
    text = explained(decoding={"order": "uniform"})
    assert "which token is revealed next: sampled-confidence → uniform" in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_is_known_by_its_weights_and_not_by_its_place(write_hub, tmp_path, dtype):
    folder = write_hub("llada", dtype=dtype)
    before = model_identity(folder)
    moved = folder.rename(tmp_path / "moved")
    assert model_identity(moved) == before
    weights = load_file(moved / "model.safetensors")
    name = "model.transformer.blocks.1.q_proj.weight"
    save_file({**weights, name: weights[name] * 2}, moved / "model.safetensors")
    after = model_identity(moved)
    assert {key for key in after if after[key] != before[key]} == {"values"}


def test_an_adapter_is_known_by_its_weights_and_their_scale(write_hub, tmp_path):
    folder, found = write_hub("llada"), []
    save_file({"a": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
    for alpha, rank, dropout in ((64, 128, 0.0), (64, 128, 0.1), (128, 128, 0.0)):
        config = {"lora_alpha": alpha, "r": rank, "lora_dropout": dropout}
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
        found.append(model_identity(folder, tmp_path)["adapter"])
    assert found[0] == found[1] != found[2]


def test_what_is_no_result_is_named(tmp_path, capsys):
    (tmp_path / "other.json").write_text('{"reward": 1}')
    (tmp_path / "broken.json").write_text("{")
    for name, said in (
        ("nowhere.json", "no file"),
        ("other.json", "is not a result of `dtm eval"),
        ("broken.json", "is not JSON"),
    ):
        assert main(["eval", "--explain", str(tmp_path / name), str(tmp_path / name)]) == 2
        assert said in capsys.readouterr().err
