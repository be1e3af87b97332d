"""Dependencies between the packages of dtm point one way (design.md, "Layout").

The table differs from the design's in one place: recipes are below api. They are values of `dtm.config` and
import nothing else, and `dtm.train("maze-small")` and a sweep look them up by name. Packages of one layer may
import each other, without cycles. Imports count at the top of a module and in functions; those under
`if TYPE_CHECKING` do not, nor do import paths in strings (`dtm.config.METHODS`).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import dtm

ROOT = Path(dtm.__file__).parent
LAYERS = [
    {
        *(
            "records",
            "padding",
            "losses",
            "tilts",
            "masking",
            "random",
            "errors",
            "loading",
            "workers",
            "files",
            "writing",
        ),
        "distributed",
    },
    {"models", "engine", "tasks", "config"},
    {"methods", "steering", "evaluation", "capacity", "runs", "recipes"},
    {"loop", "pretraining", "report"},
    {"api", "comparison"},
    {"cli"},
    {"__init__", "__main__"},
]
LEVEL = {package: level for level, layer in enumerate(LAYERS) for package in layer}
VERIFY = "verify"
"""Beside the layers: it may import everything up to methods."""
IMPORTERS = {VERIFY: {"cli"}}
"""Packages that only these may import."""
PRIVATE = {
    ("workers.py", "os._exit"),  # a forked process must not run the exit handlers of its parent
    ("tasks/replies.py", "os._exit"),
    ("models/fp8.py", "torch._scaled_mm"),  # products in FP8 with a scale per row have no public name yet
    ("models/transformer.py", "torch._dynamo"),  # the limit of recompilations can be set nowhere else
}
"""Names of other libraries that begin with an underscore, and why they are used."""
SOURCES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in ROOT.rglob("*.py")
}
PACKAGES = sorted({package for package in (path.split("/")[0].removesuffix(".py") for path in SOURCES)})


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes, except those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from nodes(node)


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of what a module imports, functions and classes included."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def edges() -> set[tuple[str, str, str]]:
    """(file, its package, a package that it imports)."""
    found = set()
    for path, tree in SOURCES.items():
        own = path.split("/")[0].removesuffix(".py")
        for name in imported(tree):
            first, _, rest = name.partition(".")
            other = rest.split(".")[0]
            if first == "dtm" and other in PACKAGES and other != own:
                found.add((path, own, other))
    return found


EDGES = edges()


def test_every_package_has_a_layer():
    assert set(PACKAGES) == LEVEL.keys() | {VERIFY}


def test_imports_point_to_lower_layers():
    wrong = [
        f"{path} imports {other}"
        for path, own, other in sorted(EDGES)
        if VERIFY not in (own, other) and LEVEL[other] > LEVEL[own]
    ]
    assert not wrong


def test_verify_imports_nothing_above_methods():
    wrong = [path for path, own, other in sorted(EDGES) if own == VERIFY and LEVEL[other] > LEVEL["methods"]]
    assert not wrong


@pytest.mark.parametrize("package", IMPORTERS)
def test_some_packages_are_for_few(package):
    assert {own for _, own, other in EDGES if other == package} <= IMPORTERS[package]


def test_packages_do_not_import_each_other_in_a_circle():
    graph: dict[str, set[str]] = {package: set() for package in PACKAGES}
    for _, own, other in EDGES:
        graph[own].add(other)
    assert len(list(TopologicalSorter(graph).static_order())) == len(PACKAGES)  # raises CycleError


def test_private_names_of_other_libraries_are_few_and_have_a_reason():
    used = set()
    for path, tree in SOURCES.items():
        outside = {name.partition(".")[0] for name in imported(tree)} - {"dtm", "__future__"}
        attributes = (ast.unparse(node) for node in nodes(tree) if isinstance(node, ast.Attribute))
        dotted = {name for name in attributes if re.fullmatch(r"[\w.]+", name)}
        for name in {*imported(tree), *dotted}:
            first, *rest = name.split(".")
            private = [place for place, part in enumerate(rest) if part.startswith("_") and part[:2] != "__"]
            if first in outside and private:
                used.add((path, ".".join([first, *rest[: private[0] + 1]])))
    assert used == PRIVATE


ALONE = """
import importlib, sys
for name in sys.argv[1:]:
    for known in [known for known in sys.modules if known == "dtm" or known.startswith("dtm.")]:
        del sys.modules[known]
    importlib.import_module(name)
"""


def test_each_package_can_be_imported_first():
    """In one fresh interpreter, with all of dtm forgotten before each: torch is imported once."""
    names = [f"dtm.{package}" for package in PACKAGES if not package.startswith("__")]
    done = subprocess.run([sys.executable, "-c", ALONE, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_light_packages_import_no_torch():
    """Help and recipes stay fast."""
    light = (
        "dtm",
        "dtm.config",
        "dtm.recipes",
        "dtm.cli",
        "dtm.errors",
        "dtm.loading",
        "dtm.evaluation.grade",
    )
    code = f"import sys, {', '.join(light)}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "torch was imported"


def test_ranks_are_known_to_distributed_alone():
    """Others use the verbs of a group; none of them imports torch.distributed or asks for a rank."""
    outside = {path: tree for path, tree in SOURCES.items() if not path.startswith("distributed/")}
    imports = [path for path, tree in outside.items() if "torch.distributed" in " ".join(imported(tree))]
    ranks = [
        path
        for path, tree in outside.items()
        for node in nodes(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node).endswith("group.rank")
    ]
    assert not imports
    assert not ranks
