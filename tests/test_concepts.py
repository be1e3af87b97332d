"""The figures of the concept pages show exact laws, and the committed files are small."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture
def concepts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("concepts")
    sys.modules.pop("concepts")


def test_the_bars_are_the_base_law_and_its_tilt_by_hand(concepts):
    base = concepts.world()
    axes = concepts.tilt_figure(base, tilt=2.0).axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    order = concepts.by_reward(base)
    weights = [float(base.prob[k]) * math.exp(2.0 * float(base.reward[k])) for k in order]
    tilted = [weight / sum(weights) for weight in weights]
    assert heights == pytest.approx([*(float(base.prob[k]) for k in order), *tilted])


def test_masked_cells_show_the_posterior_of_the_sequences_that_agree(concepts):
    base = concepts.world()
    states = concepts.states(base, torch.tensor([0, 1, 1]))
    assert [int((x_t == 2).sum()) for x_t, _ in states] == [0, 1, 2, 3]
    (_, chance) = states[1]  # A ▒ B: two sequences agree
    law = {concepts.name(x): float(p) for x, p in zip(base.sequences, base.prob, strict=True)}
    assert float(chance[1]) == pytest.approx(law["ABB"] / (law["ABB"] + law["AAB"]))


def test_every_phase_raises_the_reward_and_the_divergence(concepts):
    tilts, rewards, apart = zip(*concepts.rungs(concepts.world()), strict=True)
    assert tilts == tuple(concepts.STEP * k for k in range(concepts.PHASES + 1))
    assert list(rewards) == sorted(set(rewards))
    assert list(apart) == sorted(set(apart))


def test_the_command_writes_small_pictures(concepts, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["concepts.py", "--out", str(tmp_path)])
    concepts.main()
    for key in concepts.FIGURES:
        name = f"concept-{key}.png"
        assert (tmp_path / name).stat().st_size < 100_000
        assert (ROOT / "docs" / "assets" / name).stat().st_size < 100_000
