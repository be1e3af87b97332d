"""What the studies have in common: settings of equal training, and the pieces of their results."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import dtm
from dtm.config import ReplayConfig, RunConfig, TiltConfig
from dtm.errors import DtmError
from dtm.models.weights import weight_files
from dtm.report.manifest import Provenance, record, sha256
from dtm.runs.bases import find_base
from dtm.runs.environment import environment
from dtm.runs.folder import RunFolder
from dtm.tasks.data import SOURCES


def in_rounds(
    config: RunConfig, h: float, final: float, updates: int, rounds: int, prompts: int, completions: int
) -> RunConfig:
    """To the final tilt by steps of h at equal training: rounds of ``updates`` on fresh rollouts, shared out.

    No phase ends early, or one setting would train for less than another.
    """
    return replace(
        config,
        tilt=TiltConfig(step=h, final=final, max_steps=round(updates * rounds * h / final), absorbed="never"),
        replay=ReplayConfig(
            prompts=prompts,
            completions=completions,
            refresh_every=updates,
            refresh_fraction=1.0,
            priority=config.replay.priority,
        ),
    )


def curve(run: dtm.Run) -> list[dict[str, float]]:
    """The numbers of a run's own evaluations."""
    return [{key: value for key, value in row.items() if key != "event"} for row in run.events("evaluation")]


def pretraining(model: Path) -> dict[str, Any]:
    """How a base was made: steps, minutes and what it reached."""
    run = dtm.Run(RunFolder(model.parent))
    last = run.events("step")[-1]
    return {**run.summary, "steps": last["step"], "minutes": round(last["seconds"] / 60, 2)}


def commits(runs: Iterable[dtm.Run]) -> str:
    """The commits at which runs were made."""
    return ", ".join(sorted({str(made_at(run)["commit"]) for run in runs}))


def called() -> str:
    """The command that makes the results, without the folders of one machine."""
    return f"python {environment()['command']}"


def made_at(run: dtm.Run) -> dict[str, Any]:
    """What decided a run's numbers besides its configuration."""
    made: dict[str, Any] = json.loads((run.path / "environment.json").read_text(encoding="utf-8"))
    return made


def machine(runs: Iterable[dtm.Run]) -> dict[str, str | None]:
    """Where runs were made; results may be gathered elsewhere. None: no run had one, such as a GPU."""
    made = [made_at(run) for run in runs]
    keys = ("gpu", "processor", "python", "torch")
    named = {key: {str(row[key]) for row in made if row[key] is not None} for key in keys}
    return {key: ", ".join(sorted(names)) or None for key, names in named.items()}


def inputs(configs: Iterable[RunConfig]) -> dict[str, str]:
    """SHA-256 of the files that runs read: the weights of their bases, and their data."""
    read = dict[str, Path]()
    for config in configs:
        with suppress(DtmError):  # a base that is made elsewhere, or is gone
            base = find_base(config)
            weights = [] if base is None else sorted(set(weight_files(base).values()))
            read |= {
                f"base {path.parent.parent.name}/{path.parent.name}/{path.name}": path for path in weights
            }
        data, folder = getattr(config.task, "data", None), getattr(config.task, "data_dir", None)
        if data is not None:
            read[f"data {Path(data).name}"] = Path(data)
        if folder is not None:
            read |= {f"data {name}": Path(folder) / name for name in SOURCES}
    return {name: sha256(path) for name, path in sorted(read.items()) if path.is_file()}


def publish(table: str, head: Path, files: Iterable[Path], read: Mapping[str, str]) -> None:
    """Record how the files of a table were made, as its main file tells, in the manifest of the results.

    ``read`` has the SHA-256 of the files that the command read (`inputs`); empty if it made all of them.
    """
    told = json.loads(head.read_text(encoding="utf-8"))
    results = next(folder for folder in head.resolve().parents if folder.name == "results")
    made = Provenance(
        command=told["command"],
        commit=told["commit"],
        machine=told["machine"],
        seeds=told["seeds"],
        inputs=read,
    )
    record(results, table, [path.resolve() for path in files], made)


def provenance(seeds: Sequence[int] | None, commit: str | None = None) -> dict[str, Any]:
    """Seeds, commit, command and machine of results made here; ``commit``: of a tree without its history."""
    here = environment()
    return {
        "seeds": seeds,
        "commit": commit or here["commit"],
        "command": called(),
        "machine": {key: here[key] for key in ("gpu", "processor", "python", "torch")},
    }


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no infinity: an effective tilt beyond all of the base's rollouts is null."""
    return {key: value if math.isfinite(value) else None for key, value in values.items()}


def slug(name: str) -> str:
    """A name as part of a file's: letters, digits and single hyphens."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name).split())
