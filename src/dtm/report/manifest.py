"""The manifest of a results folder: the command and the commit that wrote each file.

    results/manifest.json   {table: {files: {path: sha256}, command, commit, machine, seeds, inputs, old}}

A study records its table when it writes it (`record`). `check` then reports files that were changed by hand,
belong to no table, or do not come from one command at one commit. The entry of such a table has the reason in
``old``, until the table is made again, and `mark_old` writes it into the Markdown files of the table.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dtm.errors import DataError, require
from dtm.writing import write_json, write_text

MANIFEST = "manifest.json"
COMMIT = re.compile(r"[0-9a-f]{7,40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
COMMAND = re.compile(r"(python \S+\.py|dtm \w+)( .*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Origin of the files of one table."""

    command: str
    """Command that writes them, run in the root of the repository."""
    commit: str
    """Commit at which it ran."""
    machine: Mapping[str, Any]
    """Processor or GPU, and versions."""
    seeds: Sequence[int] | None
    """Seeds of the runs; None: the command has none to choose."""
    inputs: Mapping[str, str]
    """SHA-256 of the data files and of the base that were used, by name. Tables made before inputs were
    recorded have null in the manifest."""
    old: str | None = None
    """Reason why the table does not come from one command at one commit; None: it does."""


def record(results: Path, table: str, files: Iterable[Path], made: Provenance) -> None:
    """Write the origin of a table's files to the manifest, in place of the table's last entry."""
    entries = read(results) if (results / MANIFEST).is_file() else {}
    hashes = {path.relative_to(results).as_posix(): sha256(path) for path in sorted(files)}
    entries[table] = {"files": hashes, **asdict(made)}
    write_json(results / MANIFEST, dict(sorted(entries.items())))


def read(results: Path) -> dict[str, Any]:
    """Read the tables of a manifest."""
    path = results / MANIFEST
    require(path.is_file(), f"no {path}: give the folder of results that has it", DataError)
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    require(
        isinstance(entries, dict) and all(isinstance(entry, dict) for entry in entries.values()),
        f"{path} is no manifest: it must be an object of tables",
        DataError,
    )
    return dict(entries)


def check(results: Path) -> list[str]:
    """Return the problems of a results folder, one sentence each."""
    entries, problems, owners = read(results), list[str](), dict[str, str]()
    for table, entry in entries.items():
        for name, expected in entry.get("files", {}).items():
            if name in owners:
                problems.append(f"{name} belongs to two tables, {owners[name]} and {table}")
            owners[name] = table
            path = results / name
            if not path.is_file():
                problems.append(f"{name} of table {table} is missing")
            elif sha256(path) != expected:
                problems.append(f"{name} was changed after table {table} was written")
            else:
                problems += [f"{name} of table {table}: {flaw}" for flaw in _told_otherwise(path, entry)]
        problems += [] if entry.get("old") else [f"table {table}: {flaw}" for flaw in _flaws(entry)]
    here = {path.relative_to(results).as_posix() for path in results.rglob("*") if path.is_file()}
    problems += [f"{name} belongs to no table" for name in sorted(here - owners.keys() - {MANIFEST})]
    return problems


def _flaws(entry: Mapping[str, Any]) -> list[str]:
    """Return the reasons why an entry is not one command at one commit."""
    flaws = []
    if not COMMAND.fullmatch(str(entry.get("command"))):
        flaws.append(f"{entry.get('command')!r} is no command")
    if not COMMIT.fullmatch(str(entry.get("commit"))):
        flaws.append(f"{entry.get('commit')!r} is not one commit")
    if not entry.get("machine"):
        flaws.append("it does not name the machine")
    if entry.get("seeds", []) == []:
        flaws.append("it names no seeds: list them, or null where the command has none")
    inputs = entry.get("inputs", "")
    if inputs is not None and not (
        isinstance(inputs, dict) and all(SHA256.fullmatch(str(value)) for value in inputs.values())
    ):
        flaws.append("its inputs are no object of SHA-256 by name")
    return flaws


def _told_otherwise(path: Path, entry: Mapping[str, Any]) -> list[str]:
    """Return what a whole file says about itself that differs from its entry."""
    if path.suffix == ".md" and entry.get("old") and not _is_marked(path, entry["old"]):
        return ["it does not say that it is old: run `dtm results mark`"]
    if path.suffix != ".json":
        return []
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return ["it is not JSON"]
    commit = told.get("commit", entry.get("commit")) if isinstance(told, dict) else entry.get("commit")
    return [] if commit == entry.get("commit") else [f"it is of commit {commit}, not {entry.get('commit')}"]


def notes(results: Path) -> list[str]:
    """Return what is missing of tables that are valid otherwise, one sentence each."""
    entries = read(results).items()
    return [f"{table}: inputs not recorded" for table, entry in entries if entry.get("inputs") is None]


def mark_old(results: Path) -> list[str]:
    """Write the reason of every old table into its Markdown files; return the files that were written.

    A file that was changed since its command wrote it is an error.
    """
    entries = read(results)
    unmarked = [
        (entry, name)
        for entry in entries.values()
        for name in entry["files"]
        if entry.get("old") and name.endswith(".md") and not _is_marked(results / name, entry["old"])
    ]
    for entry, name in unmarked:
        is_same = sha256(results / name) == entry["files"][name]
        require(is_same, f"{results / name} was changed after it was written", DataError)
    for entry, name in unmarked:
        text = (results / name).read_text(encoding="utf-8")
        write_text(results / name, f"{_mark(entry['old'])}\n\n{text}")
        entry["files"][name] = sha256(results / name)
        write_json(results / MANIFEST, entries)
    return [name for _, name in unmarked]


def _mark(reason: str) -> str:
    return f"**Old:** {reason}."


def _is_marked(path: Path, reason: str) -> bool:
    return path.read_text(encoding="utf-8").startswith(_mark(reason))


def sha256(path: Path) -> str:
    """Return the hash of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
