"""Comparing runs: what was scored, grouped by the settings that differ, with intervals that hold at few seeds.

Everything here reads run folders and writes nothing but what it is asked for. `statistics`, `curves` and `grouping` are
plain functions on arrays and mappings, for whoever shows runs; `command` is `gossamer compare`.
"""
