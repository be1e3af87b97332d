"""Ancestors in proportion to weights, effective numbers, and noise that depends on a prompt alone."""

from __future__ import annotations

import pytest
import torch

from dtm.steering.weights import effective_share, log_mean, multinomial, systematic, uniforms

WEIGHTS = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.05, 0.05, 0.05, 0.85]], dtype=torch.float64)


def copies(chosen: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(chosen, 4).sum(1).double()


def test_systematic_ancestors_are_proportional_on_average_and_off_by_less_than_one():
    found = []
    for level in (torch.arange(1000) + 0.5) / 1000:
        number = copies(systematic(WEIGHTS.log(), level.expand(2, 1)))
        assert ((number - 4 * WEIGHTS).abs() < 1).all()
        found.append(number)
    torch.testing.assert_close(torch.stack(found).mean(0), 4 * WEIGHTS, atol=2e-3, rtol=0)


def test_multinomial_ancestors_are_proportional():
    level = ((torch.arange(1000) + 0.5) / 1000).expand(2, 1000)
    torch.testing.assert_close(copies(multinomial(WEIGHTS.log(), level)) / 1000, WEIGHTS, atol=1e-3, rtol=0)


@pytest.mark.parametrize("resample", [systematic, multinomial])
def test_a_particle_without_weight_has_no_copies_at_any_level(resample):
    for level in (0.0, 1.0):
        assert 3 not in resample(WEIGHTS.log(), torch.full((2, 1), level))[0].tolist()


def test_weights_of_any_size():
    log_weight = WEIGHTS.log() + torch.tensor([[900.0], [-900.0]])
    torch.testing.assert_close(
        log_mean(log_weight), torch.tensor([900.0, -900.0]).double() - torch.tensor(4.0).double().log()
    )
    expected = 1 / WEIGHTS.square().sum(1) / 4
    torch.testing.assert_close(effective_share(log_weight), expected)


def test_noise_of_a_prompt_does_not_depend_on_the_others():
    cpu = torch.device("cpu")
    many, few = (uniforms(3, "resampling", prompts, 1, 5, cpu) for prompts in (40, 3))
    assert torch.equal(many[:3], few)
    assert len(set(many.flatten().tolist())) == 200
    assert not torch.equal(few, uniforms(3, "resampling", 3, 2, 5, cpu))
    assert not torch.equal(few, uniforms(3, "answer", 3, 1, 5, cpu))
