"""Noise by place: a function of it alone, with its law, and nothing that neighbours have in common."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from scipy import stats

from dtm.engine.noise import _fractions, candidate_keys, exponential, row_keys, uniform


def rows_at(*places: tuple[int, int], seed: int = 0) -> torch.Tensor:
    """Keys of rows, each given by its number and its block."""
    row, block = torch.tensor(places, dtype=torch.long).reshape(-1, 2).unbind(1)
    return row_keys(seed, row, block)


def keys(seed: int = 0, row: int = 0, block: int = 0, step: int = 0, width: int = 3) -> torch.Tensor:
    return candidate_keys(rows_at((row, block), seed=seed), torch.tensor([step]), width)[0]


def test_it_is_a_function_of_its_place_whoever_is_beside_it():
    together = candidate_keys(rows_at((4, 0), (5, 2)), torch.tensor([3, 1]), 6)
    assert torch.equal(together[1, :3], keys(row=5, block=2, step=1))
    drawn = exponential(together[1], 50, torch.float32)
    assert torch.equal(drawn[:3, :20], exponential(keys(row=5, block=2, step=1), 20, torch.float32))
    torch.testing.assert_close(exponential(together[1], 50, torch.float64).float(), drawn)


def test_the_highest_word_is_no_infinity():
    for dtype in (torch.float32, torch.float64):
        highest = _fractions(torch.full((1,), -1, dtype=torch.int32), dtype)
        assert bool((-torch.log1p(-highest)).isfinite())
        assert float(highest) > 1 - 1e-7


def test_no_rows_have_no_noise():
    assert candidate_keys(rows_at(), torch.tensor([], dtype=torch.long), 4).shape == (0, 4, 2)


@pytest.mark.parametrize("seed", range(3))
def test_exponential_numbers_have_their_law(seed):
    drawn = exponential(keys(seed, width=4), 50_000, torch.float64)
    assert bool((drawn > 0).all())
    for row in drawn:
        assert stats.kstest(row.numpy(), "expon").pvalue > 1e-4
    assert float(drawn.var()) == pytest.approx(1.0, abs=0.03)


def test_the_least_of_a_vocabulary_is_as_fine_as_it_has_to_be():
    """It decides the draw: V times the least of V numbers is exponential again."""
    size = 126_464
    least = torch.stack(
        [exponential(keys(row=row, width=40), size, torch.float32).amin(1) for row in range(10)]
    )
    assert len(least.unique()) > 385  # there are seventeen thousand steps below the usual least
    assert stats.kstest((size * least.double()).flatten().numpy(), "expon").pvalue > 1e-3


def test_uniform_numbers_have_their_law_and_are_not_those_of_the_tokens():
    drawn = uniform(keys(width=50_000))
    assert stats.kstest(drawn.double().numpy(), "uniform").pvalue > 1e-4
    tokens = exponential(keys(width=50_000), 1, torch.float64)[:, 0]
    assert abs(float(torch.corrcoef(torch.stack([drawn.double(), tokens]))[0, 1])) < 0.02


def test_rows_and_blocks_share_no_keys():
    numbers = torch.arange(20_000).repeat_interleave(16)
    found = torch.cat([row_keys(seed, numbers, torch.arange(16).repeat(20_000)) for seed in range(2)])
    assert len(found.unique(dim=0)) == len(found)
    for word in found.unbind(1):  # as many collisions as 32 random bits have
        assert 0 <= len(word) - len(word.unique()) < 100
        counts = torch.bincount((word.long() >> 24) + 128, minlength=256).double()
        assert stats.chisquare(counts.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("other", [{"seed": 1}, {"row": 1}, {"block": 1}, {"step": 1}])
def test_neighbours_have_nothing_in_common(other):
    one, two = (exponential(keys(**place, width=8), 20_000, torch.float64) for place in ({}, other))
    rows = torch.cat([one, two])
    off = torch.corrcoef(rows) - torch.eye(16)
    assert float(off.abs().max()) < 5 / 20_000**0.5
    lagged = torch.corrcoef(torch.stack([one[0, :-1], one[0, 1:]]))[0, 1]
    assert abs(float(lagged)) < 5 / 20_000**0.5
    assert len(rows.unique()) > 0.999 * rows.numel()


def test_each_bit_of_a_key_matters_to_half_of_the_numbers():
    base = keys(width=1)
    median = exponential(base, 20_000, torch.float64) < 0.6931
    for word in range(2):
        for bit in range(32):
            changed = base.clone()
            changed[0, word] ^= torch.tensor(1 << bit, dtype=torch.int64).to(torch.int32)
            other = exponential(changed, 20_000, torch.float64) < 0.6931
            assert float((median != other).double().mean()) == pytest.approx(0.5, abs=0.03)


ON_A_GPU = """
import torch
from dtm.engine.noise import _bits, candidate_keys, exponential, row_keys

zero = torch.zeros(1, dtype=torch.long)
keys = candidate_keys(row_keys(0, zero, zero), zero, 64)[0]
token = torch.arange(1000, dtype=torch.int32)
for bits, draw in ((_bits, exponential), (torch.compile(_bits), torch.compile(exponential))):
    assert torch.equal(bits(keys[:, None].cuda(), token.cuda()).cpu(), _bits(keys[:, None], token))
    drawn = draw(keys.cuda(), 1000, torch.float32).cpu()
    torch.testing.assert_close(drawn, exponential(keys, 1000, torch.float32))
print("the same")
"""


@pytest.mark.gpu
def test_a_gpu_has_the_same_bits_compiled_or_not():
    """In a process of its own, for the annotations that are checked in tests cannot be traced."""
    done = subprocess.run([sys.executable, "-c", ON_A_GPU], capture_output=True, text=True, timeout=120)
    assert done.stdout == "the same\n", done.stderr
