"""The pages a newcomer reads: links lead somewhere, command lines parse, named files exist."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from dtm.api import measure
from dtm.cli import COMMANDS
from dtm.cli import help as cli_help
from dtm.cli.adapt import parsed
from dtm.cli.parse import refuse_shape, with_flags
from dtm.comparison.settings import contestants, parse_names, parse_set
from dtm.config import METHODS, EvaluationConfig
from dtm.errors import DtmError
from dtm.loop.assemble import assemble
from dtm.recipes import RECIPES, recipe

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""Pages that describe the package as it is; the changelog also names what was."""


MENTION = re.compile(r"dtm [a-z]+ (--[a-z-]+|RECIPE .*)")


def commands(text: str) -> list[str]:
    """Command lines of fenced blocks and of inline code; inline mentions of an option alone are left out."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    fenced = "\n".join(code for language, code in fences if language in ("", "sh", "text"))
    joined = re.sub(r"\\\n\s*", " ", fenced)
    lines = [part.strip() for line in joined.splitlines() for part in line.split(";")]
    inline = [line for line in re.findall(r"`(dtm [^`]+)`", text) if not MENTION.fullmatch(line)]
    found = [re.split(r"\s+#|\s+>", line)[0].strip() for line in [*lines, *inline]]
    return [line for line in found if re.match(r"dtm [a-z]+ ", line) and "…" not in line.replace('"…"', "")]


DISTRIBUTED = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")


def test_the_slurm_script_is_valid_bash_and_calls_a_command_that_parses():
    (script,) = re.findall(r"^```bash\n(.*?)^```", DISTRIBUTED, re.DOTALL | re.MULTILINE)
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    require_torchrun(script)


def test_the_skypilot_file_is_valid_yaml_whose_script_is_valid_bash():
    (text,) = re.findall(r"^```yaml\n(.*?)^```", DISTRIBUTED, re.DOTALL | re.MULTILINE)
    task = yaml.safe_load(text)
    assert task.keys() == {"resources", "num_nodes", "setup", "run"}
    assert task["num_nodes"] == 2
    checked = subprocess.run(["bash", "-n"], input=task["run"], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    require_torchrun(task["run"])


def require_torchrun(script: str) -> None:
    """Parse the options of torchrun with its own parser, and those of `dtm train` with ours."""
    from torch.distributed.run import get_args_parser

    joined = re.sub(r"\\\n\s*", " ", script)
    (line,) = (line for line in joined.splitlines() if "torchrun " in line)
    own = re.sub(r'"?\$\w+(:\d+)?"?', "2", line.split("torchrun ")[1])
    options = get_args_parser().parse_args(shlex.split(own))
    assert options.module
    assert options.training_script == "dtm"
    command, name, *flags = options.training_script_args
    assert (command, "--resume", "auto") == ("train", *flags[-2:])
    where = flags.index("--out")
    with_flags(recipe(name), [*flags[:where], *flags[where + 2 : -2]], "dtm train")


COMMAND_LINES = sorted({(page.name, line) for page in CURRENT for line in commands(page.read_text("utf-8"))})


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    """Command lines name files from the root of the repository."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_within_the_repository_resolves(page):
    for target, anchor in re.findall(r"\]\(([^)#]*?)(#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        found = page.parent / target if target else page
        assert found.exists(), f"{page.name} links to {target}"
        if anchor and found.suffix == ".md":
            assert anchor[1:] in anchors(found), f"{page.name} links to {target}{anchor}"


def test_the_reward_of_the_pages_is_one_and_has_something_to_teach():
    pages = [ROOT / "README.md", ROOT / "docs" / "quickstart.md", ROOT / "docs" / "own-reward.md"]
    examples = [
        re.search(r"^```python\n(MIDDLE = .*?)^```", page.read_text("utf-8"), re.M | re.S) for page in pages
    ]
    assert len({example[1] for example in examples}) == 1
    example = examples[0]
    names: dict = {}
    exec(example[1], names)
    assembly = assemble(recipe("maze-small"), reward=names["reward"])
    base = measure(assembly, assembly.base, EvaluationConfig(prompts=16, completions=2)).measures["reward"]
    assert 0.1 < base < 0.7, "a base that earns nothing or everything learns nothing"


def test_the_readme_is_short_and_counts_the_methods_right():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) < 120
    assert int(re.search(r"one of (\d+) methods", text)[1]) == len(METHODS)


