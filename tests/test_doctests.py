"""Every example in a docstring of the package is run; a module with one is enrolled by having it."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import dtm

ROOT = Path(dtm.__file__).parent
OPTIONAL = {"bitsandbytes", "datasets", "huggingface_hub", "math_verify", "tokenizers", "transformers"}
MODULES = [
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(ROOT.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name):
    try:
        module = importlib.import_module(name)
        failed, tried = doctest.testmod(module)
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] not in OPTIONAL:
            raise
        pytest.skip(f"{name} needs {problem.name}")
    assert tried > 0, "the examples are not in a docstring"
    assert failed == 0, f"see the output, or run: python -m doctest {module.__file__}"
