"""The mesh of a run: which processes keep the weights together, and what the plan says about it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from dtm.capacity.preflight import check_memory
from dtm.config import DistributedConfig, RunConfig
from dtm.distributed.sharding import shard_size
from dtm.errors import ConfigError
from dtm.loop.assemble import assemble
from dtm.loop.plan import training_plan
from ranks import each


def test_a_shard_group_is_a_machine_unless_machines_differ_or_have_one_process():
    assert shard_size(None, [4] * 8) == 4
    assert shard_size(None, [3, 3, 3, 1]) == 4
    assert shard_size(None, [1, 1]) == 2
    assert shard_size(2, [4] * 8) == 2
    with pytest.raises(ConfigError, match=r"shard-size 3 does not divide the 4 processes .* a divisor of 4"):
        shard_size(3, [4] * 4)
    with pytest.raises(ConfigError, match=r"distributed\.shard-size must be at least 2, got 1"):
        DistributedConfig(shard_size=1)


@pytest.mark.parametrize("shard", ["none", "auto"])
def test_a_size_without_shards_is_refused(shard):
    with pytest.raises(ConfigError, match=rf"needs distributed\.shard full, got {shard}: add --distributed"):
        DistributedConfig(shard=shard, shard_size=2)


def describe(config: RunConfig) -> tuple[int, str, float, str]:
    """Two machines of two processes: size of a shard group, plan, and what a run without memory is told."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    by_machine = assemble(config)
    settings = replace(config.distributed, shard_size=4)
    in_one_group = assemble(replace(config, distributed=settings))
    assert by_machine.memory is not None
    assert in_one_group.memory is not None
    too_much = replace(by_machine.memory, rollouts=2**60)
    with pytest.raises(ConfigError) as refused:
        check_memory(too_much, torch.device("cpu"), has_replicas=True)
    saved = in_one_group.memory.optimizer / by_machine.memory.optimizer
    return by_machine.shards, training_plan(by_machine)["processes"], saved, str(refused.value)


def test_weights_are_sharded_inside_machines_and_the_plan_says_so(tiny):
    # With a budget the plan times nothing.
    config = replace(tiny, budget="1e6tokens", distributed=DistributedConfig(shard="full"))
    for shards, plan, saved, refused in each(4, describe, config):
        assert shards == 2
        assert plan == (
            "4, each keeps 1/2 of the weights, gathered block by block; 2 replicas of 2 processes"
        )
        assert saved == pytest.approx(0.5, rel=1e-3)
        assert "Smaller: --distributed.shard full with a larger --distributed.shard-size, fewer" in refused
