"""The documentation site: every page has a place in it, links lead to it, and it builds without a warning."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dtm.cli import COMMANDS

ROOT = Path(__file__).parents[1]
NAV = re.findall(
    r"^\s+- .*?: ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
)
MADE = ("index.md", "reference/", "project/")
"""Pages that benchmarks/website.py makes."""


@pytest.fixture
def website(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("website")
    sys.modules.pop("website")


def test_the_navigation_has_every_page_once():
    written = [page for page in NAV if not page.startswith(MADE)]
    assert sorted(written) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_pages_that_are_made_are_in_the_navigation(website):
    made = {*website.reference(), *website.COPIED.values()}
    assert made == {page for page in NAV if page.startswith(MADE)}


def test_the_places_of_files_in_the_site(website):
    assert doctest.testmod(website) == (0, 2)


def test_links_lead_to_the_places_of_their_targets(website):
    text = "[a](docs/faq.md#shift) ![b](results/x.png) [c](https://d.org/e)\n\n```\n[f](docs/g.md)\n```\n"
    assert website.rewritten(text, "README.md", "index.md") == (
        "[a](faq.md#shift) ![b](files/results/x.png) [c](https://d.org/e)\n\n```\n[f](docs/g.md)\n```\n"
    )
    assert website.rewritten("[a](../examples/b.py)", "docs/c.md", "c.md") == "[a](files/examples/b.py.md)"
    changed = website.rewritten("[a](docs/b.md)", "CHANGELOG.md", "project/changelog.md")
    assert changed == "[a](../b.md)"


def test_the_reference_of_the_command_line_is_the_help_of_each_command(website):
    page = website.command_line()
    for name in COMMANDS:
        assert f"$ dtm {name} --help\nusage: dtm {name}" in page
    assert "--tilt.step" in website.fields()


def test_a_notebook_is_shown_with_what_it_printed(website):
    page = website.shown(ROOT / "examples" / "tour.ipynb")
    assert page.startswith("# A tour of dtm")
    assert "````text\nheld-out reward" in page


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocstrings_handlers.python", reason="needs the extra docs: make docs")
    pytest.importorskip("material", reason="needs the extra docs: make docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    search = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    settings = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": search}
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    built = [path.read_text(encoding="utf-8") for path in (tmp_path / "site").glob("*.html")]
    assert built
    assert not any("$$" in text for text in built), "the site has no extension for formulas"
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "assets/denoising.gif" in page
    loaded = re.findall(r"""<(?:script|link|img)[^>]+(?:src|href)=["']?(https?://[^"'\s>]+)""", page)
    assert not loaded, "a page must not load anything from the network"
