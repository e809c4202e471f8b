"""Everything that is found out, and refused, before a run makes anything: its environment, its plan, what it continues from."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.build.plan import Plan, learners_machine, make_plan
from gossamer.build.preflight import (
    build_shapes,
    refuse_full_shared_memory,
    refuse_large,
    refuse_what_a_gpu_cannot_hold,
    refuse_what_memory_cannot_hold,
)
from gossamer.build.unused_settings import unused, unused_in_words
from gossamer.config import TrainConfig, learnt_with, to_dict
from gossamer.config.layers import COMMAND_LINE
from gossamer.envs.registry import masked_as, may_mask, read_spec, try_to_repeat
from gossamer.machine import same_folder, this_machine
from gossamer.policies.torsos import refuse_changing
from gossamer.record.folder import RunFolder
from gossamer.run.best_videos import refuse_no_videos
from gossamer.run.checkpoint_contents import RunState, SavedPolicy, from_disk, tensors_of
from gossamer.run.finished import Finished, find_end
from gossamer.run.load_policy import read_policy, refuse_misfit, refuse_other_best
from gossamer.run.placements.process_layout import layout_of
from gossamer.run.recorder import refuse_missing_writers
from gossamer.run.resume import known_to_differ, with_changes
from gossamer.run.resumed_settings import (
    changes,
    for_this_machine,
    policy_changed,
    refuse_changes,
    resumed_plan,
    returns_changed,
)
from gossamer.system.devices import use_deterministic_algorithms
from gossamer.system.reading import mapping, visible

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence, Set

    import torch

    from gossamer.record.checkpoint import Checkpoint
    from gossamer.run.placements.process_layout import Layout
    from gossamer.spec import EnvSpec
    from gossamer.system.beginning import Beginning


@dataclass(frozen=True)
class Asked:
    """What a session of a run was asked for."""

    config: TrainConfig
    beginning: Beginning
    """Tells what the session is at, until it has lines of its own."""
    began: float
    """Unix time from which its seconds count."""
    resume: str | os.PathLike[str] | None = None
    """The run to continue; None: a new one."""
    config_given: Set[str] = frozenset()
    """Names of settings that were asked for, which win over a resumed run's plan; empty: those that differ."""
    layers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Which layer set each setting, for the record."""
    argv: Sequence[str] | None = None
    """The command line, for the record; None: a program asks, whose process this is."""
    torso: torch.nn.Module | None = None
    """The user's own feature layers."""
    quiet: bool = False
    """No progress is printed."""
    on_row: Callable[[dict[str, Any]], object] | None = None
    """The user's function of a row of metrics."""


@dataclass(frozen=True)
class Prepared:
    """A session of a run that may begin."""

    config: TrainConfig
    spec: EnvSpec
    plan: Plan
    folder: RunFolder | None
    """Of the run that is continued; None: it is new."""
    before: Mapping[str, Any]
    """The settings under which its checkpoint was learnt; empty: it is new."""
    state: RunState | None
    """That is continued from; of its tensors those of learners in this process."""
    told: list[str]
    """Lines for the user: what was asked for and changes nothing, and what replays take up."""
    tried: bool
    """Whether it is known if environments come back after a resume."""
    remark: str
    """What the user may like to know of this machine, or of the policy that the run begins with."""
    home: Path
    """The folder that paths are below: a simulator may take the process elsewhere."""


