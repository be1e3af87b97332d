"""Configurations: to YAML and back, and every mistake named with its place and a remedy."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
from dataclasses import replace
from itertools import pairwise

import pytest

import dtm
from dtm import config as sections
from dtm.config import EvaluationConfig, OptimizerConfig, RunConfig, TiltConfig
from dtm.config.serialise import differences, load_yaml, to_yaml, update
from dtm.errors import ConfigError
from dtm.recipes import RECIPES

CONFIG_MODULES = [f"{sections.__name__}.{found.name}" for found in pkgutil.iter_modules(sections.__path__)]
METHOD_MODULES = [path.partition(":")[0] for path in sections.METHODS.values()]


def loaded(tmp_path, text: str) -> RunConfig:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return load_yaml(path, RunConfig())


def leaves(value, place=""):
    if not dataclasses.is_dataclass(value):
        return {place: value}
    return {
        name: leaf
        for f in dataclasses.fields(value)
        for name, leaf in leaves(getattr(value, f.name), f"{place}.{f.name}".lstrip(".")).items()
    }


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_yaml(name, tmp_path):
    config = dtm.recipe(name)
    assert config.recipe == name
    again = loaded(tmp_path, to_yaml(config))
    assert again == config
    assert {k: type(v) for k, v in leaves(again).items()} == {k: type(v) for k, v in leaves(config).items()}


@pytest.mark.parametrize(
    ("written", "meant"), [("true", "all"), ("false", "none"), ("3", 3), ("auto", "auto")]
)
def test_recomputed_blocks_are_read_as_earlier_runs_wrote_them_too(written, meant, tmp_path):
    assert loaded(tmp_path, f"model: {{recompute: {written}}}").model.recompute == meant


def test_unusual_values_survive_yaml(tmp_path):
    config = RunConfig(
        seed=7,
        precision="bfloat16",
        tilt=TiltConfig(
            step="auto",
            final=1e-7,
        ),
        evaluation=EvaluationConfig(patience=3),
        optimizer=OptimizerConfig(lr=1e-5, betas=(0.5, 0.75), ema=0.999, micro_batch=3),
    )
    assert loaded(tmp_path, to_yaml(config)) == config
    for block in (4, "any-order", "decoding"):
        other = replace(config, method=replace(config.method, block=block))
        assert loaded(tmp_path, to_yaml(other)) == other


def test_a_file_changes_the_fields_it_names_and_no_others(tmp_path):
    config = loaded(tmp_path, "seed: 3\ntilt:\n  final: 4\noptimizer: {betas: [0.8, 0.9]}\n")
    assert list(differences(RunConfig(), config)) == [
        "seed: 0 → 3",
        "tilt.final: 10.0 → 4.0",
        "optimizer.betas: [0.9, 0.99] → [0.8, 0.9]",
    ]


def test_scientific_notation_is_a_number(tmp_path):
    """YAML 1.1 reads 3e-4, without a point, as text."""
    assert loaded(tmp_path, "optimizer:\n  lr: 3e-4\n").optimizer.lr == 3e-4


def test_equal_configurations_do_not_differ():
    assert list(differences(dtm.recipe("maze-small"), dtm.recipe("maze-small"))) == []


def test_released_recipes_differ_in_what_the_released_configurations_say():
    found = {
        task: list(differences(dtm.recipe(f"llada-{task}"), dtm.recipe(f"llada-{task}-released")))[1:]
        for task in ("sudoku", "countdown")
    }
    assert found["sudoku"] == [
        "adapter.dropout: 0.0 → 0.05",
        "optimizer.clip_norm: 2.0 → 1.0",
        f"optimizer.floor: 0.0 → {1e-6 / 3e-6}",
    ]
    assert found["countdown"] == [
        "task.reward: 'paper' → 'released'",
        "adapter.dropout: 0.0 → 0.05",
        "tilt.max_steps: 800 → 1200",
        "replay.prompts: 80 → 40",
        f"optimizer.floor: 0.0 → {2e-6 / 4e-6}",
        "optimizer.ema: None → 0.95",
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tilt:\n  stepp: 1.0", "run.yaml: tilt: no field 'stepp'. Did you mean 'step'?"),
        ("tlit: {}", "run.yaml: no field 'tlit'. Did you mean 'tilt'?"),
        ("tilt: 3", "run.yaml: tilt is a section: set its fields, got 3"),
        ("tilt:\n  step: fast", "tilt: step must be a number or 'auto', got 'fast'"),
        ("tilt:\n  max_steps: 2.5", "tilt: max_steps must be a whole number, got 2.5"),
        ("evaluation:\n  patience: soon", "patience must be a whole number or null, got 'soon'"),
        ("method:\n  guard: 1", "method: guard must be true or false, got 1"),
        ("seed: true", "seed must be a whole number, got True"),
        ("precision: float16", "precision must be 'float32' or 'bfloat16' or 'auto', got 'float16'"),
        ("optimizer:\n  betas: [0.9]", "optimizer: betas must be a list of 2 values, got [0.9]"),
        ("- 1\n- 2", "must hold a mapping of fields"),
        ("tilt: [", "is not valid YAML"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_place(text, named, tmp_path):
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    assert named in str(caught.value)


def test_a_file_in_another_encoding_is_named(tmp_path):
    (tmp_path / "run.yaml").write_bytes("recipe: café".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"run\.yaml is damaged: not UTF-8 text"):
        load_yaml(tmp_path / "run.yaml", RunConfig())


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no configuration file at .*nowhere\.yaml"):
        load_yaml(tmp_path / "nowhere.yaml", RunConfig())


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("tilt", "final", 0.0),
        ("tilt", "step", 0.0),
        ("tilt", "ess", 1.0),
        ("tilt", "step_cap", 0.0),
        ("tilt", "absorbed", 0.0),
        ("tilt", "max_steps", 0),
        ("tilt", "absorbed", 1.1),
        ("iterate", "iterations", 0),
        ("evaluation", "patience", 0),
        ("replay", "prompts", 0),
        ("replay", "completions", 0),
        ("replay", "priority", 1.0),
        ("replay", "refresh_every", 0),
        ("replay", "refresh_fraction", 0.0),
        ("optimizer", "lr", 0.0),
        ("optimizer", "clip_norm", 0.0),
        ("optimizer", "batch", 0),
        ("optimizer", "micro_batch", 0),
        ("optimizer", "warmup", -0.1),
        ("optimizer", "decay", 0.99),
        ("optimizer", "ema", 1.0),
        ("checkpoint", "every", 0),
        ("checkpoint", "keep", 0),
        ("evaluation", "prompts", 0),
        ("evaluation", "completions", 0),
        ("reward", "timeout", 0.0),
        ("pretrain", "steps", 0),
    ],
)
def test_a_value_that_cannot_run_is_refused_under_its_own_name(section, field, value):
    with pytest.raises(ConfigError) as caught:
        update(RunConfig(), {section: {field: value}}, where="test")
    assert f"{section}.{field.replace('_', '-')}" in str(caught.value)


def test_an_unknown_recipe_names_its_neighbour():
    with pytest.raises(ConfigError, match=r"no recipe 'maze-smal'\. Did you mean 'maze-small'"):
        dtm.recipe("maze-smal")


@pytest.mark.parametrize("module", [*CONFIG_MODULES, *METHOD_MODULES])
def test_every_field_is_documented(module):
    """A text right below each field, which is what --help shows; sections have their class's."""
    source = inspect.getsource(importlib.import_module(module))
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    classes = [node for node in classes if node.name.endswith("Config")]
    for section in classes:
        assert ast.get_docstring(section)
        for node, below in pairwise([*section.body, None]):
            documented = isinstance(node, ast.AnnAssign) and "default_factory" not in ast.unparse(node)
            if documented and not ast.unparse(node).startswith("name: str ="):
                assert isinstance(below, ast.Expr), f"{section.name}.{ast.unparse(node.target)}"


@pytest.mark.parametrize(("batch", "micro_batch", "rows"), [(8, None, 8), (8, 3, 3), (4, 64, 4)])
def test_a_pass_has_at_most_the_rows_of_a_batch(batch, micro_batch, rows):
    assert OptimizerConfig(batch=batch, micro_batch=micro_batch).rows == rows
