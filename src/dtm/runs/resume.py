"""Continuing a run: find it, refuse another configuration, write down what has changed."""

from __future__ import annotations

from pathlib import Path

from dtm.config import RunConfig
from dtm.config.serialise import obstacles, to_yaml
from dtm.errors import ConfigError
from dtm.runs.folder import RunFolder, write_text


def find_run(recipe: str, kind: str, out: str | Path | None) -> RunFolder:
    """The run in ``out``, or the recipe's latest; one of release 0.1 is refused."""
    folder = RunFolder.latest(recipe, kind) if out is None else RunFolder.find(Path(out))
    folder.require_resumable()
    return folder


def require_same_config(folder: RunFolder, config: RunConfig) -> None:
    """Refuse to continue a run with another configuration."""
    changes = list(obstacles(folder.read_config(), config))
    if changes:
        listed = "\n  ".join(changes)
        raise ConfigError(
            f"the run in {folder.path} was started with another configuration:\n  {listed}\n"
            "Leave these flags out to continue it, or start a new run: no --resume, and another --out."
        )


def note_changes(folder: RunFolder, config: RunConfig) -> None:
    """Write down the settings that a run continues with, where these may change."""
    if config != folder.read_config():
        write_text(folder.config, to_yaml(config))
