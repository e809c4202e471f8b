"""Learners on the machines of a Ray cluster; nothing outside this package imports Ray.

`placement` is what the supervisor talks to, `agent` runs on the learners' machines, `session` connects to Ray.
"""
