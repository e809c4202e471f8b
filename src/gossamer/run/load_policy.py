"""Policies of runs: loaded from checkpoints into networks that they fit, or refused."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from gossamer.build.evaluation_tasks import training_tasks
from gossamer.build.preflight import build_shapes
from gossamer.build.roles import build_trained_policy
from gossamer.config import check_ranges, code_in, from_dict, in_python, saved_settings, to_dict
from gossamer.envs.interface import read_interface
from gossamer.errors import ConfigError
from gossamer.machine import same_folder
from gossamer.record.checkpoint import BEST, CANDIDATE, UnreadableError
from gossamer.record.folder import RunFolder
from gossamer.record.origin import is_found
from gossamer.run.checkpoint_contents import (
    POLICY,
    PolicyOrigin,
    SavedPolicy,
    ScoredPolicy,
    facts_of,
    policy_of,
)
from gossamer.run.resumed_settings import as_computed
from gossamer.system.devices import cpu_by_default
from gossamer.system.reading import clipped, mapping, quoted, visible
from gossamer.topology.base import blend

if TYPE_CHECKING:
    import os

    import torch

    from gossamer.config import TrainConfig
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.record.checkpoint import Checkpoint, CheckpointStore
    from gossamer.roles.policy import Policy
    from gossamer.spec import EnvSpec


def read_policy(folder: RunFolder) -> SavedPolicy:
    """Return a run's newest policy."""
    return saved_policy(_read_weights(folder, "last"), None)


def _read_weights(folder: RunFolder, which: str | int) -> Checkpoint:
    checkpoint = folder.checkpoints().load(which, lambda name: POLICY in name)
    facts_of(checkpoint, PolicyOrigin)  # a damaged one is refused before anything is made
    return checkpoint


def put_weights(policy: ActorCritic, saved: SavedPolicy) -> None:
    """Put parameters and moments into a network that they have to fit."""
    # Of the best policy what a version consists of was saved: the rest is as it was built.
    shared = policy.shared_names()
    built = {name: x for name, x in policy.state_dict().items() if name not in shared}
    try:
        policy.load_state_dict({**built, **saved.tensors})
    except RuntimeError as error:
        raise _misfit(saved.folder, " ".join(str(error).split())) from None
    policy.refresh()


def refuse_misfit(
    config: TrainConfig, spec: EnvSpec, saved: SavedPolicy, torso: torch.nn.Module | None = None
) -> None:
    """Refuse a policy of another network than the settings', before that is made: it could be of any size."""
    made = build_shapes(config, spec, torso)
    wanted, shared = made.state_dict(), made.shared_names()
    for name in sorted({*shared, *saved.tensors}):
        shapes = [list(x[name].shape) if name in x else "missing" for x in (saved.tensors, wanted)]
        if shapes[0] != shapes[1]:
            raise _misfit(
                saved.folder, f"{name} is {shapes[0]}, but these settings need {shapes[1]}"
            )


def refuse_other_best(
    config: TrainConfig, spec: EnvSpec, store: CheckpointStore, torso: torch.nn.Module | None
) -> None:
    """Refuse to continue a run whose best policy, or the candidate for it, is of another network."""
    for name in (BEST, CANDIDATE):
        try:
            found = store.load(name)
        except UnreadableError:
            raise
        except ConfigError:  # there is none, or the run does without a damaged one
            continue
        facts_of(found, ScoredPolicy)  # a damaged one is refused
        refuse_misfit(config, spec, SavedPolicy.of(found), torso)


def _misfit(path: str, reason: str) -> ConfigError:
    own = reason.startswith("torso.") or " torso." in reason or '"torso.' in reason
    hint = "; a run with a torso of its own is loaded from Python: torso=..." if own else ""
    if reason.startswith("action_head.bias"):
        hint = "; the environment has other actions than the policy learnt"
    elif reason.startswith("obs_moments"):
        hint = "; the environment's observations have another form than those that the policy learnt from"
    return ConfigError(f"{path} does not fit this network: {clipped(reason, 200)}{hint}")


def saved_policy(checkpoint: Checkpoint, learner: int | None) -> SavedPolicy:
    """Return the policy of a learner, or the run's (None): where learners mix, the average of those that had a place."""
    origin = facts_of(checkpoint, PolicyOrigin)
    size, absent = origin.num_learners or 1, dict(origin.absent)
    if learner is None:
        learner = origin.policy_of
    elif origin.num_learners is None and learner != (origin.learner or 0):
        raise ConfigError(
            f"{checkpoint.path} holds only the run's policy; for one learner's policy leave out --checkpoint {checkpoint.path.name}"
        )
    elif origin.num_learners is None:
        learner = 0  # as a policy that is saved alone is named
    elif not 0 <= learner < size:
        raise ConfigError(f"learner is {learner}, but the run has {size}: --learner {size - 1}")
    if learner is not None:
        if (whose := absent.get(learner, learner)) != learner:
            raise ConfigError(
                f"learner {learner} was absent when {checkpoint.path} was saved, which holds in its place the policy of "
                f"learner {whose}: --learner {whose}"
            )
        return SavedPolicy.of(checkpoint, learner)
    # Another's policy in place of one that was absent would count twice.
    there = [rank for rank in range(size) if rank not in absent]
    everyone: list[dict[str, torch.Tensor]] = []
    for rank in there:
        everyone.append(policy_of(checkpoint.tensors, rank))
        if everyone[-1].keys() != everyone[0].keys():
            raise _misfit(str(checkpoint.path), f"learner {rank} is missing")
    average = {name: x.clone() for name, x in everyone[0].items()}
    # Whole numbers, such as what a layer of one's own has counted, have no average: the first learner's stay.
    mixed = [name for name, x in average.items() if x.is_floating_point()]
    blend(
        dict.fromkeys(range(len(there)), 1.0 / len(there)),
        0,
        lambda i: [everyone[i][name] for name in mixed],
        [average[name] for name in mixed],
    )
    return SavedPolicy(average, str(checkpoint.path))


