"""Objects given in Python: how a run names them, and that nothing leaks from one run into the next."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

import pytest
import torch

import dtm
from dtm.config import IteratingConfig, MethodConfig
from dtm.config.registry import load_method_class
from dtm.errors import ConfigError
from dtm.loop.assemble import assemble
from dtm.masking import Planned, UniformCount
from dtm.methods.advantages import centred
from dtm.methods.spg import SPG, SPGConfig
from dtm.records import Loss
from dtm.runs.bases import GIVEN


@dataclass(frozen=True, kw_only=True)
class PlainConfig(IteratingConfig):
    """Settings that bring a name of their own."""

    name: str = "plain"


class Plain(dtm.Method):
    """Masks and loss alone, as the interface asks for."""

    Config = PlainConfig

    def masks(self, block, end_id):
        return Planned(UniformCount(), end_id)

    def loss(self, policy, states, weights, phase):
        hit = policy.log_pi(states).gather(-1, states.x1[:, None]).squeeze(-1)
        return Loss(-(weights.credit[states.row] * hit).sum() / states.batch_rows, {})


class Louder(Plain):
    """The settings of SPG, another loss."""

    Config = SPGConfig


def weights(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_method_without_credit_gets_the_reward_above_the_groups_mean():
    reward, group = torch.tensor([0.0, 1.0, 0.5, 0.5]), torch.tensor([0, 0, 1, 1])
    assert torch.equal(Plain().credit(reward, group), centred(reward, group))


@pytest.mark.parametrize("method", [Plain(), Louder()])
def test_a_method_is_named_by_its_class_and_not_by_its_settings(method, tiny):
    found = assemble(tiny, method=method).config.method
    assert found.name.endswith(f":{type(method).__name__}")
    assert assemble(tiny, method=SPG()).config.method.name == "spg"


def test_a_config_with_updates_that_the_loop_would_not_read_is_refused(tmp_path):
    (tmp_path / "odd.py").write_text(
        "from dataclasses import dataclass\nimport dtm\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass C(dtm.MethodConfig):\n    updates: int = 3\n\n"
        "class Odd(dtm.Method):\n    Config = C\n"
    )
    with pytest.raises(ConfigError, match=r"derive it from dtm\.config\.IteratingConfig"):
        load_method_class(f"{tmp_path}/odd.py:Odd")
    assert issubclass(load_method_class("c-dtm").Config, MethodConfig)


def test_a_given_model_is_recorded_as_such_and_given_again_to_open_the_run(tiny, tmp_path):
    short = replace(tiny, tilt=replace(tiny.tilt, final=1.0, max_steps=1))
    given = assemble(tiny).base
    run = dtm.train(short, model=given, out=tmp_path / "run")
    assert run.config.model.base == GIVEN
    assert dtm.Run.open(run.path).evaluate().measures == run.evaluate().measures  # its weights are on disk
    with pytest.raises(ConfigError, match=r"Run\.open\(path, model=…\)"):
        dtm.Run.open(run.path).sample(base=True)
    assert dtm.Run.open(run.path, model=assemble(tiny).base).sample(base=True)


def test_one_assembly_trains_twice_alike(tiny, tmp_path):
    assembly = assemble(replace(tiny, tilt=replace(tiny.tilt, final=1.0, max_steps=2)))
    before = weights(assembly.base)
    first = dtm.train(assembly, out=tmp_path / "first")
    assert torch.equal(weights(assembly.base), before)
    second = dtm.train(assembly, out=tmp_path / "second")
    assert torch.equal(weights(first.model), weights(second.model))
    with pytest.raises(ConfigError, match="an Assembly is complete"):
        dtm.train(assembly, method=Plain(), out=tmp_path / "third")


def test_a_finished_run_opens_without_its_base(tiny, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(tiny.model.base, base)
    config = replace(tiny, model=replace(tiny.model, base=str(base)))
    run = dtm.train(replace(config, tilt=replace(config.tilt, final=1.0, max_steps=1)), out=tmp_path / "run")
    shutil.rmtree(base)
    again = dtm.Run.open(run.path)
    assert again.sample(prompts=1)
    with pytest.raises(dtm.DtmError, match="base"):
        again.sample(prompts=1, base=True)


def test_a_pretraining_writes_no_base_down(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = replace(
        tiny, model=replace(tiny.model, base=None), pretrain=replace(tiny.pretrain, steps=2, held_out=8)
    )
    first = dtm.pretrain(config)
    second = dtm.pretrain(config)  # finds the first, and does not name it
    assert first.config.model.base is None
    assert second.config.model.base is None


def test_what_cannot_be_trained_is_refused_with_what_can():
    with pytest.raises(ConfigError, match=r"a recipe's name, a RunConfig or an Assembly, got dict"):
        dtm.train({"recipe": "maze-small"})
    with pytest.raises(
        ConfigError, match=r"got 'my\.py:mine' \(a name is a field: RunConfig\.reward\.function"
    ):
        dtm.train("maze-small", reward="my.py:mine")
