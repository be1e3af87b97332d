"""The shapes of `dtm` are checked in tests: wrong ones are noticed, and functions without arrays are free."""

from __future__ import annotations

import jaxtyping
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

from dtm import losses, tilts
from dtm.models.shape import TransformerConfig
from dtm.records import Rollouts, Weights
from shapes import checked

pytestmark = pytest.mark.skipif(jaxtyping.config.jaxtyping_disable, reason="checks are switched off")


def test_an_argument_of_another_shape_is_noticed():
    assert float(tilts.effective_sample_size(torch.zeros(4))) == pytest.approx(1)
    with pytest.raises(BeartypeCallHintViolation):
        tilts.effective_sample_size(torch.zeros(4, 2))


def test_letters_stand_for_one_size_in_all_arguments():
    with pytest.raises(BeartypeCallHintViolation):
        tilts.peer_mean(torch.zeros(4), torch.zeros(5, dtype=torch.long))


def test_a_result_of_another_shape_is_noticed():
    def halved(x: jaxtyping.Float[torch.Tensor, " N"]) -> jaxtyping.Float[torch.Tensor, " N"]:
        return x[::2]

    with pytest.raises(BeartypeCallHintViolation):
        checked(halved)(torch.zeros(4))


def test_a_record_with_a_field_of_another_kind_is_noticed(make_rollouts):
    drawn = make_rollouts([0.0, 1.0], [0, 0])
    parts = drawn.tensors()
    with pytest.raises(BeartypeCallHintViolation):
        Rollouts(**parts | {"reward": torch.zeros(3)}, tilt=0.0)
    with pytest.raises(BeartypeCallHintViolation):
        Rollouts(**parts | {"group": torch.zeros(2)}, tilt=0.0)


@pytest.mark.parametrize("checks", [tilts.peer_mean, losses.c_dtm_cross_entropy, Weights.__init__])
def test_functions_and_records_with_arrays_are_checked(checks):
    assert hasattr(checks, "__wrapped__")


@pytest.mark.parametrize("plain", [tilts.next_step, TransformerConfig.__init__])
def test_others_are_not(plain):
    assert not hasattr(plain, "__wrapped__")
