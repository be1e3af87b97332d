"""Steering with real networks: determinism, caches, early ends, missing rewards, costs and refusals."""

from __future__ import annotations

import math

import pytest
import torch

import dtm
from dtm.engine import Decoder, SampledConfidence, generate
from dtm.errors import ConfigError, RewardError
from dtm.models import Transformer, TransformerConfig
from dtm.random import stream
from dtm.records import Prompts
from dtm.steering import SMC, BestOf, parse_steering, steer
from dtm.steering.reference import tilted_mean

MASK, EOS, LENGTH = 11, 0, 9
DECODER = Decoder(block=4)


def network(block: int | None = None, origin: str = "column", shift: int = 0) -> Transformer:
    shape = TransformerConfig(
        vocab_size=12, mask_id=MASK, eos_id=EOS, width=32, layers=2, heads=4, ffn=48, shift=shift,
        attention_block=block, block_origin=origin,
    )  # fmt: skip
    built = Transformer(shape, stream(0, "test"))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(10 if parameter.dim() == 2 else 1)
    return built.double().eval()


def asked(*lengths: int) -> Prompts:
    width = max(lengths)
    tokens = torch.randint(1, MASK, (len(lengths), width), generator=stream(0, "prompts"))
    attention = torch.arange(width) >= width - torch.tensor(lengths)[:, None]
    return Prompts(tokens.masked_fill(~attention, 0), attention, [None] * len(lengths))


def threes(rows, prompts):
    """Counts a token; the prompt's number keeps prompts apart."""
    return [
        float(count) + number
        for count, number in zip((rows.written[:, :LENGTH] == 3).sum(1), prompts, strict=True)
    ]


METHODS = [
    BestOf(n=5),
    SMC(n=6, tilt=1.5, threshold=0.9),
    SMC(n=3, tilt=1.5, values="rollout", draws=1, sweeps=1, threshold=0.9),
]


def equal(one, other) -> bool:
    return torch.equal(one.rows.tokens, other.rows.tokens) and torch.equal(one.answer, other.answer)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_seed_decides_and_the_batch_does_not(method):
    model, prompts = network(), asked(3, 7, 5)
    found, again = (steer(model, prompts, LENGTH, method, threes, DECODER, seed=1, batch=b) for b in (256, 3))
    assert equal(found, again)
    torch.testing.assert_close(found.weight, again.weight)
    torch.testing.assert_close(found.log_z, again.log_z)
    assert found.effort.forwards == again.effort.forwards
    assert not equal(found, steer(model, prompts, LENGTH, method, threes, DECODER, seed=2))
    torch.testing.assert_close(found.weight.sum(1), torch.ones(3, dtype=torch.float64))
    assert found.reward.tolist() == threes(found.rows, [row // method.n for row in range(3 * method.n)])


@pytest.mark.parametrize("method", METHODS[1:], ids=lambda method: method.name)
@pytest.mark.parametrize(("origin", "shift"), [("column", 0), ("token", 1)])
def test_the_prefix_cache_of_a_block_causal_model_changes_nothing(method, origin, shift):
    model, prompts = network(4, origin, shift), asked(3, 6)
    plain, cached = (
        steer(model, prompts, LENGTH, method, threes, Decoder(block=4, cache=cache), batch=batch)
        for cache, batch in (("none", 256), ("prefix", 5))
    )
    assert equal(plain, cached)
    assert cached.effort.forwards == plain.effort.forwards
    assert cached.effort.tokens < plain.effort.tokens


def test_best_of_n_is_the_best_of_the_draws_of_generate():
    model, prompts = network(), asked(3, 7)
    found = steer(model, prompts, LENGTH, BestOf(n=4), threes, DECODER, batch=3)
    best = found.reward.view(2, 4).max(1)
    assert found.answer.tolist() == [int(best.indices[0]), 4 + int(best.indices[1])]
    assert found.law == "best"
    assert found.effort.rewards == 8
    assert found.effort.forwards == 8 * LENGTH
    # One particle is one plain draw.
    alone = steer(model, prompts, LENGTH, SMC(n=1, tilt=3.0), threes, DECODER)
    assert alone.weight.tolist() == [[1.0], [1.0]]


def test_the_cost_of_smc_and_who_counts_it():
    model, prompts = network(), asked(5, 5)
    heard = []
    model.on_pass = listener = lambda *parts: heard.append(parts)
    found = steer(model, prompts, LENGTH, SMC(n=3, tilt=1.0, draws=2), threes, DECODER)
    rows, values = 2 * 3, 2  # blocks of 4, 4 and 1: two ends before the last
    assert found.effort.forwards == rows * (LENGTH + values)
    assert found.effort.rewards == rows * (2 * values + 1)
    assert found.effort.tokens == rows * (LENGTH + values) * (5 + LENGTH)
    assert found.effort.flops > 0
    assert heard == []
    assert model.on_pass is listener


def test_rows_that_end_early_are_finished_where_they_end():
    model, prompts = network(), asked(4)
    decoder = Decoder(block=3, order=SampledConfidence(), until_end=True)
    found = steer(model, prompts, LENGTH, SMC(n=40, tilt=0.5, sweeps=1, threshold=1.0), threes, decoder)
    written = found.rows.written
    ended = (written == EOS).any(1)
    assert 0 < int(ended.sum()) < 40
    for row in written[ended].tolist():
        block = row.index(EOS) // 3 + 1
        assert set(row[3 * block :]) <= {EOS}
    assert not (written == MASK).any()
    plain = generate(model, prompts, LENGTH, decoder, completions=40)
    assert found.effort.forwards < 2 * 40 * (LENGTH + 2)
    assert plain.written.shape == written.shape


def test_completions_without_a_reward_are_never_the_answer():
    def picky(rows, prompts):
        return [1.0 if int(row.sum()) % 3 else None for row in rows.written]

    for method in (BestOf(n=6), BestOf(n=6, tilt=1.0), SMC(n=6, tilt=1.0, threshold=1.0)):
        found = steer(network(), asked(3, 4, 5), LENGTH, method, picky, DECODER)
        assert not found.reward[found.answer].isnan().any()
        assert (found.weight.flatten()[found.reward.isnan()] == 0).all()
        assert found.reward.isnan().any()
    with pytest.raises(RewardError, match="no completion of a prompt has a reward"):
        steer(network(), asked(3), LENGTH, BestOf(n=2), lambda rows, prompts: [None] * len(rows), DECODER)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: BestOf(n=0), "at least 1 completion, got 0"),
        (lambda: SMC(n=0, tilt=1.0), "at least 1 particle, got 0"),
        (lambda: SMC(n=4, tilt=-1.0), "not negative, got -1"),
        (lambda: BestOf(n=4, tilt=math.nan), "not negative, got nan"),
        (lambda: SMC(n=1, tilt=1.0, sweeps=1), "at least 2 particles"),
        (lambda: SMC(n=2, tilt=1.0, sweeps=-1), "must not be negative"),
        (lambda: SMC(n=2, tilt=1.0, threshold=1.5), r"share in \[0, 1\]"),
        (lambda: SMC(n=2, tilt=1.0, resampling="sorted"), "systematic or multinomial"),
        (lambda: SMC(n=2, tilt=1.0, values="best"), "no value estimate 'best'"),
        (lambda: parse_steering("smc16", 1.0), "write best-of-N or smc-N"),
        (lambda: parse_steering("smc-16", None), "--tilt A"),
        (
            lambda: steer(network(), asked(3), 4, BestOf(n=2), threes, Decoder(temperature=0.0)),
            "--temperature 1",
        ),
        (
            lambda: steer(network(), asked(3), 4, BestOf(n=2), threes, target=network()),
            "best-of-n has no proposal",
        ),
        (
            lambda: steer(
                network(), asked(3), 4, SMC(n=2, tilt=1.0), threes, Decoder(certainty=0.9), target=network()
            ),
            "only in uniform order",
        ),
    ],
)
def test_wrong_settings_are_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_proposal_equal_to_the_target_changes_no_weight():
    model, prompts = network(), asked(3, 6)
    method = SMC(n=4, tilt=1.0, threshold=0.9)
    found = steer(model, prompts, LENGTH, method, threes, DECODER, target=network())
    plain = steer(model, prompts, LENGTH, method, threes, DECODER)
    assert equal(found, plain)
    torch.testing.assert_close(found.weight, plain.weight, atol=1e-4, rtol=0)
    assert found.effort.forwards == plain.effort.forwards + 8 * LENGTH


