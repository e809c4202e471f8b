"""Which stored columns are replayed: one file a kind, found by its presence."""
