"""Configurations of release 0.1: converted on reading, and never continued."""

from __future__ import annotations

import shutil

import pytest
import yaml

import dtm
from dtm.config import RunConfig, configure_method
from dtm.config.serialise import load_yaml
from dtm.errors import CheckpointError, DtmWarning

OLD = {
    "objective": {
        "name": "c-dtm",
        "control_variate": "one",
        "guard": False,
        "after_end": False,
        "spg": {"draws": 2},
        "wd1": {"psi": 1.0},
    },
    "tilt": {"step": 2.0, "final": 6.0, "absorbed": 9.0, "patience": 3},
    "evaluation": {"prompts": 7},
}


def read(tmp_path, data) -> RunConfig:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.warns(DtmWarning, match=r"is a configuration of dtm 0\.1"):
        return load_yaml(path, RunConfig())


def test_the_fields_of_c_dtm_become_those_of_its_method(tmp_path):
    config = read(tmp_path, OLD)
    assert config.method == configure_method("c-dtm", control_variate="one", guard=False, after_end=False)
    assert (config.tilt.step, config.tilt.final, config.tilt.absorbed) == (2.0, 6.0, "never")
    assert (config.evaluation.patience, config.evaluation.prompts) == (3, 7)
    assert config.pretrain.after_end is False


@pytest.mark.parametrize("final", [90.0, "9e1"])
def test_a_baselines_final_tilt_becomes_its_iterations(final, tmp_path):
    old = {"objective": {"name": "spg", "spg": {"draws": 4}, "guard": True}, "tilt": {"final": final}}
    config = read(tmp_path, old)
    assert config.method == configure_method("spg", draws=4)
    assert config.iterate.iterations == 90


def test_a_file_of_today_is_read_without_a_notice(tmp_path, recwarn):
    (tmp_path / "config.yaml").write_text("method: {name: spg, draws: 3}\n")
    assert load_yaml(tmp_path / "config.yaml", RunConfig()).method == configure_method("spg", draws=3)
    assert not [warning for warning in recwarn if issubclass(warning.category, DtmWarning)]


def test_a_run_of_0_1_is_evaluated_and_not_continued(finished, tmp_path):
    folder = tmp_path / "old"
    shutil.copytree(finished.path, folder)
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    saved["objective"] = saved.pop("method")
    (folder / "config.yaml").write_text(yaml.safe_dump(saved))
    run = dtm.Run.open(folder)
    with pytest.warns(DtmWarning, match="dtm 0.1"):
        assert run.evaluate().measures == finished.evaluate().measures
    with pytest.raises(CheckpointError, match=r"was started by dtm 0\.1 and cannot be resumed"):
        dtm.train("maze-small", out=folder, resume=True)
