"""The verbs of a group: with one process the identity, with several the same values everywhere."""

from __future__ import annotations

import functools
import os
import signal
import sys

import pytest
import torch

from dtm.distributed import ALONE, current
from dtm.distributed.group import Alone
from dtm.errors import ConfigError, RewardError
from dtm.runs.interrupts import Interrupted
from ranks import each, outcomes


class Member(Alone):
    """One process of several, as far as dealing out is concerned."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@pytest.mark.parametrize("size", [1, 2, 4, 7])
@pytest.mark.parametrize(("count", "unit"), [(0, 1), (1, 1), (10, 1), (12, 2), (6, 2)])
def test_shares_are_every_row_once_in_order_and_even(size, count, unit):
    shares = [Member(rank, size).share(count, unit) for rank in range(size)]
    assert [row for share in shares for row in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= unit
    assert all(len(share) % unit == 0 for share in shares)
    assert count == 0 or len(shares[0]) > 0


def test_parts_are_the_share_in_pieces():
    assert [list(range(9)[part]) for part in Member(1, 2).parts(9, 3)] == [[5, 6, 7], [8]]


def test_alone_every_verb_is_the_identity_and_torch_distributed_is_not_imported():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), 3.0)
    assert current() is ALONE
    assert ALONE.gather("x") == ["x"]
    assert ALONE.together(lambda: 5) == [5]
    assert ALONE.by_first(lambda: 6) == 6
    assert ALONE.accumulate([weight], lambda: [7]) == [7]
    assert weight.grad.tolist() == [3.0, 3.0]
    assert "dtm.distributed.processes" not in sys.modules


def test_a_launch_without_its_variables_is_refused(monkeypatch):
    current.cache_clear()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set"):
        current()


def verbs() -> dict[str, object]:
    """All verbs in one process of a group."""
    group = current()
    weights = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(1))]
    unused = torch.nn.Parameter(torch.zeros(1))

    def backward() -> list[int]:
        mine = group.share(5)
        for row in mine:
            gradient = torch.tensor([1.0, 1e-8, -1e8]) * (row + 1) / 3
            weights[0].grad = gradient if weights[0].grad is None else weights[0].grad + gradient
        if group.is_first:  # others have none
            weights[1].grad = torch.ones(1)
        return list(mine)

    found: dict[str, object] = {"gathered": group.gather(group.rank), "rows": []}
    for in_order in (False, True):
        for weight in weights:
            weight.grad = None
        found["rows"] = group.accumulate([*weights, unused], backward, in_order)
        found[f"gradient {in_order}"] = [weight.grad.tolist() for weight in weights]
    found["unused"] = unused.grad
    found["first"] = group.by_first(lambda: "written")
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, object]:
    current.cache_clear()
    return verbs()


@pytest.mark.parametrize("size", [2, 4])
def test_all_processes_hold_the_same_values_as_one(alone, size):
    for found in each(size, verbs):
        assert found["gathered"] == list(range(size))
        assert found["rows"] == alone["rows"] == list(range(5))
        assert found["first"] == "written"
        assert found["unused"] is None
        assert found["gradient True"] == alone["gradient True"]  # bit for bit
        for one, other in zip(found["gradient False"], alone["gradient False"], strict=True):
            assert one == pytest.approx(other, rel=1e-6)


KINDS = {
    "RewardError": RewardError("no reward"),
    "Interrupted": Interrupted("SIGTERM"),
    "KeyError": KeyError("k"),
}


def failures() -> dict[str, str]:
    """One process of four fails; how this one hears of each failure, and at last loses a process."""
    group, heard = current(), {}

    def fail(problem: Exception | None) -> None:
        if group.rank == 2:
            if problem is None:
                os.kill(os.getpid(), signal.SIGKILL)
            raise problem

    for name, problem in [*KINDS.items(), ("killed", None)]:
        try:
            group.together(functools.partial(fail, problem))
        except Exception as found:
            heard[name] = f"{type(found).__name__} {found}"
    return heard


def test_what_one_process_meets_all_raise():
    found = outcomes(4, failures)
    assert found.pop(2) is None  # killed
    for heard in found:
        assert heard["RewardError"] == "RewardError process 2: no reward"
        assert heard["Interrupted"] == "Interrupted process 2: SIGTERM"
        assert heard["KeyError"] == "DtmError process 2 failed: KeyError: 'k'"
        assert heard["killed"].startswith("PeerError")
        assert "Continue the run with --resume" in heard["killed"]
