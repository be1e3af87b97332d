"""Methods whose likelihood is that of one decoder: what happens where rollouts are drawn by another."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from dtm.config import RunConfig, configure_method
from dtm.errors import ConfigError, DtmWarning
from dtm.loop.assemble import assemble
from dtm.loop.registry import check_settings


def drawn_by(start: RunConfig, method: str, settings: dict, **decoding) -> RunConfig:
    return replace(
        start, method=configure_method(method, **settings), decoding=replace(start.decoding, **decoding)
    )


@pytest.mark.parametrize("resolve", [assemble, check_settings])
def test_agrpo_refuses_another_temperature_than_the_decoders(resolve, tiny):
    config = drawn_by(tiny, "agrpo", {}, temperature=0.7)
    with pytest.raises(ConfigError, match=r"decoding\.temperature 0\.7.*--method\.temperature 0\.7"):
        resolve(config)
    resolve(drawn_by(tiny, "agrpo", {"temperature": 0.7}, temperature=0.7))


def test_agrpo_refuses_a_decoder_that_samples_nothing(tiny):
    with pytest.raises(ConfigError, match=r"decoding\.temperature 0 samples none: add --decoding"):
        assemble(drawn_by(tiny, "agrpo", {}, temperature=0.0))


@pytest.mark.parametrize(
    ("decoding", "flags"),
    [
        ({"block": None}, "add --decoding.block 1"),
        ({"block": 4, "temperature": 0.6}, "add --decoding.block 1 --decoding.temperature 1"),
    ],
)
def test_just_grpo_warns_where_rollouts_are_not_drawn_left_to_right(decoding, flags, tiny):
    config = drawn_by(tiny, "just-grpo", {}, **decoding)
    with pytest.warns(DtmWarning, match="gradient is not that of the reward") as caught:
        assemble(config)
    assert f"{flags} (a block-causal model keeps its own block)" in str(caught[0].message)


def test_a_fitting_decoder_and_a_finished_run_are_not_warned_about(tiny):
    with warnings.catch_warnings():
        warnings.simplefilter("error", DtmWarning)
        assemble(drawn_by(tiny, "just-grpo", {}, block=1))
        assemble(drawn_by(tiny, "just-grpo", {}, block=4), opened=True)
        assemble(drawn_by(tiny, "agrpo", {}, temperature=0.7), opened=True)
