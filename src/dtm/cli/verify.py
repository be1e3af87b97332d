"""`dtm verify`: check the mathematics."""

from __future__ import annotations

from dtm.cli.parse import make_parser


def verify(arguments: list[str]) -> int:
    """Check the method's claims by exact enumeration of small models."""
    parser = make_parser("verify", "Check the method's claims on models small enough to enumerate exactly.")
    parser.add_argument(
        "claims", nargs="*", metavar="CLAIM", help="numbers or names of claims (default: all)"
    )
    options = parser.parse_args(arguments)

    from dtm.verify.claims.table import print_claims

    return print_claims(options.claims or None)
