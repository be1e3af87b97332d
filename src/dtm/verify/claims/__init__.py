"""The claims of the method that `dtm verify` checks, each against exact enumeration.

One function for every claim of section 12 of docs/method.md, for the paper's Propositions 3.1-3.4
and for its appendix on semi-autoregressive decoding. Each runs the production code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dtm.errors import ConfigError, nearest, require
from dtm.verify.claims import (  # noqa: F401  (importing a module enrols its claims)
    annealing,
    bounds,
    decoding,
    fixed_points,
    groups,
    likelihoods,
    masking,
    minimiser,
    numerics,
    steering,
    trajectories,
    variance,
)
from dtm.verify.claims.check import CLAIMS, Check, Claim

__all__ = ["CLAIMS", "Check", "Claim", "run_claims"]

CLAIMS.sort(key=Claim.position)


def run_claims(names: Collection[str] | None = None) -> Iterator[Check]:
    """Check the claims with the given names or numbers, or all of them, one at a time."""
    valid = {key for claim in CLAIMS for key in (claim.name, claim.number)}
    for name in names or ():
        require(name in valid, f"There is no claim {name!r}. {nearest(name, valid)}", ConfigError)
    for claim in CLAIMS:
        if names is None or claim.name in names or claim.number in names:
            yield claim.check()