def config_of(
    folder: RunFolder, env_id: str = "", *, trust: bool = False, command: str = ""
) -> TrainConfig:
    """Return what a run was trained with.

    Args:
        folder: of the run.
        env_id: the environment, named again; its new name, where a module of the old one is no more.
        trust: import what the run names.
        command: of gossamer that may be typed again so that it imports this; empty: a function was called from Python.
    """
    typed = f"gossamer {command} {quoted(folder.shown)}"

    def again(name: str, value: str) -> str:  # quoted: names are a stranger's
        if name != "env_id":
            return f"{typed} --trust"
        return f"{typed} --env {shlex.quote(value)}, or add --trust"

    how = again if command else in_python
    saved = saved_settings(folder.path, given={"env_id": env_id}, trust=trust, how=how)
    assert saved is not None
    config = from_dict(saved)
    check_ranges(config)
    if env_id and env_id != config.env_id:
        own = code_in(saved).get("env_id")
        if own and not is_found(own):
            return replace(config, env_id=env_id)
        raise ConfigError(
            f"the run was trained in {config.env_id}, not in {env_id}; leave that out"
        )
    return config


def load_policy(
    run: str | os.PathLike[str],
    checkpoint: str | int = "last",
    *,
    learner: int | None = None,
    torso: torch.nn.Module | None = None,
    env_id: str = "",
    trust: bool = False,
) -> Policy:
    """Load the policy of a run, ready to act, in float32 on the CPU.

    `action, state = policy.act(obs, state)` takes the environment's own observations.

    Args:
        run: a run folder, part of its path, "last", or the result of `train`.
        checkpoint: "last", "best", "candidate" (a best policy not confirmed yet) or a number of updates.
        learner: number of the learner whose policy is loaded; None: the run's policy, which for gossip and diffusion is
            the average of all learners.
        torso: feature layers of your own that the run was trained with.
        env_id: the name of the run's environment, given again: a module:function of a run that began on another machine
            is imported only if you name it here or set `trust`.
        trust: import the environment and parts that the run names, even if it comes from another machine or user.

    Returns:
        The policy, a `torch.nn.Module` whose parameters need no gradient.

    Raises:
        ConfigError: the run or checkpoint does not exist, the checkpoint does not fit the run's settings, or the run would
            import code that may not be yours.
    """
    folder = RunFolder.open(run)
    config = config_of(folder, env_id, trust=trust)
    return policy_and_checkpoint(folder, config, checkpoint, learner, torso)[0]


@cpu_by_default()
def policy_and_checkpoint(
    folder: RunFolder,
    config: TrainConfig,
    which: str | int,
    learner: int | None,
    torso: torch.nn.Module | None = None,
) -> tuple[Policy, Checkpoint]:
    """Return a run's policy as `load_policy` does, and the checkpoint that it is of; arguments as there."""
    with same_folder():
        spec, interface = read_interface(config.env_id, config.env, config.max_episode_steps)
    if (
        spec.family
    ):  # the first task of training, for programs that play without gossamer's evaluation
        interface.environment["task_seed"] = training_tasks(config, spec).seed_of(0)
    checkpoint = _read_weights(folder, which)
    config = as_learnt(config, checkpoint)
    refuse_misfit(config, spec, SavedPolicy.of(checkpoint), torso)
    policy = build_trained_policy(config, spec, interface, torso)
    put_weights(policy, saved_policy(checkpoint, learner))
    for warning in checkpoint.warnings:
        print(f"gossamer: {visible(warning)}", file=sys.stderr)
    return policy.requires_grad_(False).eval(), checkpoint


def as_learnt(config: TrainConfig, checkpoint: Checkpoint) -> TrainConfig:
    """Return settings under which a checkpoint's parameters compute what they have learnt to, and its values mean what they do.

    The run's may be those of a later session, which need not have saved anything.
    """
    own = mapping(checkpoint.state.get("settings"))
    try:
        return from_dict(as_computed(to_dict(config), own))
    except ConfigError as error:
        raise ConfigError(f"{checkpoint.path} is damaged: {error}") from None


def whose(checkpoint: Checkpoint, learner: int | None, num_learners: int) -> int | str | None:
    """Return whose policy was loaded, as evaluation.jsonl names it; None: an older run has not said."""
    if learner is not None or num_learners == 1:
        return learner or 0
    origin = facts_of(checkpoint, PolicyOrigin)
    if origin.num_learners is None:  # the best evaluated, alone
        return origin.learner
    return "average" if origin.policy_of is None else origin.policy_of


def whose_in_words(checkpoint: Checkpoint, learner: int | None, config: TrainConfig) -> str:
    """Say whose policy was loaded; nothing where there is one learner."""
    name, size = whose(checkpoint, learner, config.num_learners), config.num_learners
    if size == 1 or name is None:
        return ""
    origin = facts_of(checkpoint, PolicyOrigin)
    there = size - len(origin.absent)
    if name == "average":
        return f"average of {there} {f'of {size} ' * (there < size)}learners, "
    why, scores = "", origin.scores
    if learner is None and config.topology.run_policy == "best":
        why = ", the best evaluated" if scores is None or scores else ""
        # Until all had been evaluated.
        scored = {rank for rank, _ in scores or []} - dict(origin.absent).keys()
        if scores is not None and len(scored) < there and origin.best_learner is not None:
            why = ", which earned most in training"
    return f"learner {name} of {size}{why}, "
