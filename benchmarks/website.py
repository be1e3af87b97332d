"""Hooks of the documentation site (mkdocs.yml): pages that are made when it is built.

- `index.md` is README.md, and `project/` has CONTRIBUTING.md and CHANGELOG.md.
- `reference/command-line.md` and `reference/fields.md` are the help that the commands print.
- `reference/python.md` and its neighbours list the public names; mkdocstrings writes their docstrings.
- Files outside docs/ that pages link to are part of the site: pictures as they are, texts as pages under
  `files/`. So links work here as they work in the repository.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COPIED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
}
"""Pages of the site that are files beside docs/."""
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)]*)?(\))")
FENCE = re.compile(r"^(```.*?^```$)", re.DOTALL | re.MULTILINE)
LANGUAGES = {".py": "python", ".md": "markdown", ".json": "json", ".cff": "yaml", ".ipynb": "json"}
PICTURES = (".png", ".gif", ".svg")
LONGEST = 60_000
"""Characters of a file that are shown."""

PYTHON = ("train", "pretrain", "adapt", "recipe", "load_model", "save_model", "Run", "DtmError")
LIBRARY = {
    "dtm.engine": ("generate", "Decoder"),
    "dtm.losses": ("weigh", "c_dtm", "AdaptiveControl"),
    "dtm.masking": ("sample",),
    "dtm.models.hugging_face": ("HuggingFaceDenoiser",),
    "dtm.models": ("LoRA", "Policy", "Transformer", "TransformerConfig"),
    "dtm.models.export": ("save_adapter", "save_merged", "load_adapter"),
}
INTERFACES = (
    "dtm.methods.base.Method",
    "dtm.models.denoiser.Denoiser",
    "dtm.tasks.base.Task",
    "dtm.engine.base.RolloutEngine",
    "dtm.records",
)
SECTIONS = (
    *(
        "RunConfig",
        "ModelConfig",
        "AdapterConfig",
        "DecodingConfig",
        "AuditConfig",
        "TiltConfig",
        "IterateConfig",
    ),
    *("ReplayConfig", "OptimizerConfig", "RewardConfig", "EvaluationConfig", "CheckpointConfig"),
    *("DistributedConfig", "PretrainConfig"),
)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not files of docs/."""
    from mkdocs.structure.files import File

    pages = {place: (ROOT / name).read_text(encoding="utf-8") for name, place in COPIED.items()}
    pages |= reference()
    for path in linked(files, pages):
        place = place_of(path)
        if path.suffix in PICTURES:
            files.append(File.generated(config, place, abs_src_path=str(path)))
        else:
            pages[place] = shown(path)
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to files outside docs/ lead to their places in the site."""
    source = page.file.src_uri
    home = next((name for name, place in COPIED.items() if place == source), f"docs/{source}")
    return rewritten(markdown, home, source)


def rewritten(text: str, home: str, place: str) -> str:
    """The text with its links as seen from its place in the site.

    ``home`` is the path of the page in the repository, from which its links are written.
    """

    def link(match: re.Match[str]) -> str:
        opening, target, anchor, closing = match[1], match[2], match[3] or "", match[4]
        if "://" in target or home.startswith("docs/reference/") or home.startswith("docs/files/"):
            return match[0]
        path = normpath(join(dirname(home), target))
        return f"{opening}{relpath(place_of(ROOT / path), dirname(place) or '.')}{anchor}{closing}"

    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in FENCE.split(text))


def place_of(path: Path) -> str:
    """The place of a file of the repository in the site.

    >>> place_of(ROOT / "docs" / "faq.md"), place_of(ROOT / "README.md")
    ('faq.md', 'index.md')
    >>> place_of(ROOT / "examples" / "own_loop.py"), place_of(ROOT / "results" / "maze-small.png")
    ('files/examples/own_loop.py.md', 'files/results/maze-small.png')
    """
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if name in COPIED:
        return COPIED[name]
    return f"files/{name}" if path.suffix in PICTURES else f"files/{name}.md"


def linked(files: Any, pages: dict[str, str]) -> list[Path]:
    """Files and folders outside docs/ that pages link to; of folders also what they hold."""
    texts = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    texts += [(name, pages[place]) for name, place in COPIED.items()]
    found: set[Path] = set()
    for home, text in texts:
        for target in links(text):
            path = Path(normpath(ROOT / dirname(home) / target))
            if path.exists() and place_of(path).startswith("files/"):
                found |= {path, *held(path)}
    return sorted(found)


def links(text: str) -> Iterator[str]:
    """Targets of the links to files, outside of code."""
    for part in FENCE.split(text):
        if not part.startswith("```"):
            yield from (target for _, target, _, _ in LINK.findall(part) if "://" not in target)


def held(folder: Path) -> Iterable[Path]:
    """The files of a folder."""
    kept = (*LANGUAGES, *PICTURES)
    return (path for path in folder.iterdir() if path.suffix in kept) if folder.is_dir() else ()


def shown(path: Path) -> str:
    """A page that shows a file, or lists a folder."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        here = dirname(place_of(path))
        lines = (f"- [{file.name}]({relpath(place_of(file), here)})" for file in sorted(held(path)))
        return f"# {name}\n\n" + "\n".join(lines) + "\n"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return f"# {name}\n\n{text}"
    if path.suffix == ".ipynb":
        return notebook(text)
    cut = "" if len(text) <= LONGEST else f"\nThe first {LONGEST:,} characters are shown.\n"
    return f"# {name}\n{cut}\n````{LANGUAGES.get(path.suffix, 'text')}\n{text[:LONGEST]}\n````\n"


