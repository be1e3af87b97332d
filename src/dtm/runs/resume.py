"""Continue a run: find it, check its configuration, lock its folder, record changed settings."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from dtm.config import RunConfig
from dtm.config.adapt import AdaptConfig
from dtm.config.serialise import CHANGEABLE, ENDS, leaves, obstacles, read_mapping, to_yaml
from dtm.distributed import ALONE, Group
from dtm.errors import CheckpointError, ConfigError, DtmWarning, RewardError, StorageError, require
from dtm.runs.bases import located
from dtm.runs.checkpoint import has_checkpoint
from dtm.runs.events import is_number, newest_first
from dtm.runs.folder import RunFolder, make_folder, new_path, read_object, reading, require_new
from dtm.runs.lock import locked
from dtm.writing import write_json, write_text

MOVED = "moved"
"""Key of environment.json: the end of the run and the path of its rows, if they changed after the start."""
ROWS = "task.data"
"""Field that earlier releases stored as given; now its path is absolute."""
Resume = bool | Literal["auto"]
"""Whether to continue a run; auto: continue if there is one, else start."""


def find_run(recipe: str, kind: str, out: str | Path | None, resume: Resume = True) -> RunFolder | None:
    """Find the run to continue: the one in ``out``, or the recipe's latest. None: start a new one.

    A run of another recipe, another command or release 0.1 is an error, and so is an edited config.yaml.
    """
    if not resume or (resume == "auto" and not _is_there(recipe, kind, out)):
        return None
    folder = RunFolder.latest(recipe, kind) if out is None else RunFolder.find(Path(out))
    folder.require_resumable()
    found, command = folder.recipe, folder.started.get("kind", kind)
    require(
        (found, command) == (recipe, kind),
        f"{folder.path} holds a run of `dtm {command} {found}`, not of `dtm {kind} {recipe}`. Continue it "
        "with that command, or choose another folder with --out.",
        CheckpointError,
    )
    _require_unedited(folder)
    if folder.is_finished:
        check_finished(folder)
    return folder


def check_finished(folder: RunFolder) -> None:
    """Check the files of a finished run: a damaged one is an error, a log without its steps a warning."""
    if folder.fingerprint.is_file():
        with reading(folder.fingerprint):
            groups = read_object(folder.fingerprint).values()
            if not all(isinstance(facts, dict) for facts in groups):
                raise TypeError("a group of it is no object")
    steps, log = read_object(folder.summary).get("steps"), folder.metrics
    rows = newest_first(log, warn=False) if log.is_file() else ()
    if is_number(steps) and steps > 0 and not any(row["event"] == "step" for row in rows):
        warnings.warn(
            f"{log} has lost the rows of {steps} steps, which {folder.summary.name} counts: figures and "
            "tables of this run are incomplete. Restore the file.",
            DtmWarning,
            stacklevel=3,
        )


def _is_there(recipe: str, kind: str, out: str | Path | None) -> bool:
    """Return whether there is a run to resume: one in ``out``, or an unfinished one of the recipe."""
    if out is not None:
        return (Path(out) / "config.yaml").is_file()
    try:
        return not RunFolder.latest(recipe, kind).is_finished
    except CheckpointError:
        return False


def _require_unedited(folder: RunFolder) -> None:
    """Raise an error if config.yaml was edited after the start in a way that changes the run."""
    started, now = folder.started, leaves(read_mapping(folder.config))
    before = {**started.get("config", {}), **started.get(MOVED, {})}
    changes = [
        f"{name}: {value!r} → {now.get(name)!r}"
        for name, value in before.items()
        if name not in CHANGEABLE and now.get(name) != value
    ]
    if changes:
        listed = "\n  ".join(changes)
        raise ConfigError(
            f"{folder.config} was edited after the run started:\n  {listed}\n"
            "Undo this to continue it, or start a new run with these settings: no --resume, another --out."
        )


def require_same_config(folder: RunFolder, config: RunConfig) -> None:
    """Raise an error if a run is continued with another configuration."""
    saved = located(folder.read_config())
    changes = list(obstacles(saved, located(config), finished=folder.is_finished))
    if changes:
        listed = "\n  ".join(changes)
        state, use = ("has finished", "see it") if folder.is_finished else ("was started", "continue it")
        raise ConfigError(
            f"the run in {folder.path} {state} with another configuration:\n  {listed}\n"
            f"Leave these flags out to {use}, or start a new run: no --resume, and another --out."
        )


@contextmanager
def held(
    found: RunFolder | None,
    config: RunConfig | AdaptConfig,
    kind: str,
    out: str | Path | None,
    group: Group = ALONE,
) -> Iterator[RunFolder]:
    """Context with the locked folder of the run to continue, or of a new run.

    The first process makes and locks the folder, after all processes have looked for an earlier run.
    """
    group.gather(None)
    with ExitStack() as stack:
        yield group.by_first(lambda: stack.enter_context(_held(found, config, kind, out)))


@contextmanager
def _held(
    found: RunFolder | None, config: RunConfig | AdaptConfig, kind: str, out: str | Path | None
) -> Iterator[RunFolder]:
    path = new_path(config.recipe, kind, out) if found is None else found.path
    if found is None:
        require_new(path)
        make_folder(path)
    with locked(path):
        yield found or RunFolder.create(config, kind, path)


def note_changes(folder: RunFolder, config: RunConfig) -> None:
    """Record the changed settings with which a run continues."""
    saved = folder.read_config()
    if config in (saved, located(saved)):
        return
    before, now = leaves(saved), leaves(config)
    moved = {name: now[name] for name in (*ENDS, ROWS) if before.get(name) != now.get(name)}
    if moved:
        started = folder.started
        write_json(folder.environment, started | {MOVED: started.get(MOVED, {}) | moved})
    write_text(folder.config, to_yaml(config))


@contextmanager
def with_remedy(folder: RunFolder, again: str) -> Iterator[None]:
    """Context that adds the command for continuing to errors of rewards and writes."""
    try:
        yield
    except (RewardError, StorageError) as problem:
        state = "The run is saved; continue it with"
        if isinstance(problem, StorageError):
            state = "The run is saved up to its last checkpoint; continue it with"
            if not has_checkpoint(folder.checkpoints):
                state = "The run has no checkpoint yet; start it again with"
        raise type(problem)(f"{problem}\n{state}: {again}") from problem