def test_the_interval_of_the_tilted_mean_covers_it():
    generator, tilt = stream(0, "rollouts"), 2.0
    chance = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]], dtype=torch.float64)
    reward = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    weight = chance * (tilt * reward).exp()
    exact = float(((weight * reward).sum(1) / weight.sum(1)).mean())
    covered = []
    for _ in range(300):
        drawn = reward[torch.multinomial(chance, 200, True, generator=generator)]
        drawn[0, 0] = torch.nan
        found = tilted_mean(drawn, tilt)
        covered.append(found.low <= exact <= found.high)
        assert found.poor == 0
        assert (found.rollouts, found.tilt) == (200, tilt)
    assert 0.91 <= sum(covered) / 300 <= 0.985
    assert tilted_mean(torch.tensor([[0.0] * 99 + [1.0]]), 30.0).poor == 1
    with pytest.raises(RewardError, match="no rollout of a prompt"):
        tilted_mean(torch.full((1, 3), torch.nan), 1.0)


def test_a_run_is_steered_on_the_prompts_that_it_samples(finished):
    found = finished.steer(SMC(n=4, tilt=2.0), prompts=3, completions=2, seed=4)
    assert len(found.answers) == len(found.rewards) == 6
    again = finished.steer(SMC(n=4, tilt=2.0), prompts=3, completions=2, seed=4)
    assert found.answers == again.answers
    best = finished.steer(BestOf(n=8), prompts=3, base=True)
    plain = finished.steer(BestOf(n=1), prompts=3, base=True)
    assert sum(best.rewards) > sum(plain.rewards)
    corrected = finished.steer(SMC(n=4, tilt=2.0), prompts=2, correct=True)
    assert corrected.steered.weight.shape == (2, 4)
    with pytest.raises(ConfigError, match="leave out base"):
        finished.steer(SMC(n=4, tilt=2.0), base=True, correct=True)
    with pytest.raises(ConfigError, match="leave out the temperature"):
        finished.steer(SMC(n=4, tilt=2.0), temperature=0.5, correct=True)
    assert dtm.SMC is SMC
    assert dtm.steer is steer
