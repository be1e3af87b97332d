"""Exceptions and warnings of the package; a message says what happened, where, and what to do next.

Every leaf also inherits the matching built-in exception, so ``except ValueError`` keeps working.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DtmError(Exception):
    """Any error that `dtm` raises on purpose; the command line prints it without a traceback."""


class ConfigError(DtmError, ValueError):
    """A recipe, field, type or value that cannot be run."""


class DataError(DtmError, ValueError):
    """A data file that is missing or a row that cannot be understood."""


class RewardError(DtmError, RuntimeError):
    """A reward function that raised, hung, or returned something that is not a reward."""


class CheckpointError(DtmError, RuntimeError):
    """A checkpoint or run folder that is missing, damaged, or belongs to another run."""


class LockedError(CheckpointError):
    """A folder that another process writes to."""


class StorageError(DtmError, OSError):
    """A file that could not be written: no space, quota, or no permission."""


class DivergedError(DtmError, ArithmeticError):
    """Training that produced weights or a gradient which are not finite."""


class MixedTiltError(DtmError, ValueError):
    """Rollouts of different tilts in one buffer; their weights e^{hr} would be meaningless."""


class PeerError(DtmError, RuntimeError):
    """Another process of the run that has ended or does not answer."""


class DtmWarning(UserWarning):
    """A recoverable error; the command line prints it as a sentence."""


def require(condition: bool, message: str, error: type[DtmError] = ConfigError) -> None:
    """Raise ``error(message)`` unless ``condition`` holds."""
    if not condition:
        raise error(message)


def install_extra(extra: str) -> str:
    """Return the command that installs an extra; the package is not on an index yet.

    >>> install_extra("text")
    "pip install -e '.[text]' (in the clone of dtm)"
    """
    return f"pip install -e '.[{extra}]' (in the clone of dtm)"


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint that names the closest valid choice and then lists them all.

    >>> nearest("maze-smal", ["maze", "maze-small"])
    "Did you mean 'maze-small'? Valid: maze, maze-small."
    """
    choices = sorted(valid)
    lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    hint = f"Did you mean {lower[close[0]]!r}? " if close else ""
    return f"{hint}Valid: {', '.join(choices)}."
