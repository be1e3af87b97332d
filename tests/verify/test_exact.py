"""The oracle against worlds worked out by hand, brute force, and other routes to the same number."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from dtm.engine import Decoder, MaxProbability, SampledConfidence, Uniform
from dtm.verify.exact import (
    REWARDS,
    World,
    all_sequences,
    decoder_law,
    denoiser,
    kl,
    local_kl,
    minimiser,
    number,
    ordered_log_laws,
    path_kl,
    population_loss,
    random_world,
    score_mass,
)

MASK = 2


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def hand() -> World:
    """ρ(00), ρ(01), ρ(10), ρ(11) = .4, .3, .2, .1; only 11 is rewarded."""
    return World(2, 2, tensor(0.4, 0.3, 0.2, 0.1).log(), tensor(0, 0, 0, 1))


def row(*tokens):
    return int(number(torch.tensor(tokens), 3))


def test_posterior_by_hand(hand):
    pi = hand.posterior()
    torch.testing.assert_close(pi[row(MASK, MASK)], torch.stack([tensor(0.7, 0.3), tensor(0.6, 0.4)]))
    torch.testing.assert_close(pi[row(0, MASK), 1], tensor(4 / 7, 3 / 7))
    torch.testing.assert_close(pi[row(1, MASK), 1], tensor(2 / 3, 1 / 3))
    torch.testing.assert_close(pi[row(MASK, 0), 0], tensor(2 / 3, 1 / 3))
    torch.testing.assert_close(pi[row(MASK, 1), 0], tensor(3 / 4, 1 / 4))
    torch.testing.assert_close(pi[row(1, MASK), 0], tensor(0, 1))


def test_tilt_by_hand(hand):
    """e^{hr} = 2 on 11 alone, so Z = 1.1."""
    h = math.log(2)
    assert hand.log_z(h) == pytest.approx(math.log(1.1))
    torch.testing.assert_close(hand.tilted(h).prob, tensor(4, 3, 2, 2) / 11)
    torch.testing.assert_close(hand.tilted(h).posterior()[row(1, MASK), 1], tensor(1 / 2, 1 / 2))


def test_hazard_by_hand(hand):
    """Any-order: k = 2 weighs 1/2 and each of two subsets with k = 1 weighs 1/2, times P(x_t)."""
    mass = score_mass(hand, None)
    assert mass[row(MASK, MASK)].tolist() == pytest.approx([0.5, 0.5])
    assert mass[row(0, MASK)].tolist() == pytest.approx([0, 0.35])
    assert mass[row(MASK, 1)].tolist() == pytest.approx([0.2, 0])
    autoregressive = score_mass(hand, 1)
    assert autoregressive[row(MASK, MASK)].tolist() == pytest.approx([1, 0])
    assert autoregressive[row(MASK, 1)].tolist() == [0, 0]


def test_sampled_confidence_by_hand():
    """Independent tokens with (.9, .1) and (.6, .4).

    The first draw reveals position 0 iff its token is 0 (.9 > .6 > .4 > .1): probability .9. Otherwise
    position 1 is revealed as drawn, (.06, .04), and position 0 is drawn again.
    """
    law = (tensor(0.9, 0.1)[:, None] * tensor(0.6, 0.4)).flatten()
    table = World(2, 2, law.log(), torch.zeros(4).double()).posterior()
    expected = tensor(0.54 + 0.054, 0.36 + 0.036, 0.006, 0.004)
    torch.testing.assert_close(decoder_law(table, Decoder(order=SampledConfidence())), expected)


def test_two_tokens_a_step_are_drawn_independently(hand):
    law = decoder_law(hand.posterior(), Decoder(tokens_per_step=2))
    torch.testing.assert_close(law, (tensor(0.7, 0.3)[:, None] * tensor(0.6, 0.4)).flatten())


def test_temperature_zero_is_one_sequence(hand):
    law = decoder_law(hand.posterior(), Decoder(order=MaxProbability(), temperature=0.0))
    assert law.tolist() == [1, 0, 0, 0]


def test_certainty_moves_the_law_by_no_more_than_it_admits():
    """Revealing at certainty 1 − ε moves the law by at most ε for each token."""
    world = random_world(3, 4, seed=0, spread=4.0)
    for certainty in (0.7, 0.9, 0.99):
        law = decoder_law(world.posterior(), Decoder(order=MaxProbability(), certainty=certainty))
        assert float(law.sum()) == pytest.approx(1)
        assert float((law - world.prob).abs().sum() / 2) <= 4 * (1 - certainty)


@pytest.mark.parametrize("block", [None, 2, 1, 3])
def test_uniform_decoder_averages_the_orders(block):
    world = random_world(3, 4, seed=1, prompt=0)
    table = random_world(3, 4, seed=2).posterior()
    law = decoder_law(table, Decoder(order=Uniform(), block=block))
    torch.testing.assert_close(law, ordered_log_laws(world, table, block).exp().mean(0))


@pytest.mark.parametrize(("block", "prompt"), [(None, 0), (2, 0), (1, 0), (3, 0), (None, 1), (2, 1)])
def test_path_kl_by_chain_rule_and_by_lemma(block, prompt):
    world = random_world(3, 4, seed=3, prompt=prompt)
    table = random_world(3, 4, seed=4).posterior()
    assert path_kl(world, table, block) == pytest.approx(local_kl(world, table, block), rel=1e-12)


def test_path_to_a_tilt_costs_the_terminal_kl(hand):
    """Two exact posteriors: the masking is the same, so only x_1 distinguishes the paths."""
    tilted = hand.tilted(1.3)
    assert path_kl(tilted, hand.posterior(), None) == pytest.approx(kl(tilted.log_prob, hand.log_prob))


@pytest.mark.parametrize("block", [None, 2, 1])
def test_population_loss_by_brute_force(block):
    """x_1, then a cell n, then a subset S: the expectation of form (C), term by term."""
    world, h, c, length = random_world(2, 4, seed=5), 0.8, 0.6, 4
    student, teacher = random_world(2, 4, seed=6).posterior(), world.posterior()
    size, total = block or length, 0.0
    for x, p, r in zip(world.sequences, world.prob.tolist(), world.reward.tolist(), strict=True):
        for start, k in itertools.product(range(0, length, size), range(1, size + 1)):
            for chosen in itertools.combinations(range(start, start + size), k):
                x_t = x.clone()
                x_t[list(chosen)] = 2
                x_t[start + size :] = 2
                s = int(number(x_t, 3))
                for i in chosen:
                    dense = -float((teacher[s, i] * student[s, i].log()).sum())
                    hit = -float(student[s, i, x[i]].log())
                    loss = c * dense + (math.exp(h * r) - c) * hit
                    total += p * loss / k / math.comb(size, k)
    control = torch.full((len(world.states),), c, dtype=torch.float64)
    assert population_loss(world, student, h, control, block) == pytest.approx(total, rel=1e-12)


def test_closed_form_minimiser_beats_its_neighbours():
    world, h = random_world(2, 3, seed=7), 1.2
    control = torch.full((len(world.states),), 0.5, dtype=torch.float64)
    best = minimiser(world, world.posterior(), h, control)
    torch.testing.assert_close(best, world.tilted(h).posterior())
    lowest = population_loss(world, best, h, control, None)
    for seed in range(5):
        other = (best + 0.05 * random_world(2, 3, seed=seed).posterior()) / 1.05
        assert population_loss(world, other, h, control, None) > lowest


def test_prompts_are_kept_by_the_tilt():
    world = random_world(3, 3, seed=8, prompt=1)
    torch.testing.assert_close(world.tilted(2.0).log_prompt(), world.log_prompt())
    joint = world.jointly_tilted(2.0)
    torch.testing.assert_close(joint.log_prob_given_prompt(), world.tilted(2.0).log_prob_given_prompt())
    assert kl(joint.log_prompt(), world.log_prompt()) > 0
    given = world.states[:, 0] < 3
    torch.testing.assert_close(world.tilted(2.0).posterior()[given], joint.posterior()[given])


def test_tables_and_models_number_states_alike():
    world = random_world(3, 3, seed=9)
    model = denoiser(world.posterior())
    assert torch.equal(model.states(world.states), torch.arange(4**3))
    where = world.states == 3
    log_pi = model(world.states, None, where)
    torch.testing.assert_close(log_pi[:, :3].exp(), world.posterior()[where])


@pytest.mark.parametrize(
    ("kind", "values"), [("binary", {0, 1}), ("sign", {-1, 1}), ("sudoku", {0, 0.5, 1, 1.5, 2})]
)
def test_reward_kinds(kind, values):
    world = random_world(3, 4, seed=10, reward=kind, rate=0.2)
    assert set(world.reward.tolist()) == values
    if kind == "binary":
        assert int(world.reward.sum()) == round(0.2 * 81)


def test_ranges_of_continuous_rewards():
    dense, maze = (random_world(4, 4, seed=11, reward=kind).reward for kind in ("dense", "maze"))
    assert 0 <= dense.min() < dense.max() <= 1
    assert maze.min() == pytest.approx(-0.4)
    assert (maze >= 0).sum() == round(0.2 * 256)
    assert set(REWARDS) == {"dense", "binary", "sudoku", "maze", "sign"}


def test_copies_make_the_law_a_buffer():
    world = random_world(3, 3, seed=12, copies=100)
    counts = world.prob * 100
    torch.testing.assert_close(counts, counts.round())
    assert float(counts.sum()) == pytest.approx(100)


def test_sequences_are_numbered_in_their_order():
    assert torch.equal(number(all_sequences(3, 4), 3), torch.arange(81))


def test_worlds_follow_their_seed():
    assert torch.equal(random_world(3, 3, 0).log_prob, random_world(3, 3, 0).log_prob)
    assert not torch.equal(random_world(3, 3, 0).log_prob, random_world(3, 3, 1).log_prob)