def test_no_page_has_a_formula_that_the_site_would_show_as_source():
    for page in PAGES:
        assert "$$" not in page.read_text("utf-8"), f"{page.name}: write the formula as plain text in a fence"


def test_the_loop_of_the_page_raises_the_reward():
    text = (ROOT / "docs" / "own-loop.md").read_text("utf-8")
    names: dict = {}
    exec(re.search(r"^```python\n(import copy.*?)^```", text, re.M | re.S)[1], names)
    assert names["after"].mean() > names["before"].mean() + 0.15


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub turns them into anchors."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_there_are_command_lines_to_check():
    assert len(COMMAND_LINES) > 40


@pytest.mark.parametrize(("page", "line"), COMMAND_LINES, ids=lambda text: text)
def test_every_command_line_of_the_documentation_parses(page, line, monkeypatch):
    name, arguments = shlex.split(line)[1], shlex.split(line)[2:]
    assert name in COMMANDS, f"{page}: {line}"
    if name in ("train", "pretrain", "compare", "sweep"):
        check_flags(name, arguments)
    elif name == "adapt":
        assert parsed(arguments)[1].source == arguments[0]
    else:
        parser = parser_of(name, monkeypatch)
        parser.parse_args(arguments)


RUN = ("--config", "--out", "--processes", "--track")
COMPARE = (
    *("--methods", "--budget", "--seeds", "--jobs", "--processes", "--out", "--set", "--settings"),
    *("--trials", "--also", "--tilt", "--track"),
)
SWEEP = ("--vary", "--seeds", "--jobs", "--processes", "--out", "--track")


def check_flags(name: str, arguments: list[str]) -> None:
    """Parse the options of a command that starts runs, and then its flags of the configuration."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in {"compare": COMPARE, "sweep": SWEEP}.get(name, RUN):
        parser.add_argument(option, action="append")
    for option in ("--resume", "--dry-run", "--tune"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("--runs", nargs="+")
    parser.add_argument("recipe", nargs="?")
    options, flags = parser.parse_known_args(arguments)
    if options.runs:
        return
    assert options.recipe in RECIPES, f"no recipe {options.recipe}"
    config, section = recipe(options.recipe), cli_help.requested(flags)
    if section is not None:
        section = "" if section == "SECTION" else section
        flags = [flag for flag in flags if flag not in ("--help", "SECTION", section)]
        assert cli_help.page(with_flags(config, flags, "dtm"), "train", "", "", section)
        return
    if name == "train":
        refuse_shape(flags)
    config = with_flags(config, flags, "dtm")
    if name == "compare":
        names = parse_names((options.methods or ["c-dtm,spg"])[0])
        assert contestants(config, names, [parse_set(text) for text in options.set or []])


def parser_of(name: str, monkeypatch):
    """The parser that a command makes, caught when it is first asked to parse."""

    class Caught(Exception):
        pass

    def catch(self, *_, **__):
        raise Caught(self)

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", catch)
        patch.setattr(argparse.ArgumentParser, "parse_known_args", catch)
        with pytest.raises(Caught) as caught:
            COMMANDS[name](["--nothing"])
    return caught.value.args[0]


def test_a_flag_that_does_not_exist_is_noticed():
    with pytest.raises((DtmError, SystemExit)):
        check_flags("train", ["maze-small", "--objective", "spg"])
    with pytest.raises((DtmError, SystemExit)):
        check_flags("train", ["maze-small", "--tilt.stepp", "1"])


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: page.name)
def test_files_and_modules_named_in_the_text_exist(page):
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:tests|examples|benchmarks|src/dtm)/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}"
    packages = (
        "config|loop|runs|capacity|engine|methods|masking|models|tasks|steering|evaluation|report|recipes"
        "|verify|cli"
    )
    for path in re.findall(rf"`((?:{packages})/[\w/]+\.py)", text):
        assert (ROOT / "src" / "dtm" / path).exists(), f"{page.name} names {path}"
