"""What the commands share: the look of their help, and flags that change a configuration."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from dtm.baselines import Preset
from dtm.errors import require

if TYPE_CHECKING:
    from dtm.config import RunConfig

SYMBOLS = """\
symbols
  π_0, π_a       the base model, and the model tilted so far: what a token is at a masked position
  r              the reward of a finished sequence
  a, A, h        the tilt reached, the tilt to reach, and what one phase adds: ρ_a ∝ ρ_0 e^(a r)
  w = e^(h r)    the weight of a rollout in a phase; ESS is the fraction of rollouts that weigh in
  c              the control variate: how much of the target is the teacher's own prediction
  available      nats between ρ_a and ρ_(a+h); absorbed is the fraction the student has gained of them
"""

ALIASES = {
    "--objective": "--objective.name",
    "--reward": "--reward.function",
    "--data": "--task.data",
    "--data-dir": "--task.data-dir",
    "--rollout.cache": "--decoding.cache",
}
"""Other spellings of fields that are often given."""
SHAPE = {"--model.width", "--model.layers", "--model.heads", "--model.ffn"}
"""Flags that say what `dtm pretrain` makes."""


def make_parser(
    name: str, description: str, epilog: str = SYMBOLS, add_help: bool = True
) -> argparse.ArgumentParser:
    """A parser that explains itself and takes no abbreviated flags."""
    return argparse.ArgumentParser(
        prog=f"dtm {name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=add_help,
        allow_abbrev=False,
    )


def refuse(options: argparse.Namespace, names: Iterable[str], rule: str) -> None:
    """Options that mean nothing here are not passed over in silence; one that was not given is None."""
    for name in names:
        require(getattr(options, name) is None, f"--{name.replace('_', '-')} {rule}")


def refuse_shape(flags: Iterable[str]) -> None:
    """A base has a shape already: flags for that of a new one would be passed over."""
    given = sorted({flag.partition("=")[0] for flag in flags} & SHAPE)
    require(
        not given,
        f"{', '.join(given)}: a base has a shape of its own. Make another one with `dtm pretrain`",
    )


def refuse_model(folder: str, rule: str) -> None:
    """Where a run is expected, a model is told from a name that is wrong."""
    found = [name for name in ("config.json", "adapter_config.json") if (Path(folder) / name).is_file()]
    require(not found, f"{folder} is a model and not a run: {rule}")


def with_flags(config: RunConfig, flags: Sequence[str], prog: str) -> RunConfig:
    """The configuration with fields changed as the flags say."""
    import tyro

    from dtm.config import RunConfig

    for short, long in ALIASES.items():
        flags = [re.sub(rf"^{short}(?==|$)", long, flag) for flag in flags]
    # Whose preset is meant is known only when the objective is.
    parser = argparse.ArgumentParser(prog, usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False)
    parser.add_argument("--objective.preset", dest="preset", choices=get_args(Preset))
    options, flags = parser.parse_known_args(flags)
    # A section that can be of several kinds is of the recipe's: its fields are flags like any other.
    markers = (tyro.conf.AvoidSubcommands,)
    changed = tyro.cli(RunConfig, args=flags, default=config, prog=prog, config=markers)
    if options.preset is None:
        return changed
    return replace(changed, objective=changed.objective.with_preset(options.preset))


def first_line(text: str | None) -> str:
    """What a docstring says in short."""
    return (text or "").strip().splitlines()[0]
