"""Student, teacher and average: what each of them is after a step and after a phase."""

from __future__ import annotations

import pytest
import torch

from dtm.models import Policy
from dtm.verify.tabular import Tabular


def policy(ema: float | None) -> Policy:
    return Policy(Tabular(torch.zeros(9, 2, 2)), ema)


def set_student(policy: Policy, value: float) -> None:
    with torch.no_grad():
        policy.student.table.fill_(value)


def values(*models) -> list[float]:
    return [model.table.unique().item() for model in models]


def test_the_average_follows_by_the_share_it_forgets():
    models = policy(ema=0.75)
    set_student(models, 8.0)
    models.track()
    assert values(models.student, models.teacher, models.average) == [8, 0, 2]
    models.track()
    assert values(models.average) == [3.5]  # 0.75 · 2 + 0.25 · 8


def test_promotion_makes_every_model_the_average():
    models = policy(ema=0.75)
    set_student(models, 8.0)
    models.track()
    models.promote()
    assert values(models.student, models.teacher, models.average) == [2, 2, 2]
    set_student(models, 5.0)  # and they are still three models
    assert values(models.teacher, models.average) == [2, 2]


def test_without_an_average_the_student_is_promoted():
    models = policy(ema=None)
    set_student(models, 8.0)
    models.track()
    assert values(models.teacher) == [0]
    models.promote()
    assert values(models.student, models.teacher) == [8, 8]
    assert models.average is None


@pytest.mark.parametrize("ema", [None, 0.5])
def test_only_the_student_learns(ema):
    models = policy(ema)
    assert all(parameter.requires_grad for parameter in models.student.parameters())
    for model in filter(None, (models.teacher, models.average)):
        assert not any(parameter.requires_grad for parameter in model.parameters())
