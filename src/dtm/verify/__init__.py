"""Verification, for `dtm verify` and the tests: exactly enumerable worlds, claims, the hazard form."""
