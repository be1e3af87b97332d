"""Start or continue a run: resolve its parts and its folder, and write the command that continues it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtm.config import RunConfig
from dtm.distributed import Group
from dtm.errors import require
from dtm.evaluation.explain import differences
from dtm.loop.assemble import assemble
from dtm.loop.assembly import Assembly
from dtm.loop.fingerprint import GROUPS
from dtm.recipes import recipe
from dtm.runs.bases import SOURCES
from dtm.runs.data import with_data
from dtm.runs.folder import RunFolder, read_object
from dtm.runs.resume import Resume, find_run, held, require_same_config, with_remedy
from dtm.tasks.base import Reward
from dtm.tasks.language.own import RowSource


def start_run(
    config: RunConfig | Assembly | str,
    kind: str,
    out: str | Path | None,
    resume: Resume,
    data: RowSource | None = None,
    **given: Any,
) -> tuple[Assembly | None, RunFolder | None]:
    """Return the parts of the run to start (None: it has finished) and, for a resume, its folder."""
    if isinstance(config, Assembly):
        extra = [name for name, part in {**given, "data": data}.items() if part is not None]
        require(not extra, f"{', '.join(extra)}: an Assembly is complete; give the objects to assemble(…)")
        found = find_run(config.config.recipe, kind, out, resume)
        if found is not None and found.is_finished:
            require_same_config(found, config.run_config)
        return config, found
    config, found = _resolve(config, kind, out, resume, given.get("reward"))
    if data is not None:
        require(given.get("task") is None, "data and task: give one of the two; a task has its own rows")
        config = with_data(config, data, out if found is None else found.path)
    if found is None or not found.is_finished:
        return assemble(config, **given), found
    if given.get("method") is None and given.get("task") is None:  # objects have their own settings
        require_same_config(found, config)
    return None, found


def _resolve(
    config: RunConfig | str, kind: str, out: str | Path | None, resume: Resume, reward: Reward | None = None
) -> tuple[RunConfig, RunFolder | None]:
    """Return the configuration to run and, for a resume, the run's folder.

    A recipe's name continues a run as it was started; a whole configuration must be the same as the run's.
    """
    name = config if isinstance(config, str) else config.recipe
    folder = find_run(name, kind, out, resume)
    if folder is None:
        config = recipe(config) if isinstance(config, str) else config
        if reward is not None:  # `assemble` records the function's own name
            config = replace(config, reward=replace(config.reward, function=None))
        return config, None
    saved = folder.read_config()
    if isinstance(config, str):
        return saved, folder
    if reward is not None:  # the function may have been fixed since
        config = replace(config, reward=replace(config.reward, function=saved.reward.function))
    if config.model.base in (None, *SOURCES):  # the run has recorded which one it found
        config = replace(config, model=replace(config.model, base=saved.model.base))
    return config, folder


def require_same_inputs(folder: RunFolder, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Check that data and base have not changed; return the fingerprint with the current settings.

    Settings of the reward may differ: its function may have been fixed since.
    """
    if not folder.fingerprint.is_file():
        return dict(identity)
    groups = {group: GROUPS[group] for group in ("items", "training", "model")}
    before = read_object(folder.fingerprint)
    found = "\n".join(differences(groups, before, identity))
    require(
        not found,
        f"the data or the base of the run in {folder.path} have changed:\n{found}\n"
        "Restore them to continue it, or start a new run: no --resume, and another --out.",
    )
    return {**before, "settings": identity["settings"]}


@contextmanager
def held_run(
    found: RunFolder | None,
    config: RunConfig,
    kind: str,
    out: str | Path | None,
    given: Mapping[str, Any],
    group: Group,
) -> Iterator[RunFolder]:
    """The folder of the run, locked; after a failed reward or write the error says how to continue."""
    with (
        held(found, config, kind, out, group) as folder,
        with_remedy(folder, command_to_continue(folder, config, kind, given)),
    ):
        yield folder


def command_to_continue(folder: RunFolder, config: RunConfig, kind: str, given: Mapping[str, Any]) -> str:
    """Return the command that continues a run, or the Python call if it was started with objects."""
    objects = ", ".join(f"{name}=…" for name, part in given.items() if part is not None)
    if objects:
        return f"dtm.{kind}({config.recipe!r}, {objects}, out={str(folder.path)!r}, resume=True)"
    return f"dtm {kind} {config.recipe} --resume --out {shlex.quote(str(folder.path))}"
