"""Helpers that all commands share: parsers, common options, and flags that change a configuration."""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dtm.distributed import is_first_process
from dtm.errors import ConfigError, require

if TYPE_CHECKING:
    from dtm.config import RunConfig

SYMBOLS = """\
symbols
  π_0, π_a       the base model, and the model tilted so far: distributions of the token at a masked position
  r              the reward of a finished sequence
  a, A, h        the tilt reached, the tilt to reach, and what one phase adds: ρ_a ∝ ρ_0 e^(a r)
  w = e^(h r)    the weight of a rollout in a phase; ESS is the effective fraction of rollouts
  c              the control variate: how much of the target is the teacher's own prediction
  absorbed       the share of h that the student has learned, measured on held-out rollouts
"""

ALIASES = {
    "--method.name": "--method",
    "--task.kind": "--task",
    "--reward": "--reward.function",
    "--data": "--task.data",
    "--data-dir": "--task.data-dir",
    "--rollout.cache": "--decoding.cache",
}
"""Other spellings of flags."""
RESUME_AUTO = "--resume-auto"
"""The form in which `--resume auto` is passed to the parsers."""
SHAPE = {"--model.width", "--model.layers", "--model.heads", "--model.ffn"}
"""Flags for the shape of the new model of `dtm pretrain`."""


def printed_once() -> AbstractContextManager[object]:
    """Context whose messages on stderr only the first of several processes prints."""
    return nullcontext() if is_first_process() else redirect_stderr(io.StringIO())


class Parser(argparse.ArgumentParser):
    """A parser whose errors only the first of several processes prints: all have the same arguments."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit."""
        with printed_once():
            super().error(message)


def make_parser(
    name: str, description: str, epilog: str = SYMBOLS, add_help: bool = True
) -> argparse.ArgumentParser:
    """Make a parser with a description; it accepts no abbreviated flags."""
    return Parser(
        prog=f"dtm {name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=add_help,
        allow_abbrev=False,
    )


def add_resume(add: Callable[..., object], whose: str) -> None:
    """Add the option --resume, alone or with auto; arguments go through `join_resume` first."""
    text = f"continue the run in --out, or the {whose} latest; auto: if there is one, else start a new one"
    add("--resume", dest="resume", action="store_const", const=True, default=False, help=text)
    add(RESUME_AUTO, dest="resume", action="store_const", const="auto", help=argparse.SUPPRESS)


def join_resume(arguments: Sequence[str]) -> list[str]:
    """Write ``--resume auto`` as one argument, so that a bare --resume takes no value.

    >>> join_resume(["--resume", "auto", "--seed", "1"]), join_resume(["--resume", "maze-small"])
    (['--resume-auto', '--seed', '1'], ['--resume', 'maze-small'])
    """
    joined: list[str] = []
    for argument in arguments:
        if argument == "auto" and joined[-1:] == ["--resume"]:
            joined[-1] = RESUME_AUTO
        else:
            joined.append(RESUME_AUTO if argument == "--resume=auto" else argument)
    return joined


def add_track(add: Callable[..., object], note: str = "") -> None:
    """Add the option --track; `require_track` checks it."""
    text = f"tensorboard, wandb or trackio: send the numbers there{note}; NAME:TITLE also names the run"
    add("--track", metavar="NAME", help=text)


def require_track(track: str | None) -> None:
    """Raise an error if the tracker is unknown, not installed or not logged in."""
    if track is not None:
        from dtm.report.trackers import require_tracker

        require_tracker(track)


def titled_track(track: str | None, out: Path) -> str | None:
    """Return the --track of many runs with a title: the option's own, or the name of their folder.

    >>> titled_track("wandb", Path("runs/grid")), titled_track("wandb:mine", Path("runs/grid"))
    ('wandb:grid', 'wandb:mine')
    """
    return track if track is None or ":" in track else f"{track}:{out.absolute().name}"


PROCESSES_HELP = "processes on this machine, one for each GPU; several machines: torchrun (default: 1)"


