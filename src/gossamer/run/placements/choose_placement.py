"""Where a run's learners are put: the one place that knows all placements."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from gossamer.build.roles import build_policy
from gossamer.config import code_in, refuse_unimportable, to_dict
from gossamer.envs.making import registered_here_alone
from gossamer.errors import ConfigError
from gossamer.machine import install_command
from gossamer.run.checkpoint_contents import RunState
from gossamer.run.placements.process_layout import layout_of
from gossamer.run.placements.processes import Processes
from gossamer.run.placements.this_process import ThisProcess
from gossamer.run.resume import refuse_replays

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gossamer.build.plan import Plan
    from gossamer.config import TrainConfig
    from gossamer.run.host_protocol import LoadInitialState, Placement
    from gossamer.spec import EnvSpec


def place(
    config: TrainConfig,
    spec: EnvSpec,
    plan: Plan,
    load: LoadInitialState,
    *,
    torso: torch.nn.Module | None,
    tried: bool,
    hold: Callable[[], int],
) -> Placement:
    """Make a run's placement, and with it everything that shows mistakes before a run folder is made.

    Args:
        config: of the run.
        spec: of its environment.
        plan: what "auto" became.
        load: reads the state that learners begin with.
        torso: the user's own feature layers.
        tried: whether it is known if environments come back.
        hold: as `Processes` has it.

    Raises:
        ConfigError: the placement cannot be had with these settings, or does not fit what it begins with.
    """
    layout = layout_of(config)
    if layout is not None and torso is not None:
        raise ConfigError(
            "a torso of your own cannot be handed to other processes; use one learner, or "
            "placement inline"
        )
    if layout is not None or config.actors_per_learner:
        _refuse_what_is_here_alone(config, "learners" if layout is not None else "actors")
    if layout is None:
        return ThisProcess(config, spec, plan, load(range(config.num_learners)), torso)
    if config.placement == "cluster":
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                f"placement is cluster, which needs Ray: {install_command('cluster')}, or --placement local"
            )
        from gossamer.run.placements.cluster.placement import Cluster

        made = Cluster(config, spec, plan, layout, tried=tried)
    else:
        made = Processes(config, spec, plan, layout, tried=tried, hold=hold)
    try:
        initial = load(range(0))
        if isinstance(initial, RunState):
            refuse_replays(config, plan, build_policy(config, spec), initial)
    except BaseException:
        made.close()
        raise
    return made


def _refuse_what_is_here_alone(config: TrainConfig, whose: str) -> None:
    """Refuse code that other processes cannot import; `whose` processes they are."""
    for name in code_in(to_dict(config)).values():
        refuse_unimportable(name)
    if registered_here_alone(config.env_id):
        raise ConfigError(
            f"{config.env_id} is registered in this program alone, and {whose} in processes of their own do not know it: name "
            f"a function of a module that makes it, module:function, or module:{config.env_id} where the module registers it; "
            "or use placement inline"
        )
