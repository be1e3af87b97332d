"""Worlds that can be enumerated, steered by the production code."""

from __future__ import annotations

import torch

from dtm.engine import Decoder
from dtm.steering import Steered, Steering, steer
from dtm.verify.exact import World, number, random_world

TILT = 4.0
WORLD = random_world(3, 4, seed=7)
DECODER = Decoder(block=2)


def lookup(world: World):
    """The world's reward as a judge."""
    return lambda rows, prompts: world.reward[number(rows.tokens, world.vocab)].tolist()


def steered(
    method: Steering, repeats: int, seed: int = 0, world: World = WORLD, decoder: Decoder = DECODER, **given
) -> Steered:
    """Independent repetitions are prompts without tokens."""
    model = given.pop("model", None) or world.denoiser()
    empty = torch.zeros(repeats, 0, dtype=torch.long)
    return steer(model, empty, world.length, method, lookup(world), decoder, seed=seed, batch=2**20, **given)


def frequencies(found: Steered, rows: torch.Tensor, world: World = WORLD) -> torch.Tensor:
    """How often each sequence is among some rows."""
    sequence = number(found.rows.tokens[rows], world.vocab)
    return torch.bincount(sequence, minlength=len(world.prob)).double()


def weighted_law(found: Steered, world: World = WORLD) -> torch.Tensor:
    """The mean over prompts of the weighted particles."""
    law = torch.zeros(len(world.prob), dtype=torch.float64)
    law.index_add_(0, number(found.rows.tokens, world.vocab), found.weight.flatten())
    return law / len(found.weight)