def notebook(text: str) -> str:
    """The cells of a notebook with their printed outputs, as Markdown."""
    import json

    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"````python\n{source}\n````")
        printed = "".join("".join(output.get("text", [])) for output in cell["outputs"])
        if printed:
            parts.append(f"````text\n{printed.rstrip()}\n````")
    return "\n\n".join(parts) + "\n"


def reference() -> dict[str, str]:
    """The pages of the reference, by their place in the site."""
    library = [f"{module}.{name}" for module, names in LIBRARY.items() for name in names]
    return {
        "reference/command-line.md": command_line(),
        "reference/fields.md": fields(),
        "reference/python.md": api(
            "Python", "`import dtm` has these names.", (f"dtm.{name}" for name in PYTHON)
        ),
        "reference/library.md": api(
            "Library functions", "For [your own loop](../own-loop.md): no trainer, no configuration.", library
        ),
        "reference/interfaces.md": api(
            "Interfaces",
            "What [your own parts](../extending.md) implement, and the records they pass.",
            INTERFACES,
        ),
        "reference/configuration.md": api(
            "Configuration",
            "Sections of a run's configuration. Every field is a flag: `tilt.step` is `--tilt.step`.",
            (f"dtm.config.{name}" for name in SECTIONS),
        ),
    }


def api(title: str, intro: str, names: Iterable[str]) -> str:
    """A page of docstrings."""
    return f"# {title}\n\n{intro}\n\n" + "\n\n".join(f"::: {name}" for name in names) + "\n"


def command_line() -> str:
    """The help of every command, as it is printed."""
    from dtm.cli import COMMANDS
    from dtm.cli.parse import first_line

    parts = [
        "# Command line\n\nThe help of each command, as it prints it.",
        block("dtm --help", printed(["--help"])),
    ]
    for name, command in COMMANDS.items():
        parts.append(f"## dtm {name}\n\n{first_line(command.__doc__)}")
        parts.append(block(f"dtm {name} --help", printed([name, "--help"])))
    return "\n\n".join(parts) + "\n"


def fields() -> str:
    """All fields of a maze run and of a language run, as the help shows them."""
    parts = [
        "# Fields of a run\n\nEvery field of a configuration is a flag. `dtm train RECIPE --help all`\n"
        "prints them for your recipe and method."
    ]
    for recipe, about in (
        ("maze-small", "A model from scratch"),
        ("llada-custom", "A language model with LoRA"),
    ):
        parts.append(f"## {about}: {recipe}")
        parts.append(block(f"dtm train {recipe} --help all", printed(["train", recipe, "--help", "all"])))
    return "\n\n".join(parts) + "\n"


def block(command: str, text: str) -> str:
    """A command and what it prints."""
    return f"```text\n$ {command}\n{text.rstrip()}\n```"


def printed(arguments: list[str]) -> str:
    """What a command prints at a fixed width."""
    from dtm.cli import main

    before, out = os.environ.get("COLUMNS"), io.StringIO()
    os.environ["COLUMNS"] = "84"
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main(arguments)
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return out.getvalue()
