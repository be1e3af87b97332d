"""A block diffusion model with experts through the commands: train, sample, evaluate, export, fit."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import dtm
from checkpoints import chatml_tokenizer
from dtm.cli import main
from dtm.random import stream
from ending import FINISHED
from published import BLOCKS

pytest.importorskip("transformers")


@pytest.fixture
def base(write_published, monkeypatch, tmp_path):
    """LLaDA2 with a vocabulary and a tokenizer; its files state neither mask nor block."""
    import published

    monkeypatch.setattr(published, "VOCABULARY", 300)
    monkeypatch.chdir(tmp_path)
    folder = write_published("llada2", vocab_size=300)
    chatml_tokenizer().save_pretrained(folder)
    return folder


def test_llada2_is_trained_sampled_measured_and_exported(base, tmp_path, capsys):
    rows = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(30)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "my_reward.py").write_text(
        "def reward(prompts, completions, answer, **columns):\n"
        "    return [0.1 * len(set(text)) for text in completions]\n"
    )
    known = ["--model.mask-token", "<empty_output>", "--model.attention", "block", "--model.block", "4"]
    flags = (
        "--device cpu --data own.jsonl --reward my_reward.py:reward --reward.in-process "
        "--task.completion-length 6 --decoding.block 4 --decoding.cache prefix --model.no-nf4 "
        "--adapter.rank 2 --tilt.final 1 --tilt.step 1 --tilt.max-steps 1 --replay.prompts 2 "
        "--replay.completions 2 --optimizer.batch 2 --optimizer.micro-batch 2 --evaluation.prompts 1 "
        "--evaluation.completions 1 --out run"
    )
    start = ["train", "llada-custom", "--model.base", str(base), *flags.split()]
    assert main([*start, "--dry-run"]) == 2
    assert "--model.mask-token (156895 in published models" in capsys.readouterr().err
    assert main([*start, *known, "--dry-run"]) == 0
    assert "exact" in capsys.readouterr().out
    assert main([*start, *known]) in FINISHED
    run = dtm.Run.open(tmp_path / "run")
    assert (run.model.config.attention_block, run.model.config.experts.count) == (BLOCKS["llada2"], 8)
    adapter = load_file(tmp_path / "run" / "model" / "adapter_model.safetensors")
    assert {name.split(".")[5] for name in adapter} == {"attention", "mlp"}
    assert not any(".experts." in name or ".gate.lora" in name for name in adapter)
    assert main(["export", "run", "--merged", "--out", "merged"]) == 0
    merged = dtm.load_model(tmp_path / "merged")
    tokens = torch.randint(0, 300, (2, 7), generator=stream(0, "tokens"))
    torch.testing.assert_close(merged.logits(tokens), run.model.logits(tokens), atol=1e-4, rtol=1e-4)
    capsys.readouterr()
    asking = ["--prompt", "Say 7.", "--length", "8", "--device", "cpu"]
    assert main(["sample", str(base), *asking]) == 2
    assert main(["sample", str(base), *asking, *known]) == 0
    (tmp_path / "countdown_cd3_test.jsonl").write_text(json.dumps({"input": "20,2,3", "output": "25"}))
    measured = ["--task", "countdown", "--data-dir", ".", "--length", "32", "--device", "cpu"]
    assert main(["eval", str(base), *measured, *known, "--json", "out.json"]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["fingerprint"]["decoding"]["block"] == 4
    assert main(["fit", str(base), "--memory", "24GiB", "--rank", "2"]) == 0


def test_the_list_of_models_names_families_limits_and_reasons(capsys):
    assert main(["models"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "LLaDA2.1 is decoded without token editing, which is not an absorbing process" in text
    assert "diffusion_gemma: DiffusionGemma corrupts text with uniformly random tokens" in text
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["families"].keys() == dtm.models.families.FAMILIES.keys()
    assert "156895" in listed["families"]["llada2"]["may be left out"]
