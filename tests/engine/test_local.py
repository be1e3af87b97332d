"""The local engine: whose weights draw, and which passes it counts."""

from __future__ import annotations

import pytest
import torch
from networks import LENGTH, asked, network

from dtm.capacity.flops import rollout_flops
from dtm.engine import Decoder, LocalEngine, MaxProbability, RolloutEngine, generate
from dtm.errors import ConfigError
from dtm.loop.ledger import Ledger
from dtm.models.merging import for_decoding
from dtm.records import Cost

DECODER = Decoder(order=MaxProbability(), block=5)


def test_it_is_an_engine_that_generates():
    model, prompts = network("llada"), asked(3, 5)
    engine = LocalEngine(DECODER, LENGTH, batch=3)
    assert isinstance(engine, RolloutEngine)
    engine.load(model)
    found = engine.generate(prompts, 4, seed=2)
    expected = generate(model, prompts, LENGTH, DECODER, seed=2, completions=4)
    assert torch.equal(found.tokens, expected.tokens)
    torch.testing.assert_close(found.log_prob, expected.log_prob)


def test_it_draws_with_the_weights_loaded_last():
    prompts, engine = asked(3, 5), LocalEngine(DECODER, LENGTH, 4)
    with pytest.raises(ConfigError, match="no model is loaded"):
        engine.generate(prompts, 1, 0)
    engine.load(network("llada"))
    first = engine.generate(prompts, 4, 0)
    engine.load(network("dream"))
    assert not torch.equal(engine.generate(prompts, 4, 0).tokens, first.tokens)
    with pytest.raises(ConfigError, match="the model given has fp8 True"):
        engine.load(for_decoding(network("llada"), fp8=True))


def test_it_counts_its_own_passes_and_no_one_else_does():
    model, prompts, engine = network("llada"), asked(6, 6), LocalEngine(DECODER, LENGTH, 8)
    ledger = Ledger([model])
    engine.load(model)
    with ledger:
        engine.generate(prompts, 2, 0)
        found = engine.cost()
        model(prompts.tokens, None, torch.arange(3))  # forward and, for its gradient, backward
    assert found == Cost(0.0, 4 * 16 * LENGTH, int(4 * rollout_flops(model.config, 6, LENGTH, 5, 1, None)))
    assert engine.cost() == Cost()
    assert ledger.take().tokens == 24


def test_a_stop_while_it_generates_leaves_the_listener_in_place():
    def stop() -> None:
        raise KeyboardInterrupt

    model, engine = network("llada"), LocalEngine(DECODER, LENGTH, 8, stop)
    model.on_pass = listener = lambda *_: None
    engine.load(model)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(asked(3), 1, 0)
    assert model.on_pass is listener


def test_costs_add_up():
    assert Cost(1.0, 2, 3) + Cost(tokens=5) == Cost(1.0, 7, 3)
