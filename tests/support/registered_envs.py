"""Ids of environments that hold several arrays or forbid actions: what `gymnasium.make` makes needs nothing else."""

from __future__ import annotations

import gymnasium

for kind in (
    *("nested_envs:Everything", "masked_envs:Observed", "masked_envs:Combined"),
    *("joint_envs:Forbidding", "joint_envs:ObservedParts"),
):
    gymnasium.register(f"{kind.rpartition(':')[2]}-v0", entry_point=kind)
