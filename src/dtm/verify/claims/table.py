"""Print the claims as a table, row by row while they are checked."""

from __future__ import annotations

import time
from collections.abc import Collection

from rich.console import Console
from rich.text import Text

from dtm.verify.claims import CLAIMS, Check, run_claims

SIGNS = {"at most": "≤", "at least": "≥"}


def print_claims(names: Collection[str] | None = None) -> int:
    """Check the claims and print them; return the exit code, 1 if a claim fails, else 0."""
    console = Console(soft_wrap=True)
    width = max(len(claim.claim) for claim in CLAIMS)
    console.print(f"{'':<11}{'claim':<{width}}  {'measured':>9}   {'tolerance':>9}  verdict", style="bold")
    begin = time.perf_counter()
    checks = []
    for check in run_claims(names):
        checks.append(check)
        console.print(_row(check, width))
    failed = sum(not check.passed for check in checks)
    verdict = f"{failed} of {len(checks)} claims failed" if failed else f"all {len(checks)} claims hold"
    console.print(f"{verdict} ({time.perf_counter() - begin:.0f} s)", style="bold", highlight=False)
    return 1 if failed else 0


def _row(check: Check, width: int) -> Text:
    numbers = f"{check.deviation:>9.2g} {SIGNS[check.relation]} {check.tolerance:>9.2g}"
    row = Text(f"{check.number:<11}{check.claim:<{width}}  {numbers}  ")
    return row.append("holds" if check.passed else "FAILS", style="green" if check.passed else "bold red")
