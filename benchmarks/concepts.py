"""Draw the figures of docs/how-it-works.md and docs/method.md: python benchmarks/concepts.py.

Every number comes from the exact oracle of `dtm verify`: a law on the eight sequences of three tokens A and
B, whose reward is the share of B.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dtm.verify.exact import World, kl, number, random_world

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
LETTERS, MASK = "AB", "▒"
STEP, PHASES = 1.0, 4
"""h, and the phases of the ladder."""
BASE, TUNED, SOFT, HIDDEN = "#8a929a", "#0a6fb8", "#52606d", "#dcdfe2"
HIDING_ORDER = (1, 0, 2)
"""Positions in the order in which the figure masks them."""


def world() -> World:
    """A base law that prefers A; the reward is the share of B."""
    drawn = random_world(vocab=2, length=3, seed=0, spread=0.5)
    reward = drawn.sequences.double().mean(1)
    return World(2, 3, (drawn.log_prob - 1.5 * reward).log_softmax(0), reward)


def name(sequence: torch.Tensor) -> str:
    """The letters of a sequence."""
    return "".join(LETTERS[token] for token in sequence.tolist())


def by_reward(base: World) -> list[int]:
    """Sequences from the lowest reward to the highest."""
    return sorted(range(len(base.reward)), key=lambda place: (float(base.reward[place]), place))


def tilt_figure(base: World, tilt: float = 2.0) -> Figure:
    """The base law beside a tilted law, sequence by sequence."""
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    axes: Axes = figure.subplots()
    order = by_reward(base)
    laws = ((base, BASE, "base law ρ_0"), (base.tilted(tilt), TUNED, f"tilted law ρ_a, a = {tilt:g}"))
    for side, (law, colour, label) in zip((-0.2, 0.2), laws, strict=True):
        heights = [float(law.prob[place]) for place in order]
        axes.bar([k + side for k in range(len(order))], heights, 0.38, color=colour, label=label)
    labels = [f"{name(base.sequences[place])}\nr = {float(base.reward[place]):.2f}" for place in order]
    axes.set_xticks(range(len(order)), labels)
    axes.set_ylabel("probability")
    axes.legend(frameon=False, loc="upper center")
    return figure


def states(base: World, clean: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The clean sequence and its masked states, each with the exact π(B | x_t, i) of all positions."""
    found, x_t, posterior = [], clean.clone(), base.posterior()
    for place in (None, *HIDING_ORDER):
        if place is not None:
            x_t = x_t.clone()
            x_t[place] = base.vocab
        found.append((x_t, posterior[number(x_t, base.vocab + 1)][:, 1]))
    return found


def masking_figure(base: World) -> Figure:
    """A clean sequence x_1 and three states x_t; masked cells show what the exact model predicts there."""
    figure = Figure(figsize=(7.2, 1.35), layout="constrained")
    axes: Axes = figure.subplots()
    clean = torch.tensor([0, 1, 1])
    for place, (x_t, chance) in enumerate(states(base, clean)):
        left, masked = 4.6 * place, int((x_t == base.vocab).sum())
        for i, token in enumerate(x_t.tolist()):
            is_masked = token == base.vocab
            colour = HIDDEN if is_masked else "white"
            axes.add_patch(Rectangle((left + i, 0), 0.92, 0.92, facecolor=colour, edgecolor=SOFT))
            letter = MASK if is_masked else LETTERS[token]
            axes.text(left + i + 0.46, 0.46, letter, ha="center", va="center", fontsize=15)
            if is_masked:
                text = f"B {float(chance[i]):.0%}"
                axes.text(left + i + 0.46, -0.28, text, ha="center", va="center", fontsize=8, color=TUNED)
        title = "x_1, clean" if not masked else f"x_t, {masked} of 3 masked"
        axes.text(left + 1.46, 1.25, title, ha="center", fontsize=10)
        if place:
            axes.annotate("", (left - 0.2, 0.46), (left - 1.45, 0.46), arrowprops={"arrowstyle": "->"})
    axes.set(xlim=(-0.2, 17), ylim=(-0.6, 1.7), aspect="equal")
    axes.axis("off")
    return figure


def rungs(base: World) -> list[tuple[float, float, float]]:
    """Tilt, mean reward and KL to the base (nats) at the end of every phase, the base first."""
    found = []
    for phase in range(PHASES + 1):
        law = base.tilted(STEP * phase)
        found.append((STEP * phase, float(law.prob @ base.reward), kl(law.log_prob, base.log_prob)))
    return found


def ladder_figure(base: World) -> Figure:
    """The ladder of phases: each adds h to the tilt, and the mean reward rises."""
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    axes: Axes = figure.subplots()
    found = rungs(base)
    for phase, ((a, reward, _), (b, later, _)) in enumerate(itertools.pairwise(found), start=1):
        axes.plot([a, b, b], [reward, reward, later], color=SOFT, linewidth=1.2)
        axes.text(
            (a + b) / 2, reward - 0.012, f"phase {phase}: + h", ha="center", va="top", fontsize=9, color=SOFT
        )
    for a, reward, apart in found:
        axes.plot([a], [reward], "o", color=BASE if a == 0 else TUNED)
        if a > 0:
            axes.text(a - 0.06, reward + 0.012, f"KL {apart:.2f}", ha="right", fontsize=8, color=TUNED)
    axes.set(xlabel="tilt a", ylabel="mean reward E_a[r]", xlim=(-0.5, PHASES * STEP + 0.2))
    axes.set_xticks(
        [a for a, _, _ in found], ["a = 0\nbase", *(f"{k}h" for k in range(1, PHASES)), f"A = {PHASES}h"]
    )
    axes.margins(y=0.25)
    return figure


FIGURES = {"tilt": tilt_figure, "masking": masking_figure, "ladder": ladder_figure}


def main() -> None:
    """Write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ASSETS, metavar="DIR", help="default: docs/assets")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    base = world()
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        for key, draw in FIGURES.items():
            draw(base).savefig(options.out / f"concept-{key}.png", dpi=150)


if __name__ == "__main__":
    main()
