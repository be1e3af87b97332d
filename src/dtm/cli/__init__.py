"""The command line `dtm`: parse the arguments, call the package, print the result.

Heavy imports happen inside the commands, so that help answers at once. A command is a function from its
arguments to an exit code; the first line of its docstring is its entry in `dtm --help`.
"""

from __future__ import annotations

import io
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout

from dtm.cli.adapt import adapt
from dtm.cli.chat import chat
from dtm.cli.compare import compare
from dtm.cli.evaluation import evaluate
from dtm.cli.export import export
from dtm.cli.fit import fit
from dtm.cli.grade import grade
from dtm.cli.models import models
from dtm.cli.parse import SYMBOLS, first_line, take_processes
from dtm.cli.recipes import recipes
from dtm.cli.report import report, watch
from dtm.cli.results import results
from dtm.cli.run import pretrain, train
from dtm.cli.sampling import sample
from dtm.cli.sweep import sweep
from dtm.cli.verify import verify
from dtm.distributed import is_first_process, launched, report_once, was_shared
from dtm.distributed.launch import launch
from dtm.errors import ConfigError, DtmError, DtmWarning, PeerError, nearest, require
from dtm.runs.interrupts import ENDS_WITH_PARENT, Immediate, Interrupts, end_with_parent, exit_code

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "adapt": adapt,
    "pretrain": pretrain,
    "sweep": sweep,
    "compare": compare,
    "eval": evaluate,
    "sample": sample,
    "chat": chat,
    "report": report,
    "watch": watch,
    "grade": grade,
    "export": export,
    "fit": fit,
    "models": models,
    "recipes": recipes,
    "verify": verify,
    "results": results,
}

IN_PROCESSES = ("train", "pretrain", "adapt", "eval")
"""Commands that run in several processes: they take --processes N, or are started by torchrun."""
STARTS_RUNS = ("sweep", "compare")
"""Commands that pass --processes N on to the runs that they start."""
USUAL = warnings.formatwarning


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    warnings.formatwarning = _sentence
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # the terminal may have no Greek letters
    Interrupts.received = None
    end_with_parent()
    with ExitStack() as stack:
        if not is_first_process():  # only the first process prints
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", DtmWarning)
        stack.enter_context(Immediate())
        return _run(arguments)


def _run(arguments: list[str]) -> int:
    """Run one command; errors become a sentence and an exit code."""
    try:
        return _dispatch(arguments)
    except DtmError as problem:
        _report(problem)
        return 2 if Interrupts.received is None else exit_code()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        sys.stderr.close()
        return 0
    except OSError as problem:
        report_once(str(problem), _tell)
        return 2
    except SystemExit as end:  # a parser has printed what is wrong, in the first process
        if end.code not in (0, None):
            report_once("wrong arguments", lambda message: None)
        raise
    except BaseException as problem:
        # A signal in the middle of an import can surface as another error.
        if Interrupts.received is None and not isinstance(problem, KeyboardInterrupt):
            raise
        reason = (Interrupts.received or signal.SIGINT).name
        print(f"dtm: stopped by {reason}; --resume continues a run from its last checkpoint", file=sys.stderr)
        return exit_code()
    finally:
        warnings.formatwarning = USUAL


def _report(problem: DtmError) -> None:
    """Print an error once, also if all processes raise it."""
    if was_shared(problem):
        if is_first_process():
            _tell(str(problem))
    elif isinstance(problem, PeerError):  # there is nobody to agree with
        _tell(str(problem))
    else:
        report_once(str(problem), _tell)


def _tell(message: str) -> None:
    print(f"dtm: {message}", file=sys.stderr, flush=True)


def _sentence(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format our own warnings as a sentence, without the line of code; others as usual."""
    if issubclass(category, DtmWarning):
        return f"dtm: {message}\n"
    return USUAL(message, category, filename, lineno, line)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        from importlib import metadata

        print(f"dtm {metadata.version('discrete-tilt-matching')}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        raise ConfigError(f"no command {name!r}. {nearest(name, COMMANDS)}")
    require(
        launched() == 1 or name not in STARTS_RUNS,
        f"dtm {name} starts its runs itself, and cannot be started by torchrun. Run instead: "
        f"dtm {shlex.join([*arguments, '--processes', str(launched())])} (each run then has that many "
        "processes on this machine)",
    )
    if name in IN_PROCESSES:
        processes, rest = take_processes(rest)
        if processes is not None and not {"-h", "--help"} & set(rest):
            require(launched() == 1, "torchrun has started the processes: leave out --processes")
            if processes != 1:
                return launch([name, *rest], processes, {ENDS_WITH_PARENT: "1"})
    return COMMANDS[name](rest)


def _overview() -> str:
    commands = "\n".join(f"  {name:<10} {first_line(command.__doc__)}" for name, command in COMMANDS.items())
    return (
        "usage: dtm COMMAND ...\n\nReward fine-tuning of masked diffusion language models by Discrete Tilt "
        f"Matching.\n\ncommands\n{commands}\n\n`dtm COMMAND --help` explains each.\n\n{SYMBOLS}"
    )