def take_processes(arguments: Sequence[str]) -> tuple[int | None, list[str]]:
    """Take ``--processes N`` out of the arguments.

    >>> take_processes(["maze-small", "--processes", "2", "--seed", "1"])
    (2, ['maze-small', '--seed', '1'])
    """
    parser = Parser(add_help=False, allow_abbrev=False, usage=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int)
    found, left = parser.parse_known_args(list(arguments))
    return found.processes, left


def seed(text: str) -> int:
    """Parse a seed: an integer that is not negative."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"a seed must not be negative, got {number}")
    return number


def refuse(options: argparse.Namespace, names: Iterable[str], rule: str) -> None:
    """Raise an error for options that have no effect here; an option that was not given is None."""
    for name in names:
        require(getattr(options, name) is None, f"--{name.replace('_', '-')} {rule}")


def refuse_shape(flags: Iterable[str]) -> None:
    """Raise an error for flags that set the shape of a new model: these commands start from a base."""
    given = sorted({flag.partition("=")[0] for flag in flags} & SHAPE)
    require(
        not given,
        f"{', '.join(given)}: the base model has a fixed shape. Make another base with `dtm pretrain`",
    )


def refuse_model(folder: str, rule: str) -> None:
    """Raise an error for a model's folder where a run's folder is expected."""
    found = [name for name in ("config.json", "adapter_config.json") if (Path(folder) / name).is_file()]
    require(not found, f"{folder} is a model and not a run: {rule}")


def with_flags(config: RunConfig, flags: Sequence[str], prog: str) -> RunConfig:
    """Return the configuration with the fields of the flags changed."""
    import tyro

    from dtm.config import RunConfig

    config, flags = with_choices(config, flags, prog)
    refuse_unread(config, flags)
    # The fields of the chosen method and task are flags like any other.
    markers = (tyro.conf.AvoidSubcommands,)
    with printed_once():
        return tyro.cli(RunConfig, args=flags, default=config, prog=prog, config=markers)


def with_choices(config: RunConfig, flags: Sequence[str], prog: str) -> tuple[RunConfig, list[str]]:
    """Return the configuration with the method and task of the flags, and the remaining flags."""
    from dtm.config import configure_method, configure_task

    for short, long in ALIASES.items():
        flags = [re.sub(rf"^{re.escape(short)}(?==|$)", long, flag) for flag in flags]
    old = [flag for flag in flags if flag.partition("=")[0].partition(".")[0] == "--objective"]
    if old:
        new = old[0].replace("--objective", "--method", 1)
        raise ConfigError(
            f"{old[0]}: objectives are called methods since 0.2. Use {new}; the fields of a method follow "
            "directly, as in --method spg --method.draws 4. Methods that iterate take --iterate.iterations"
        )
    parser = Parser(prog, usage=argparse.SUPPRESS, add_help=False, allow_abbrev=False)
    parser.add_argument("--method")
    parser.add_argument("--task")
    chosen, left = parser.parse_known_args(list(flags))
    if chosen.method not in (None, config.method.name):
        config = replace(config, method=configure_method(chosen.method))
    if chosen.task not in (None, config.task.kind):
        config = replace(config, task=configure_task(chosen.task))
    return config, left


def refuse_unread(config: RunConfig, flags: Iterable[str]) -> None:
    """Raise an error for flags of a loop that the chosen method does not use."""
    from dtm.config.registry import load_method_class
    from dtm.loop.registry import LOOPS, is_under, other_fields

    method = load_method_class(config.method.name)
    unread = other_fields(method)
    for flag in flags:
        field = re.sub(r"\.no-", ".", flag.partition("=")[0].removeprefix("--")).replace("-", "_")
        if flag.startswith("--") and is_under(field, unread):
            own = ", ".join(LOOPS[method.loop].own_fields)
            raise ConfigError(
                f"{flag}: {config.method.name} does not use it. Its loop ({method.loop}) reads {own}"
            )


def first_line(text: str | None) -> str:
    """Return the first line of a docstring."""
    return (text or "").strip().splitlines()[0]
