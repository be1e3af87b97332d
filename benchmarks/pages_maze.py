"""The tables of the maze study (docs/maze.md), from results/maze."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

Found = Mapping[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
FROM_PAPER, IN_BLOCKS = "paper: ", "paper base in blocks of 8: "


def bases(found: Found) -> Table:
    """How the bases were pretrained, and what they do on the test pairs as the runs decode them."""
    by_setting = {row["setting"]: row["base"] for row in found["rows"]}
    labels = {
        "maze": ("good (`maze`), its last steps in the decoder's blocks", "default", "blocks of 8"),
        "maze-paper": (
            "weak (`maze-paper`; the paper's: 0.313 valid)",
            "paper: c one, h 2.5",
            "random order",
        ),
        "maze-ablations": ("of the ablations from a good base, any-order", "c one, h 2.5", "blocks of 8"),
    }
    rows = []
    for name, (label, setting, order) in labels.items():
        made, base = found["bases"][name], by_setting[setting]
        rows.append([label, f"{made['steps']:,}", f"{made['minutes']:.1f}", *_reached(base, order)])
    again = next(base for setting, base in by_setting.items() if setting.startswith(IN_BLOCKS))
    rows.insert(2, ["the same", "", "", *_reached(again, "blocks of 8")])
    return ["base", "steps", "minutes", "decoded in", "valid", "mean reward"], rows


def default(found: Found) -> Table:
    """The default recipe beside its base."""
    row = found["rows"][0]
    base = row["base"]
    rows = [
        ["mean reward", f"{base['reward']:.3f}", _spread(row["reward"], 3), ""],
        ["gap closed", "–", f"**{_spread(row['gap_closed'], 3)}**", "0.80"],
        ["valid", f"{base['valid']:.3f}", f"**{_spread(row['valid'], 3)}**", "0.95"],
        ["coverage ratio", "1", f"**{_spread(row['coverage_ratio'], 3)}**", "0.70"],
        ["minutes, three runs side by side", "", f"**{row['minutes']['mean']:.1f}**", "10"],
        ["effective tilt", "0", "beyond what 32 paths can show", ""],
    ]
    return ["", "base", f"tuned, a = {row['tilt']:g}", "aimed at"], rows


def validation(found: Found) -> Table:
    """Measures on the validation pairs after the last phases."""
    names = {"gap_closed": "gap", "valid": "valid", "coverage_ratio": "coverage ratio"}
    rows = [[label, *(f"{row[name]['mean']:.3f}" for row in found["rows"])] for name, label in names.items()]
    return ["a", *(f"{row['tilt']:g}" for row in found["rows"])], rows


def exact(corpus: Found, found: Found) -> str:
    """Tilts at which the law of the corpus has the reward and the gap of the default recipe, as sentences."""
    tuned, laws = found["rows"][0], corpus["rows"]
    at = [_between(laws, name, tuned[name]["mean"], "tilt") for name in ("reward", "gap_closed")]
    kept = [_between(laws, "tilt", tilt, "coverage_8") / laws[0]["coverage_8"] for tilt in at]
    return (
        f"Its paths are all valid, and their mean reward is {laws[0]['reward']:.3f} instead of the base's "
        f"{tuned['base']['reward']:.3f}.\n"
        f"An exact tilt of this law, from {corpus['paths']} paths per pair, has the tuned model's reward at "
        f"a = {at[0]:.1f} and its gap\nat a = {at[1]:.1f}. There it keeps {kept[0]:.3f} and {kept[1]:.3f} of "
        f"its coverage; the tuned model keeps {tuned['coverage_ratio']['mean']:.3f}.\n"
    )


def _between(laws: Sequence[Found], name: str, value: float, wanted: str) -> float:
    """The wanted measure where another one has a value, linear between the laws."""
    low, high = next(pair for pair in itertools.pairwise(laws) if pair[0][name] <= value <= pair[1][name])
    share = (value - low[name]) / (high[name] - low[name])
    return float(low[wanted] + share * (high[wanted] - low[wanted]))


def controls(found: Found) -> Table:
    """Control variates and steps from the good base."""
    own = [row for row in found["rows"] if row["setting"].startswith("c ")]
    names = ("gap_closed", "valid", "coverage_ratio")
    rows = [
        [
            _setting(row),
            *(_spread(row[name], 3) for name in names),
            f"{row['effective_tilt']['mean']:.1f}",
        ]
        for row in own
    ]
    valid = f"valid (base {own[0]['base']['valid']:.3f})"
    return ["", "gap closed", valid, "coverage ratio", "effective tilt"], rows


def paper(found: Found) -> Table:
    """The paper's settings from its base, and another recipe from the same base."""
    rows = []
    for row in found["rows"]:
        if not row["setting"].startswith((FROM_PAPER, IN_BLOCKS)):
            continue
        label = _setting(row)
        if row["setting"].startswith(IN_BLOCKS):
            label = f"the same base in blocks of 8, {label}, learning rate 2e-4"
        base, reward = row["base"], f"{row['reward']['mean']:.3f}".replace("-", "−")
        measured = [_spread(row["gap_closed"], 3), _spread(row["valid"], 3), reward]
        before = f"{base['valid']:.3f}; {base['reward']:.3f}".replace("-", "−")
        rows.append([label, before, *measured, _spread(row["coverage_ratio"], 2)])
    return ["", "base: valid; reward", "gap closed", "valid", "mean reward", "coverage ratio"], rows


def speed(found: Found) -> Table:
    """Time of a buffer and of an update, and their floors."""
    rows = []
    for row in found["rows"]:
        scale, unit = (1, "s") if row["seconds"] > 0.5 else (1000, "ms")
        times = (f"{row[name] * scale:.3g} {unit}" for name in ("seconds", "flops", "bandwidth"))
        rows.append([row["what"], *times])
    rates = f"{found['rollouts_per_s']:,.0f} rollouts and {found['updates_per_s']:.0f} updates per second"
    phase = f"a phase of 200 updates and two buffers ({rates})"
    rows.append([phase, f"{found['phase_seconds']:.1f} s", "", ""])
    return ["", "measured", "floor: multiplications", "floor: bandwidth"], rows


def _reached(base: Found, order: str) -> list[str]:
    return [order, f"{base['valid']:.3f}", f"{base['reward']:.3f}".replace("-", "−")]


def _setting(row: Found) -> str:
    control, step = row["setting"].split(": ")[-1].split(", ")
    name = {"c zero": "c = 0", "c one": "c = 1"}.get(control, control)
    return f"{name}, {step.replace('h ', 'h = ')}"


def _spread(found: Found, digits: int) -> str:
    """Mean, lowest and highest."""
    mean, low, high = (f"{found[name]:.{digits}f}".replace("-", "−") for name in ("mean", "low", "high"))
    return f"{mean} ({low}–{high})"
