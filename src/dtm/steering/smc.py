r"""Sequential Monte Carlo over the blocks of a completion, and its conditional form for Gibbs sweeps.

Target: paths of the decoder with weight e^{a r(x_T)}. N particles of a prompt are decoded block by block. At
a block's end the weight of each is multiplied by V(x_s) / V(x_{s−1}), a ratio of estimated values, with
V = e^{a r} for a finished row and 1 for the empty one. These weights telescope to e^{a r(x_T)}, so that for
any positive V

    Σ_i w_i f(x_i) / Σ_i w_i → E_{ρ_a}[f],    ρ_a ∝ ρ_dec e^{a r},    E[Ẑ] = E_{ρ_dec}[e^{a r}],

ρ_dec the law of the decoder. If the effective number of particles falls below a share of N, they are
resampled in proportion to their weights; otherwise the weights are kept.

If another model is the proposal, the weights also have the ratio of the two models' paths (`proposal`).

Given a path x ~ ρ_a, conditional SMC holds it in one slot, draws the others, and picks a path in proportion
to the weights: the picked path has the law ρ_a again, for any N ≥ 2. With independent (multinomial) ancestors
the order of the slots does not matter, so the path stays in slot 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from dtm.engine.blocks import Blocks, Span
from dtm.random import derived_seed
from dtm.records import Completions
from dtm.steering.particles import Particles, Path
from dtm.steering.proposal import log_ratio
from dtm.steering.sampler import Sampler
from dtm.steering.values import Unfinished, Values
from dtm.steering.weights import effective_share, log_mean, multinomial, systematic, uniforms


@dataclass(frozen=True, slots=True)
class Sweep:
    """The settings of one pass over all blocks."""

    tilt: float
    """a."""
    values: Values
    threshold: float = 0.5
    """Resample a prompt's particles if ESS / N is below this."""
    resampling: str = "systematic"
    """Scheme of resampling: systematic or multinomial."""

    def run(
        self, sampler: Sampler, canvas: Completions, count: int, seed: int, held: Path | None = None
    ) -> Particles:
        """Decode and weigh ``count`` particles per prompt, in the rows of a masked canvas.

        ``held`` has a path for each prompt, which conditional SMC keeps in slot 0.
        """
        starts = canvas.is_completion.int().argmax(1).tolist()
        in_columns = sampler.model.attention_block is not None
        blocks = Blocks.of(starts, canvas.tokens.shape[1], sampler.decoder, in_columns)
        particles, block = Particles.start(canvas, count), 0
        while rows := _where(particles.ended < 0):
            drawn = rows if held is None else [row for row in rows if row % count]
            sampler.decode(particles.rows, drawn, block, block + 1, derived_seed(seed, "particles"))
            if held is not None:
                _hold(particles, held, blocks, block, sampler.model.mask_id)
            particles = self._weighed(sampler, particles, rows, block, seed)
            if sampler.target is not None:
                particles = _corrected(sampler, particles, rows, blocks, block)
            particles = self._resampled(particles, block, seed, held is not None)
            block += 1
        particles.require_rewards()
        return replace(particles, log_z=particles.log_z + log_mean(particles.log_weight))

    def _weighed(
        self, sampler: Sampler, particles: Particles, rows: Sequence[int], block: int, seed: int
    ) -> Particles:
        """Multiply the weights of rows that have just finished a block by V(x_s) / V(x_{s−1})."""
        masked = particles.rows.is_completion & (particles.rows.tokens == sampler.model.mask_id)
        is_over: list[bool] = (~masked.any(1)).tolist()
        over = [row for row in rows if is_over[row]]
        going = [row for row in rows if not is_over[row]]
        log_value, reward, ended = (
            each.clone() for each in (particles.log_value, particles.reward, particles.ended)
        )
        reward[over] = sampler.rewards(particles.rows.select(over), particles.prompts(over))
        log_value[over] = (self.tilt * reward[over]).nan_to_num(nan=-torch.inf)
        ended[over] = block
        if going:
            unfinished = Unfinished(particles.rows, going, particles.prompts(going), block)
            found = self.values(sampler, unfinished, self.tilt, derived_seed(seed, "values"))
            log_value[going] = found.to(log_value)
        # Rows that were finished before keep their value: −∞ − (−∞) would be nan.
        gained = torch.where(particles.ended < 0, log_value - particles.log_value, 0.0)
        log_weight = particles.log_weight + gained.view_as(particles.log_weight)
        return replace(particles, log_value=log_value, reward=reward, ended=ended, log_weight=log_weight)

    def _resampled(self, particles: Particles, block: int, seed: int, is_conditional: bool) -> Particles:
        """Resample prompts with a low ESS and unfinished rows; keep the weights of the others."""
        log_weight = particles.log_weight
        prompts, count = log_weight.shape
        going = (particles.ended < 0).view(prompts, count).any(1)
        due = going & (effective_share(log_weight) < self.threshold)
        if not bool(due.any()):
            return particles
        device, own = log_weight.device, torch.arange(count, device=log_weight.device)
        if is_conditional or self.resampling == "multinomial":
            u = uniforms(seed, "resampling", prompts, block, count, device)
            chosen = multinomial(log_weight, u)
        else:
            u = uniforms(seed, "resampling", prompts, block, 1, device)
            chosen = systematic(log_weight, u)
        if is_conditional:
            chosen[:, 0] = 0
        first = torch.arange(0, prompts * count, count, device=device)[:, None]
        kept = particles.take((first + torch.where(due[:, None], chosen, own)).flatten())
        return replace(
            kept,
            log_z=torch.where(due, kept.log_z + log_mean(log_weight), kept.log_z),
            log_weight=torch.where(due[:, None], 0.0, log_weight),
        )


def _hold(particles: Particles, held: Path, blocks: Blocks, block: int, mask_id: int) -> None:
    """Write the held paths, as they were at the end of a block, into slot 0 of their prompts.

    Their values are estimated anew: a path and its estimates are of the same law either way.
    """
    rows, slots = particles.rows, range(0, len(particles.rows), particles.count)
    device = rows.tokens.device
    whole = Span(0, rows.tokens.shape[1], 0)  # of a path that has no such block
    spans = [blocks.spans.get((blocks.starts[slot], block), whole) for slot in slots]
    end = torch.tensor([span.end for span in spans], device=device)
    later = torch.arange(rows.tokens.shape[1], device=device) >= end[:, None]
    later &= (held.ended > block)[:, None]
    for name, unrevealed in (("tokens", mask_id), ("revealed_at", -1), ("log_prob", 0)):
        getattr(rows, name)[slots] = getattr(held.rows, name).masked_fill(later, unrevealed)


def _corrected(
    sampler: Sampler, particles: Particles, rows: Sequence[int], blocks: Blocks, block: int
) -> Particles:
    """Multiply the weights by the ratio of the target's path to the proposal's in the block."""
    assert sampler.target is not None
    gained = torch.zeros_like(particles.log_value)
    places = {
        row: (max(blocks.begin(row, block), blocks.starts[row]), blocks.end(row, block)) for row in rows
    }
    for begin, end in sorted(set(places.values())):
        own = [row for row in rows if places[row] == (begin, end)]
        ratio, passes = log_ratio(sampler.target, particles.rows, own, slice(begin, end), sampler.batch)
        gained[own] = ratio
        sampler.effort.forwards += passes
    return replace(particles, log_weight=particles.log_weight + gained.view_as(particles.log_weight))


def _where(mask: Bool[Tensor, " M"]) -> list[int]:
    found: list[int] = mask.nonzero().flatten().tolist()
    return found