def prepare(asked: Asked, folder: RunFolder | None) -> Prepared | Finished:
    """Find out all that a session needs before anything is made.

    Args:
        asked: what it was asked for.
        folder: of the run to continue, locked; None: a new one.

    Raises:
        ConfigError: a mistake in the settings, or they do not fit what is continued, or this machine.
    """
    config, torso, home = asked.config, asked.torso, Path.cwd()
    # A run must not change, nor end, with a file that it does not own.
    config = replace(config, topology=config.topology.written_out())
    refuse_missing_writers(config)
    refuse_no_videos(config)
    refuse_full_shared_memory(config)
    layout = layout_of(config)
    machine = learners_machine(config, this_machine())
    if layout:
        machine = machine.share_of(layout.share)
    checkpoint, state = None, None
    before, given = dict[str, Any](), set[str]()
    if folder is not None:
        # What goes to other processes is loaded when they start.
        ranks = range(0 if layout else config.num_learners)
        mine = tensors_of(ranks, replays=config.checkpoint_replay)
        checkpoint, last = folder.checkpoints().load("last", mine), folder.read_settings()
        # From Python nobody says what was asked for; what differs was.
        differing = changes(last, to_dict(config))
        given |= set(asked.config_given) or {name for name, _, _ in differing}
        # The last session may have ended before it saved anything.
        before = mapping(checkpoint.state.get("settings")) or last
        if config.env.mask in (None, "auto"):  # it stays where it was found
            found = {name: mapping(before.get("env")).get(name) for name in ("mask", "mask_form")}
            config = replace(config, env=replace(config.env, **found))
        refuse_changes(before, to_dict(config))
        state = from_disk(checkpoint, config.num_learners)
        for warning in checkpoint.warnings:
            print(f"gossamer: {visible(warning)}", file=sys.stderr)
        returns_compare = not returns_changed(before, to_dict(config))
        finished = find_end(config, folder, state, returns_compare=returns_compare)
        if finished is not None:
            return finished
        # Before anything is made by these settings, which may be another machine's.
        config = for_this_machine(config, machine, given, state.plan)
        # What the last session was asked for counts, though it has saved nothing.
        given |= {name for name, _, _ in changes(before, last)}
    if folder is None and config.env.mask is None and may_mask(config.env_id):
        config = replace(config, env=replace(config.env, mask="auto"))
    asked.beginning.at(f"trying out {config.env_id}", everywhere=False)
    spec, tried = _try_environment(config, folder, checkpoint, layout, torso, before)
    config = replace(config, env=masked_as(config.env, spec))
    remark = ""
    if state is None:
        plan = make_plan(config, spec, machine)
        if torso is not None or config.policy.has_own_code:
            refuse_changing(build_shapes(config, spec, torso))
    else:
        plan, remark = resumed_plan(state.plan, config, spec, machine, given, before)
        state = with_changes(state, config, plan, before)
    if plan.lag is None and layout is not None and not layout.overlaps:
        plan = replace(plan, lag=1)  # acting has no thread of its own
    processes = len(layout.ranks) if layout else 0
    if plan.device != "cpu":
        use_deterministic_algorithms(config.deterministic)
    # Of a cluster every machine must hold one host's learners at least, as this one could.
    here = replace(config, num_learners=1) if layout and layout.on_cluster else config
    if checkpoint is not None:  # what learners' processes will load of it
        everyone = range(config.num_learners)
        checkpoint = checkpoint.only(tensors_of(everyone, replays=config.checkpoint_replay))
    told = refuse_what_memory_cannot_hold(here, spec, plan, processes, checkpoint, torso)
    typed = {name for name, label in asked.layers.items() if label.startswith(COMMAND_LINE)}
    weights = config.init_from if folder is None else "the resumed run"
    told = [*unused_in_words(config, spec, typed, weights), *told]
    refuse_what_a_gpu_cannot_hold(config, spec, plan, torso, processes=processes)
    if state is not None:
        config = replace(config, init_from=str(before.get("init_from") or ""))
    elif config.init_from:
        source = RunFolder.open(config.init_from)
        refuse_misfit(config, spec, read_policy(source), torso)
        idle = {name for names, _ in unused(config, spec) for name in names}
        if changed := [*policy_changed(learnt_with(source), to_dict(config), idle)]:
            remark = (
                f"the policy of {source.shown} computes something else with {', '.join(changed)}"
            )
        config = replace(config, init_from=str(source.path.resolve()))
    return Prepared(config, spec, plan, folder, before, state, told, tried, remark, home)


def _try_environment(
    config: TrainConfig,
    folder: RunFolder | None,
    checkpoint: Checkpoint | None,
    layout: Layout | None,
    torso: torch.nn.Module | None,
    before: Mapping[str, Any],
) -> tuple[EnvSpec, bool]:
    """Return the environment's spec, and whether it is known if it comes back after a resume."""
    # What is asked of the environment anew may be what it has not.
    anew = before.get("max_episode_steps", config.max_episode_steps) != config.max_episode_steps
    told = mapping(before.get("env")).get("episode_info", config.env.episode_info)
    anew |= told != config.env.episode_info
    one = config.num_envs == config.num_learners == 1
    with same_folder():
        spec = read_spec(
            config.env_id,
            config.env,
            config.max_episode_steps,
            tries=folder is None or anew,
            alone=one and not config.evaluation.every_seconds,
            before_trial=lambda spec: refuse_large(config, spec, make_plan(config, spec), torso),
        )
    if folder is not None and checkpoint is not None:
        refuse_misfit(config, spec, SavedPolicy.of(checkpoint), torso)
        refuse_other_best(config, spec, folder.checkpoints(), torso)
    differs = None if folder is None else known_to_differ(folder)
    if differs is None and not layout:  # processes try by themselves
        with same_folder():
            env = masked_as(config.env, spec)
            differs = try_to_repeat(spec, env, config.max_episode_steps).differs
    return replace(spec, differs=spec.differs or differs or ""), differs is not None
