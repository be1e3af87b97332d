"""What an objective may have of its own, and how it is said."""

from __future__ import annotations

import pytest

import dtm
from dtm.comparison.settings import (
    changed,
    contestants,
    own_settings,
    parse_names,
    parse_set,
    read_settings,
    with_method,
)
from dtm.config import METHODS
from dtm.errors import ConfigError

START = dtm.recipe("maze-small")


def test_methods_are_named_with_commas():
    assert parse_names("c-dtm, spg,wd1") == ["c-dtm", "spg", "wd1"]
    assert set(parse_names(",".join(METHODS))) == set(METHODS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spgg", "Did you mean 'spg'"),
        ("spg,spg", "twice"),
        ("", "--methods is empty"),
        (",", "--methods is empty"),
    ],
)
def test_a_wrong_name_is_answered(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_names(text)


def test_a_field_is_one_of_the_configuration_or_of_the_objective_itself():
    given = map(
        parse_set, ["spg.optimizer.lr=3e-5", "spg.draws=4", "c-dtm.tilt.step=2", "c-dtm.control-variate=one"]
    )
    configs = contestants(START, ["c-dtm", "spg"], list(given))
    spg, ours = configs["spg"], configs["c-dtm"]
    assert (spg.optimizer.lr, spg.method.draws, spg.method.name) == (3e-5, 4, "spg")
    assert (ours.tilt.step, ours.method.control_variate, ours.optimizer.lr) == (
        2.0,
        "one",
        START.optimizer.lr,
    )


def test_a_file_says_the_same(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(
        "spg: {optimizer: {lr: 3e-5}, draws: 4}\nc-dtm:\n  tilt: {step: 2}\n  control-variate: one\n"
    )
    flags = ["spg.optimizer.lr=3e-5", "spg.draws=4", "c-dtm.tilt.step=2", "c-dtm.control-variate=one"]
    names = ["c-dtm", "spg"]
    assert contestants(START, names, read_settings(path)) == contestants(
        START, names, [*map(parse_set, flags)]
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spg", "write METHOD.FIELD=VALUE"),
        ("spg.draws", "write METHOD.FIELD=VALUE"),
        ("spg.draws=", "write METHOD.FIELD=VALUE"),
        ("spg.draw=4", "Did you mean 'draws'"),
        ("spg.draws=many", "must be a whole number"),
        ("spg.draws=0", "method.draws must be at least 1"),
        ("wd1.psi=2", "wd1 has settings, but is not compared"),
        ("spg.decoding.temperature=0.5", "set it with --decoding.temperature"),
        ("spg.replay.completions=4", "set it with --replay.completions"),
        ("spg.evaluation.patience=3", "set it with --evaluation.patience"),
        ("spg.budget=5m", "set it with --budget"),
    ],
)
def test_a_wrong_setting_is_refused_in_words(text, said):
    with pytest.raises(ConfigError) as caught:
        contestants(START, ["c-dtm", "spg"], [parse_set(text)])
    assert said in str(caught.value)


def test_fields_that_must_fit_each_other_are_changed_together():
    given = [
        parse_set("c-dtm.tilt.step=50"),
        parse_set("c-dtm.tilt.final=100"),
        parse_set("c-dtm.tilt.step=60"),
    ]
    assert contestants(START, ["c-dtm"], given)["c-dtm"].tilt.step == 60


def test_a_file_without_sections_is_refused(tmp_path):
    (tmp_path / "settings.yaml").write_text("spg: 3\n")
    with pytest.raises(ConfigError, match="spg must be a section"):
        read_settings(tmp_path / "settings.yaml")


def test_a_reader_is_told_what_the_objective_reads_and_no_more():
    spg = own_settings(changed(with_method(START, "spg"), {"draws": 4}))
    assert spg["method.draws"] == 4
    assert spg["optimizer.lr"] == START.optimizer.lr
    assert all(name.startswith(("method.", "iterate.", "optimizer.lr")) for name in spg)
    ours = own_settings(START)
    assert ours["tilt.step"] == START.tilt.step
    assert not any(name.startswith("iterate") for name in ours)
