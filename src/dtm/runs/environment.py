"""Record the machine and the software of a run: versions, processor, commit and command."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from dtm.distributed import launched

ABSOLUTE = re.compile(r"(?P<flag>[^/]*=)?(?P<path>/.*)", re.DOTALL)
"""An absolute path, alone or after ``=``."""


def environment() -> dict[str, Any]:
    """Return versions, machine and commit, on which numbers depend besides the configuration."""
    import torch

    return {
        "dtm": version("discrete-tilt-matching"),
        "commit": commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "processes": launched(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "command": " ".join(map(shortened, sys.argv)),
    }


def shortened(argument: str) -> str:
    """Shorten a path, also after ``=``: relative to the working folder, or only its last part.

    The configuration of a run has its paths in full.

    >>> shortened("--out=/somewhere/runs/first"), shortened("runs/second"), shortened("maze-small")
    ('--out=first', 'runs/second', 'maze-small')
    >>> shortened("/somewhere/lr=1/first"), shortened("--out=/somewhere/lr=1/first")
    ('first', '--out=first')
    >>> shortened("--set=spg.reward=/somewhere/my.py")
    '--set=spg.reward=my.py'
    """
    found = ABSOLUTE.fullmatch(argument)
    if found is None:
        return argument
    path, here = Path(found["path"]), Path.cwd()
    return f"{found['flag'] or ''}{path.relative_to(here) if path.is_relative_to(here) else path.name}"


def commit(file: Path = Path(__file__)) -> str | None:
    """Return the commit of the running source tree, with a mark if it is edited; None outside a repository.

    Changes under results/ do not count as edits: commands of one commit may write there in turn.
    """
    try:
        _git(file.parent, "ls-files", "--error-unmatch", file.name)  # not a package in another repository
        name = _git(file.parent, "rev-parse", "--short=12", "HEAD")
        edited = _git(file.parent, "diff", "--name-only", "HEAD", "--", ":/", ":(top,exclude)results")
        return f"{name}-dirty" if edited else name
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
    )
    return result.stdout.strip()


def processor() -> str:
    """Return the CPU's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def version(distribution: str) -> str:
    """Return the installed version of a package."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
