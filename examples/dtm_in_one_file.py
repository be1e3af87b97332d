"""Discrete Tilt Matching in one file: nothing but torch, readable in one sitting.

The world is all melodies of 6 notes out of 4 that move by at most one step at a time; the reward is
how nearly a melody reads the same backwards. It is small enough to write every law down, so the last
lines hold the tuned model against the truth instead of against a feeling:

    ρ_A(x) ∝ ρ_0(x) e^{A r(x)}        the law that tuning should reach                          [eq. 7]

Equation numbers are the paper's, in the order of its source. Run it: python examples/dtm_in_one_file.py
"""

from __future__ import annotations

import copy
import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

L, V = 6, 4  # length and vocabulary
MASK = V  # the mask is one more symbol, which is never predicted
SEQUENCES = torch.tensor(list(itertools.product(range(V), repeat=L)))  # all 4096 clean sequences x_1
STATES = torch.tensor(list(itertools.product(range(V + 1), repeat=L)))  # all 15625 partly masked x_t
PLACE = (V + 1) ** torch.arange(L - 1, -1, -1)  # a state's row in STATES is (state * PLACE).sum()


def reward(x: Tensor) -> Tensor:
    """r(x_1): the share of the three mirrored pairs of notes that agree."""
    return (x == x.flip(1))[:, : L // 2].double().mean(1)


class Denoiser(nn.Module):
    """log π_θ(v | x_t, i), the law of the clean note at every position i of a partly masked melody."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = [nn.Linear(width, width), nn.GELU()]
        self.net = nn.Sequential(nn.Linear(L * (V + 1), width), nn.GELU(), *inner, nn.Linear(width, L * V))

    def forward(self, x: Tensor) -> Tensor:
        """[B, L] notes to [B, L, V] log-probabilities."""
        return self.net(F.one_hot(x, V + 1).float().flatten(1)).view(-1, L, V).log_softmax(-1)


def mask(x1: Tensor, noise: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """x_t, the masked positions S, and the weight L/k of the row: the hazard integral in mask counts.

    ∫ λ(t) E[Σ_S ℓ] dt = L · E_{k ~ U{1..L}} E_{|S| = k}[(1/k) Σ_S ℓ]  for every schedule α, so no time
    t is needed; drawing t and weighting by λ(t) = 1/(1 − t) would have infinite variance.
    """
    k = torch.randint(1, L + 1, (len(x1), 1), generator=noise)
    masked = torch.rand(x1.shape, generator=noise).argsort(1).argsort(1) < k
    return torch.where(masked, MASK, x1), masked, L / k.squeeze(1)


def at(log_pi: Tensor, x1: Tensor) -> Tensor:
    """log π(x_1^i | x_t, i) for every position."""
    return log_pi.gather(-1, x1[..., None]).squeeze(-1)


def pretrain(model: Denoiser, steps: int, noise: torch.Generator) -> None:
    """The base π_0: minimise −∫ λ(t) E[Σ_S log π_θ(x_1^i | x_t)] dt over random walks      [eqs. 5, 6]."""
    optimiser = torch.optim.Adam(model.parameters())
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 2e-3 * (1 - step / steps)
        start = torch.randint(V, (512, 1), generator=noise)
        moves = torch.randint(-1, 2, (512, L - 1), generator=noise)
        notes = [start]
        for i in range(L - 1):
            notes.append((notes[-1] + moves[:, i : i + 1]).clamp(0, V - 1))
        x1 = torch.cat(notes, 1)
        xt, masked, weight = mask(x1, noise)
        loss = -(weight[:, None] * masked * at(model(xt), x1)).sum(1).mean() / L
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@torch.no_grad()
def rollout(model: Denoiser, count: int, noise: torch.Generator) -> Tensor:
    """x_1 ~ ρ_a: reveal one note a step, in a random order                              [Algorithm 2].

    One at a time and in an order that does not look at the note just drawn, this samples the model's
    law exactly. Two at a time, or the most confident draw first, would not.
    """
    x = torch.full((count, L), MASK)
    order = torch.rand((count, L), generator=noise).argsort(1)
    rows = torch.arange(count)
    for i in order.T:
        x[rows, i] = torch.multinomial(model(x)[rows, i].exp(), 1, generator=noise).squeeze(1)
    return x


def c_dtm_loss(log_pi: Tensor, log_pi_a: Tensor, x1: Tensor, log_w: Tensor, c: float) -> Tensor:
    """w CE(T_c ‖ π_θ) at every position, T_c = (c π_a + (w − c) 1{x_1}) / w           [eqs. 16, 17].

    The w cancels and leaves two terms: distil π_a with weight c, and raise (or lower) the likelihood
    of the note that was drawn by its advantage w − c. c changes the variance, never the minimiser.
    """
    distillation = -(log_pi_a.exp() * log_pi).sum(-1)
    advantage = log_w.exp()[:, None] - c
    return c * distillation - advantage * at(log_pi, x1)


def tune(model: Denoiser, final: float, h: float, steps: int, noise: torch.Generator) -> None:
    """Anneal a = 0 → A in phases of h: each turns the student into the next π_a         [Algorithm 1]."""
    a = 0.0
    while a < final - 1e-9:
        h = min(h, final - a)  # the last phase lands on A
        teacher = copy.deepcopy(model).requires_grad_(False)  # π_a, frozen
        optimiser = torch.optim.Adam(model.parameters(), betas=(0.9, 0.99))
        for step in range(steps):
            optimiser.param_groups[0]["lr"] = 1e-3 * (1 - step / steps)
            if step % 25 == 0:
                buffer = rollout(teacher, 2048, noise)
                tilt = h * reward(buffer)
                # w̄ = e^{hr} / Z in log space: it stays finite for any h r, and its mean is 1  [eq. 12]
                log_w = (tilt - (tilt.logsumexp(0) - math.log(len(tilt)))).float()
            rows = torch.randint(len(buffer), (512,), generator=noise)
            x1 = buffer[rows]
            xt, masked, weight = mask(x1, noise)  # many x_t from one rollout: no new samples needed
            # c = 1 in units of the mean weight Z. The paper's c = 1 would be 1/Z here; 0 is no control.
            loss = c_dtm_loss(model(xt), teacher(xt), x1, log_w[rows], c=1.0)
            optimiser.zero_grad()
            ((weight[:, None] * masked * loss).sum(1).mean() / L).backward()
            optimiser.step()
        a += h


@torch.no_grad()
def law(model: Denoiser) -> Tensor:
    """The probability of each of SEQUENCES under `rollout`, exactly: push mass from state to state."""
    mass = torch.zeros(len(STATES), dtype=torch.float64)
    mass[-1] = 1.0  # all masked
    pi = model(STATES).double().exp()
    masked = STATES == MASK
    for k in range(L, 0, -1):
        state, i = (masked & (masked.sum(1, keepdim=True) == k)).nonzero().unbind(1)
        for v in range(V):  # position i is picked with probability 1/k, then note v with π(v | x_t, i)
            mass.index_add_(0, state + (v - MASK) * PLACE[i], mass[state] / k * pi[state, i, v])
    return mass[(SEQUENCES * PLACE).sum(1)]


def run(
    final: float = 6.0, h: float = 1.5, pretraining: int = 2000, steps: int = 500, width: int = 128
) -> dict[str, dict[str, float]]:
    """Pretrain, tune, and measure base, tuned and exact law by enumeration."""
    noise = torch.Generator().manual_seed(0)
    torch.manual_seed(0)  # the initial weights
    model = Denoiser(width)
    pretrain(model, pretraining, noise)
    base = law(model)
    tune(model, final, h, steps, noise)
    laws = {"base": base, "tuned": law(model), "exact": (base.log() + final * reward(SEQUENCES)).softmax(0)}
    exact = laws["exact"]
    return {
        name: {
            "mean reward": float((rho * reward(SEQUENCES)).sum()),
            "entropy": float(-torch.special.xlogy(rho, rho).sum()),
            "TV to exact": float((rho - exact).abs().sum() / 2),
            "KL(exact, .)": float((exact * (exact / rho).log()).sum()),
        }
        for name, rho in laws.items()
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    table = run()
    print(f"{'':6}" + "".join(f"{column:>14}" for column in table["base"]))
    for name, row in table.items():
        print(f"{name:6}" + "".join(f"{value:14.3f}" for value in row.values()))
