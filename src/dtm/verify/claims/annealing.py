"""Claims on annealed training of a tabular model with the production objective and sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch

from dtm import tilts
from dtm.engine import Decoder, generate
from dtm.masking import MaskCount
from dtm.methods import CDTM
from dtm.methods.c_dtm import CDTMConfig
from dtm.models.denoiser import Denoiser
from dtm.models.policy import Policy
from dtm.random import derived_seed, stream
from dtm.records import Completions, MaskedStates, Phase, Sequences, Weights
from dtm.verify.claims.check import claim
from dtm.verify.exact import World, all_sequences, decoder_law, number, random_world


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Settings of a small annealed run, as in docs/method.md, section 10."""

    phases: int = 8
    steps: int = 200
    """Steps per phase. The table of docs/method.md has 300, with the same ordering (ratios 0.36 and 0.14)."""
    h: float = 0.75
    buffer: int = 512
    batch: int = 256
    """Rows per batch: 64 for each of four prompts, which have 128 rollouts each."""
    refresh: int = 16
    """Steps between refreshes of a quarter of the buffer."""
    lr: float = 0.05
    cooling: float = 0.3
    """Last share of a phase, over which the learning rate falls to 0."""
    optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.Adam


def _rollouts(world: World, model: Denoiser, count: int, *seed: int) -> Completions:
    """Draw exact rollouts, equally many per prompt: uniform order, one token per step."""
    given = all_sequences(world.vocab, world.prompt)
    given, noise = given.repeat(count // len(given), 1), derived_seed(*seed, "rollouts")
    return generate(model, given, world.length - world.prompt, seed=noise, batch=count)


def _batches(
    world: World, teacher: Denoiser, setting: Training, index: int, seed: int
) -> Iterator[tuple[MaskedStates, Weights]]:
    """Yield the masked states and weights of each step of a phase, from a buffer refreshed by quarters."""
    masks = stream(seed, "masks", index)
    done = _rollouts(world, teacher, setting.buffer, seed, index)
    tokens = done.tokens
    for step in range(setting.steps):
        if step and step % setting.refresh == 0:
            fresh = _rollouts(world, teacher, setting.buffer // 4, seed, index, step).tokens
            tokens = torch.cat([tokens[len(fresh) :], fresh])
        if step % setting.refresh == 0:
            reward = world.reward[number(tokens, world.vocab)]
            group = number(tokens[:, : world.prompt], world.vocab)
            weights = tilts.weigh(reward, group, setting.h)
        rows = torch.randperm(setting.buffer, generator=masks)[: setting.batch]
        clean = Sequences(tokens[rows], done.attention[rows], done.is_completion[rows])
        yield MaskCount().states(clean, world.vocab, masks), weights.select(rows)


def train(world: World, control: str, seed: int, setting: Training) -> World:
    """Anneal a student from a = 0 to phases · h; return the world that it samples."""
    model = world.denoiser()
    policy = Policy(model)
    objective = CDTM(CDTMConfig(control_variate=control, guard=False))
    for index in range(setting.phases):
        phase = Phase(index, index * setting.h, setting.h, world.reward_range)
        optimiser = setting.optimiser(model.parameters(), lr=setting.lr, fused=True)
        for step, batch in enumerate(_batches(world, policy.teacher, setting, index, seed)):
            left = (setting.steps - step) / (setting.cooling * setting.steps)
            optimiser.param_groups[0]["lr"] = setting.lr * min(1.0, left)
            loss = objective.loss(policy, *batch, phase)
            (model.table.grad,) = torch.autograd.grad(loss.value, [model.table])
            optimiser.step()
        policy.promote()
    law = decoder_law(model.table.detach().softmax(-1), Decoder(), world.log_prompt().exp())
    return replace(world, log_prob=law.log())


@cache
def _final_kl(control: str) -> float:
    """Return the mean KL(ρ_A ‖ ρ_θ) of four worlds with 0/1 rewards, in which a fifth of sequences succeed.

    They are trained together as the prompts of one run, since a table shares no parameters between prompts.
    """
    world, setting = random_world(4, 5, 0, "binary", prompt=1, rate=0.2), Training()
    target = world.tilted(setting.phases * setting.h)
    trained = train(world, control, 0, setting)
    log_ratio = target.log_prob_given_prompt() - trained.log_prob_given_prompt()
    return float(world.by_prompt(target.log_prob_given_prompt().exp() * log_ratio).sum(1).mean())


@claim("14a", "after 8 phases, KL(ρ_A ‖ ρ_θ) with c = mean is below 0.6 of that with c = 1 (ratio)", 0.6)
def mean_control_beats_unit_control() -> float:
    """Return KL(c = mean) / KL(c = 1) after training from finite buffers; mean of four worlds."""
    return _final_kl("mean") / _final_kl("one")


@claim("14b", "after 8 phases, KL(ρ_A ‖ ρ_θ) with c = 1 is below 0.4 of that with c = 0 (ratio)", 0.4)
def unit_control_beats_none() -> float:
    """Return KL(c = 1) / KL(c = 0): the paper's control variate against plain weighted likelihood."""
    return _final_kl("one") / _final_kl("zero")


def _without_reward(control: str, seed: int) -> tuple[World, World]:
    """Train in a world without reward for eight phases of plain gradient descent; return the result.

    Not with Adam, which divides a gradient by its own size and so turns rounding errors of 1e-17 into steps.
    """
    world = random_world(3, 3, seed)
    world = replace(world, reward=torch.zeros_like(world.reward))
    setting = Training(steps=40, buffer=32, batch=32, refresh=40, lr=20.0, optimiser=torch.optim.SGD)
    return world, train(world, control, seed, setting)


@claim("15a", "with zero reward and c = 1 or c = mean, eight phases leave the law as it was", 1e-12)
def zero_reward_changes_nothing() -> float:
    """Return the largest change of a sequence's probability in a run without reward."""
    deviations = []
    for control in ("one", "mean"):
        before, after = _without_reward(control, seed=0)
        deviations.append(float((before.prob - after.prob).abs().max()))
    return max(deviations)


@claim("15b", "with zero reward and c = 0 they do not: entropy lost to sampling noise, nats", 0.1, "at least")
def zero_reward_without_control_collapses() -> float:
    """Return the entropy lost with plain weighted likelihood, the mean of three seeds."""
    runs = [_without_reward("zero", seed) for seed in range(3)]
    return sum(before.entropy() - after.entropy() for before, after in runs) / len(runs)
