"""Everything that only `dtm verify` and the tests need: exact worlds, claims, the hazard form."""
