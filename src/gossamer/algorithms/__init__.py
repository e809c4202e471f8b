"""Algorithms: each a loss over a batch, one file each, found by `algorithms.base.find`."""
