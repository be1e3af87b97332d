"""Write a page: one HTML file with style, script and data inside, without external resources."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import shlex
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from dtm.config.serialise import leaves
from dtm.errors import DtmWarning, require
from dtm.report.page.data import LEVELS, PageRun, page_data, shorten_paths
from dtm.runs.events import Event
from dtm.runs.folder import PAGE, RunFolder, make_folder
from dtm.writing import write_text

LARGEST = 4_500_000
"""Largest page, in bytes; a larger one is made again with fewer samples, shorter texts and coarser curves."""
SHARE = 0.01
"""Largest share of a run's time for writing its page again."""
PLACE = re.compile(r"\[\[(policy|title|style|data|script)\]\]")
SCRIPTS = ("base", "charts", "drawings", "movie", "samples", "sections", "main")
"""The script's files, in the order in which they are joined."""


def render(data: dict[str, Any], live: bool = False) -> str:
    """Return the page as HTML; a ``live`` page polls its server for updates."""
    template, style, script = assets()
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        f"connect-src {chr(39)}{'self' if live else 'none'}{chr(39)}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": escape(data["title"]),
        "style": style,
        "data": embedded(data | {"live": live}),
        "script": script,
    }
    # In one pass: the data may contain the text of a placeholder.
    return PLACE.sub(lambda place: parts[place[1]], template)


@cache
def assets() -> tuple[str, str, str]:
    """Read the template, the style and the script."""
    folder = files("dtm.report.page") / "assets"
    script = "\n".join((folder / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    wrapped = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    return (folder / "page.html").read_text("utf-8"), (folder / "page.css").read_text("utf-8"), wrapped


def embedded(data: Any) -> str:
    r"""Format JSON that is safe inside a script element: pure ASCII, without characters that HTML parses.

    >>> embedded(["</script>", float("nan")])
    '["\\u003c/script\\u003e",null]'
    """
    text = json.dumps(_finite(data), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page_of(subjects: Sequence[PageRun], title: str) -> str:
    """Return the page of some runs, small enough for an e-mail."""
    for level in range(LEVELS):
        page = render(page_data(subjects, title, level))
        if len(page) <= LARGEST:
            break
    return page


def write_page(folder: RunFolder) -> Path:
    """Write the page of one run into its folder."""
    return write_pages([PageRun(folder, folder.path.name, "")])


def write_pages(subjects: Sequence[PageRun], out: Path | None = None) -> Path:
    """Write the page of some runs; by default into the run's folder, or the common folder of the runs."""
    require(bool(subjects), "a page needs at least one run")
    folders = [subject.folder.path.absolute() for subject in subjects]
    if out is None:
        out = (
            folders[0] if len(folders) == 1 else Path(os.path.commonpath([f.parent for f in folders]))
        ) / PAGE
    require(not out.is_dir(), f"{out} is a folder: name a file, such as {out / PAGE}")
    make_folder(out.parent)
    write_text(out, page_of(subjects, title_of(subjects)))
    return out


def title_of(subjects: Sequence[PageRun]) -> str:
    """Return the run's name, or the number of runs."""
    if len(subjects) == 1:
        return subjects[0].name
    recipes = dict.fromkeys(str(subject.folder.recipe) for subject in subjects)
    return f"{', '.join(recipes)}: {len(subjects)} runs"


def subjects_of(folders: Sequence[RunFolder]) -> list[PageRun]:
    """Return the subjects of a page; runs that differ only in the seed are one group.

    A group is named by the settings in which it differs from the others.
    """
    names = [folder.path.name for folder in folders]
    if len(set(names)) < len(names):
        paths = [folder.path.absolute() for folder in folders]
        shared = os.path.commonpath([path.parent for path in paths])
        names = [os.path.relpath(path, shared) for path in paths]
    settings = [leaves(folder.read_config()) for folder in folders] if len(folders) > 1 else []
    fields = dict.fromkeys(field for setting in settings for field in setting if field != "seed")
    varied = [field for field in fields if len({str(setting.get(field)) for setting in settings}) > 1]
    groups = _labels(settings, varied) if varied else names
    return [PageRun(*row) for row in zip(folders, names, groups, strict=True)]


def _labels(settings: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> list[str]:
    """Return the groups' names with short paths, and a number if paths are then equal."""
    whole = [_label(setting, varied) for setting in settings]
    short = [_label(shorten_paths(setting), varied) for setting in settings]
    distinct = list(dict.fromkeys(whole))
    if len(set(short)) < len(distinct):
        short = [f"{name} ({distinct.index(full) + 1})" for name, full in zip(short, whole, strict=True)]
    return short


def _label(setting: Mapping[str, Any], varied: Sequence[str]) -> str:
    """Return the values of the fields that vary; the method's own fields follow its name."""
    if "method.name" in varied:
        varied = [field for field in varied if field == "method.name" or not field.startswith("method.")]
    return ", ".join(f"{field.removesuffix('.name')} {setting.get(field)}" for field in varied)


class RunPage:
    """Callback that rewrites a run's page during the run, after evaluations and phases.

    After each page it waits, so that the following pages take at most `SHARE` of the run's time. A failure
    causes one warning.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.not_before = 0.0
        self.has_failed = False

    def __call__(self, event: Event) -> None:
        """Write the page if it is due."""
        if event.kind in ("samples", "phase") and time.perf_counter() >= self.not_before:
            self.write()

    def write(self) -> None:
        """Write the page now."""
        begin = time.perf_counter()
        try:
            write_page(self.folder)
        except Exception as problem:  # a failed page must not stop the training
            if not self.has_failed:
                again = f"make it later with `dtm report {shlex.quote(str(self.folder.path))}`"
                notice = f"{self.folder.page} was not written: {problem}; {again}"
                warnings.warn(notice, DtmWarning, stacklevel=2)
            self.has_failed = True
        end = time.perf_counter()
        self.not_before = end + (end - begin) / SHARE


def _finite(value: Any) -> Any:
    """Replace numbers that JSON cannot hold by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return value


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
