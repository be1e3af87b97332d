"""Every claim of the registry, and what the registry promises."""

from __future__ import annotations

import math

import pytest

from dtm.errors import ConfigError
from dtm.verify.claims import CLAIMS, Check, run_claims


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_claim(claim):
    check = claim.check()
    assert check.passed, f"{check.claim}: {check.deviation:.3g}, must be {check.relation} {check.tolerance:g}"


def test_every_claim_of_the_specification_is_enrolled():
    numbers = {claim.number.rstrip("abcde") for claim in CLAIMS}
    assert {str(number) for number in range(1, 17)} <= numbers
    statements = " ".join(claim.claim for claim in CLAIMS) + " ".join(sorted(numbers))
    for proposition in ("3.1", "3.2", "3.3", "3.4", "SAR"):
        assert proposition in statements


def test_names_and_numbers_are_unique():
    assert len({claim.name for claim in CLAIMS}) == len({claim.number for claim in CLAIMS}) == len(CLAIMS)


def test_claims_run_by_name_or_number():
    assert [check.number for check in run_claims(["ratio_bound", "16b"])] == ["11a", "16b"]


def test_an_unknown_claim_names_its_neighbour():
    with pytest.raises(ConfigError, match="ratio_bound"):
        next(run_claims(["ratio_bond"]))


def test_a_check_that_is_not_a_number_fails():
    assert not Check("", "", "", math.nan, 1.0, "at most").passed
    assert not Check("", "", "", math.nan, 1.0, "at least").passed
