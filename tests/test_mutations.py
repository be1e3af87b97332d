"""The table of mutations: every entry still applies, and names tests that exist; none is run here."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def mutate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "benchmarks" / "mutate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up annotations
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def source(tmp_path) -> Path:
    """A copy of a package with one file."""
    (tmp_path / "dtm").mkdir()
    (tmp_path / "dtm" / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    return tmp_path


def change(mutate, old: str, new: str = "a - b"):
    return mutate.Mutation("loop", "a sum is a difference", "sums.py", old, new, ("tests/test_x.py",))


def test_every_mutation_applies_exactly_once_and_leaves_python(mutate):
    table = mutate.read_table()
    assert len(table) >= 77
    assert [name for name, count in Counter(m.name for m in table).items() if count > 1] == []
    for mutation in table:
        text = (ROOT / "src" / "dtm" / mutation.file).read_text(encoding="utf-8")
        assert text.count(mutation.old) == 1, f"{mutation.name}: update its text in mutations.yaml"
        compile(text.replace(mutation.old, mutation.new), mutation.file, "exec")


def test_every_package_of_the_method_has_mutations(mutate):
    found = Counter(mutation.package for mutation in mutate.read_table())
    for package in ("losses", "masking", "methods", "loop", "evaluation", "comparison"):
        assert found[package] >= 10


def test_every_mutation_names_tests_that_exist(mutate):
    for mutation in mutate.read_table():
        for argument in mutation.tests:
            file, _, name = argument.partition("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {name.partition('[')[0] or 'test_'}" in text, f"{mutation.name}: {argument}"


def test_a_mutation_is_applied_and_reverted(mutate, source):
    mutation = change(mutate, "a + b")
    before = mutation.apply(source)
    assert (source / "dtm" / "sums.py").read_text() == "def add(a, b):\n    return a - b\n"
    mutation.revert(source, before)
    assert (source / "dtm" / "sums.py").read_text() == "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize("old", ["a * b", "a"])
def test_text_that_is_not_there_exactly_once_is_refused(old, mutate, source):
    with pytest.raises(mutate.MutationError, match="instead of once"):
        change(mutate, old).apply(source)


def test_killed_and_surviving_mutations_are_counted_by_package(mutate, source, monkeypatch, capsys):
    """The tests pass without a mutation, and notice the first one alone."""
    noticed = change(mutate, "a + b")
    missed = mutate.Mutation("masking", "a name", "sums.py", "add", "sum_of", ("tests/test_x.py",))

    def passes(copy, tests, limit=None):
        return "a + b" in (copy / "dtm" / "sums.py").read_text()

    monkeypatch.setattr(mutate, "SOURCE", source)
    monkeypatch.setattr(mutate, "passes", passes)
    killed = mutate.run([noticed, missed])
    assert killed == {"a sum is a difference": True, "a name": False}
    found = mutate.report([noticed, missed], killed)
    assert (found["mutations"], found["killed"], found["survivors"]) == (2, 1, ["a name"])
    assert found["packages"]["loop"] == {"mutations": 1, "killed": 1, "share": 1.0}
    assert found["packages"]["masking"]["share"] == 0.0
    assert (source / "dtm" / "sums.py").read_text() == "def add(a, b):\n    return a + b\n"
    assert "SURVIVED" in capsys.readouterr().out


def test_tests_that_fail_without_a_mutation_are_an_error(mutate, source, monkeypatch):
    monkeypatch.setattr(mutate, "SOURCE", source)
    monkeypatch.setattr(mutate, "passes", lambda copy, tests, limit=None: False)
    with pytest.raises(mutate.MutationError, match="fail without a mutation"):
        mutate.run([change(mutate, "a + b")])
