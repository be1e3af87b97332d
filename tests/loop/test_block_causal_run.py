"""A run of c-DTM on a model with block-causal attention, from rollouts with the prefix cache to a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import dtm
from dtm.capacity.flops import rollout_flops
from dtm.cli.run import print_estimate
from dtm.config import DecodingConfig, EvaluationConfig, ModelConfig, RunConfig
from dtm.config.registry import configure_method
from dtm.engine import Decoder, generate
from dtm.errors import ConfigError
from dtm.loop.assemble import assemble
from dtm.loop.assembly import new_shape
from dtm.loop.plan import training_plan
from dtm.masking import EveryBlock
from dtm.models import Transformer, TransformerConfig
from dtm.models.source import with_config
from dtm.random import stream
from dtm.records import Cost


def variety(prompts, completions, **columns) -> list[float]:
    """A reward that differs between completions of random weights: the share of distinct cells."""
    return [len(set(map(str, path))) / max(len(path), 1) for path in completions]


@pytest.fixture
def blockwise(tiny, tmp_path) -> RunConfig:
    """The tiny maze with prompts of 3 tokens, a block-causal base of random weights, and blocks of 2."""
    shape = replace(new_shape(tiny, assemble(tiny).task), layers=2, attention_block=2)
    dtm.save_model(Transformer(shape, stream(0, "base")), tmp_path / "base")
    return replace(
        tiny,
        model=ModelConfig(base=str(tmp_path / "base")),
        decoding=replace(tiny.decoding, block=2, cache="prefix", certainty=None),
    )


def test_a_run_decodes_with_the_prefix_cache_and_needs_no_audit(blockwise, tmp_path):
    run = dtm.train(blockwise, reward=variety, out=tmp_path / "run")
    events = (run.path / "metrics.jsonl").read_text(encoding="utf-8")
    assert '"audit"' not in events
    changed = zip(run.model.parameters(), dtm.load_model(blockwise.model.base).parameters(), strict=True)
    assert any(not torch.equal(*pair) for pair in changed)
    assert run.model.attention_block == 2
    assert run.sample(prompts=2)
    assert run.evaluate(EvaluationConfig(prompts=2)).measures


def test_rollouts_are_in_whole_blocks_and_masks_follow(blockwise, make_trainer):
    trainer = make_trainer(blockwise)
    replay = trainer.open_phase()
    assert replay.rollouts.tokens.shape[1] == 4 + 5
    assert not replay.rollouts.attention[:, 0].any()
    states, _ = trainer.learner.batch(replay, trainer.progress)
    for row in states.eligible[:, 4:]:
        assert (
            len({column // 2 for column in row.nonzero().flatten().tolist()}) == 1
        )  # one of the model's blocks


def test_other_blocks_are_refused_before_the_base_is_loaded(blockwise):
    config = replace(blockwise, decoding=replace(blockwise.decoding, block=4))
    with pytest.raises(ConfigError, match=r"Pass --decoding\.block 2"):
        assemble(config).preflight()


def test_estimates_count_the_prefix_cache_and_whole_blocks(blockwise):
    with_cache, without = (
        assemble(replace(blockwise, decoding=replace(blockwise.decoding, cache=cache)))
        for cache in ("prefix", "none")
    )
    assert with_cache.training_shape.length == 4 + 5
    assert with_cache.memory.rollouts > without.memory.rollouts


def test_the_plan_names_the_attention_the_exact_cache_and_what_approximates(blockwise, tiny):
    def plan(**decoding):
        return training_plan(assemble(replace(blockwise, decoding=replace(blockwise.decoding, **decoding))))

    exact, rough, none = plan(), plan(order="sampled-confidence"), plan(cache="none")
    assert exact["attention"] == "blocks of 2, causal between them"
    assert "own law" in exact["decoding"]
    assert exact["cache"] == "prefix: exact, since finished blocks never change, so it needs no audit"
    assert "approximates the model's law (the order)" in rough["decoding"]
    assert rough["cache"].startswith("prefix: exact")
    assert rough["cache"].endswith("what approximates the law is named under decoding")
    assert "--decoding.cache prefix is exact" in none["cache"]
    assert "audit" not in exact
    certain = plan(certainty=0.9)
    assert "no audit" not in certain["cache"]
    assert certain["audit"].startswith("none: the error")  # audit.share is 0 here
    full = training_plan(assemble(tiny))
    assert full["attention"] == "full"
    assert "cache" not in full


def test_block_causal_bases_get_the_exact_cache_by_default(blockwise):
    usual = assemble(replace(blockwise, decoding=DecodingConfig(block=2)))
    assert training_plan(usual)["cache"].startswith("prefix: exact")
    assert usual.training_shape.cached


def test_a_run_says_at_its_start_that_its_cache_is_exact(blockwise, capsys):
    print_estimate(assemble(blockwise))
    assert "cache: prefix: exact" in capsys.readouterr().out


def test_masks_in_every_block_train_c_dtm(blockwise, make_trainer):
    """The gradient of a batch and the meter accept states that need the doubled pass."""
    trainer = make_trainer(
        replace(blockwise, method=configure_method("c-dtm", block="every")), reward=variety
    )
    assert trainer.learner.masking == EveryBlock(2)
    before = [parameter.clone() for parameter in trainer.policy.trained()]
    doubled = Transformer.hidden_doubled
    with patch.object(Transformer, "hidden_doubled", autospec=True, side_effect=doubled) as calls:
        trainer.run()
    assert calls.call_count
    assert any(not torch.equal(*pair) for pair in zip(before, trainer.policy.trained(), strict=True))
    assert all(parameter.isfinite().all() for parameter in trainer.policy.trained())


@pytest.mark.parametrize("method", ["c-dtm", "diffu-grpo", "spg", "trace-rl"])
def test_blocks_counted_from_the_first_token_are_masked_and_trained(blockwise, make_trainer, method):
    """Prompts of 3 tokens end inside a block of 2: the completion begins with the other half of it."""
    base = dtm.load_model(blockwise.model.base)
    dtm.save_model(with_config(base, block_origin="token"), Path(blockwise.model.base))
    trainer = make_trainer(replace(blockwise, method=configure_method(method)), reward=variety)
    replay = trainer.open_phase()
    assert replay.rollouts.tokens.shape[1] == 3 + 5
    assert replay.rollouts.attention.all()
    states, _ = trainer.learner.batch(replay, trainer.progress)
    assert states.doubled == (method == "diffu-grpo")
    for row in range(len(states) if method == "c-dtm" else 0):
        assert len(set((states.eligible[row].nonzero().squeeze(1) // 2).tolist())) == 1
    before = [parameter.clone() for parameter in trainer.policy.trained()]
    trainer.step(replay)
    assert any(not torch.equal(*pair) for pair in zip(before, trainer.policy.trained(), strict=True))


@pytest.mark.parametrize(("block", "shift"), [(4, 0), (4, 1), (1, 1)])
def test_the_operations_of_the_prefix_cache_are_foreseen(block, shift):
    """Computed positions exactly; positions attended to are a mean over blocks in the estimate."""
    shape = TransformerConfig(
        vocab_size=12, mask_id=11, eos_id=0, width=16, layers=1, heads=2, ffn=16, shift=shift,
        attention_block=block,
    )  # fmt: skip
    model, total = Transformer(shape, stream(0, "test")), Cost()

    def count(_, computed, attended, scored, trained):
        nonlocal total
        total += Cost(tokens=computed, flops=int(shape.flops(computed, attended, scored)))

    model.on_pass = count
    prompts = torch.randint(0, 11, (1, 8), generator=stream(0, "prompts"))
    decoder = Decoder(order=dtm.engine.ORDERS["max-probability"](), block=block, cache="prefix")
    generate(model, prompts, 8, decoder, completions=2)
    expected = 2 * rollout_flops(shape, 8, 8, block, 1, None, together=2, prefix=True)
    assert total.flops == pytest.approx(expected, rel=0.05)
