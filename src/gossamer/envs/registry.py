"""One way in: an id and settings become a `VecEnv`, whatever the suite."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gossamer.envs.atari import AtariEnvs
from gossamer.envs.repeats import what_differs
from gossamer.envs.seeding import ONE_TASK, Part, SeedStream
from gossamer.envs.settings import is_atari, is_native, suite_of
from gossamer.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gossamer.envs.seeding import Tasks
    from gossamer.envs.settings import EnvConfig
    from gossamer.spec import EnvSpec
    from gossamer.types import VecEnv


def make_vec_env(
    env_id: str,
    *,
    num_envs: int,
    seed: int,
    settings: EnvConfig,
    rank: int = 0,
    first_env: int = 0,
    num_threads: int = 1,
    max_episode_steps: int = 0,
    training: bool = True,
    tasks: Tasks = ONE_TASK,
) -> VecEnv:
    """Make N environments that are stepped together.

    Args:
        env_id: "PongNoFrameskip-v4", "ALE/Pong-v5", any Gymnasium id, "envpool:Id", "module:function".
        num_envs: N, at least 1.
        seed: the run's.
        settings: what to change about the id's protocol.
        rank: of the learner the experience is for; `seeding.EVALUATION_RANK` for evaluation.
        first_env: index of env 0 among the run's environments.
        num_threads: of a native simulator; Python environments use the caller's.
        max_episode_steps: truncation; 0 for the environment's own.
        training: whether a lost life counts as terminated, where the protocol says so.
        tasks: of a family, which environment plays which; others do not ask.
    """
    part = Part(num_envs, first_env, tasks)
    _check(part, max_episode_steps)
    seeds = SeedStream(seed, rank, first_env)
    if env_id.startswith("envpool:"):
        from gossamer.envs.envpool import EnvpoolEnvs

        return EnvpoolEnvs(
            env_id,
            num_envs=num_envs,
            num_threads=num_threads,
            seeds=seeds,
            settings=settings,
            max_episode_steps=max_episode_steps,
            training=training,
        )
    if settings.workers:
        (envs,) = make_worker_groups(
            env_id,
            [part],
            seed=seed,
            settings=settings,
            rank=rank,
            num_threads=num_threads,
            max_episode_steps=max_episode_steps,
            training=training,
        )
        return envs
    if is_atari(env_id):
        return AtariEnvs(
            env_id,
            num_envs=num_envs,
            num_threads=num_threads,
            seeds=seeds,
            settings=settings,
            max_episode_steps=max_episode_steps,
            training=training,
        )
    from gossamer.envs.gym import GymEnvs

    return GymEnvs(
        env_id,
        num_envs=num_envs,
        seeds=seeds,
        tasks=tasks,
        settings=settings,
        max_episode_steps=max_episode_steps,
    )


def make_worker_groups(
    env_id: str,
    parts: Sequence[Part],
    *,
    seed: int,
    settings: EnvConfig,
    rank: int = 0,
    num_threads: int = 1,
    max_episode_steps: int = 0,
    training: bool = True,
) -> Sequence[VecEnv]:
    """Make groups of environments that `settings.workers` processes step, each of them a share of every group.

    Args:
        env_id: as for `make_vec_env`, but for EnvPool's.
        parts: what differs between the groups.
        seed: as for `make_vec_env`, as is what follows.
        settings: with workers.
        rank: as there.
        num_threads: of a native simulator, that step a group, of all its workers together.
        max_episode_steps: as there.
        training: as there.
    """
    from gossamer.envs.workers import gym_workers, simulator_workers

    assert settings.workers
    for part in parts:
        _check(part, max_episode_steps)
    seeds = [SeedStream(seed, rank, part.first_env) for part in parts]
    if is_atari(env_id):
        make = partial(
            AtariEnvs,
            env_id,
            settings=settings,
            max_episode_steps=max_episode_steps,
            training=training,
        )
        return simulator_workers(
            make, parts, seeds, num_workers=settings.workers, num_threads=num_threads
        )
    return gym_workers(
        env_id,
        parts,
        seeds,
        num_workers=settings.workers,
        settings=settings,
        max_episode_steps=max_episode_steps,
    )


def _check(part: Part, max_episode_steps: int) -> None:
    if part.num_envs < 1:
        raise ConfigError(f"num_envs is {part.num_envs}; at least 1 is needed")
    if max_episode_steps < 0:
        raise ConfigError(
            f"--max-episode-steps is {max_episode_steps}; allowed is 0 (the environment's own) or more"
        )


def may_mask(env_id: str) -> bool:
    """Whether environments of an id may say which actions they allow; Atari games never do."""
    return suite_of(env_id) != "atari"


def read_spec(
    env_id: str,
    settings: EnvConfig,
    max_episode_steps: int = 0,
    *,
    tries: bool = False,
    alone: bool = False,
    before_trial: Callable[[EnvSpec], Any] | None = None,
) -> EnvSpec:
    """Make one environment, read what it is, and close it; mistakes in id or settings show here.

    Args:
        env_id: as for `make_vec_env`.
        settings: as for `make_vec_env`.
        max_episode_steps: as for `make_vec_env`.
        tries: begin an episode and take a step, to see mistakes in an environment of one's own.
        alone: there is never to be another one beside it.
        before_trial: told the spec before that, so that it can refuse what is too large.
    """
    from gossamer.envs.gym import GymEnvs

    if not env_id.startswith("envpool:"):
        settings = replace(settings, workers=None)  # one environment cannot be shared out
    env = make_vec_env(
        env_id,
        num_envs=1,
        seed=1,
        settings=settings,
        max_episode_steps=max_episode_steps,
    )
    try:
        if tries and isinstance(env, GymEnvs):
            if before_trial is not None:
                before_trial(env.spec)
            env.try_out(alone=alone)
    finally:
        env.close()
    return env.spec


def masked_as(settings: EnvConfig, spec: EnvSpec) -> EnvConfig:
    """Return settings that say where masks of actions were found, if they left that open; `spec` as `read_spec` returned it."""
    if settings.mask in (None, "off"):
        return settings
    return replace(settings, mask=spec.mask_from or None, mask_form=spec.mask_form or None)


def try_to_repeat(
    spec: EnvSpec,
    settings: EnvConfig,
    max_episode_steps: int = 0,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> EnvSpec:
    """Play short episodes twice, where it is not known whether they come back; return the spec with what differs.

    With workers it is stepped in a worker process, so that a step which ends its process does not end this one.

    Args:
        spec: as `read_spec` returned it.
        settings: as for `make_vec_env`.
        max_episode_steps: as for `make_vec_env`.
        clock: returns the seconds by which the trial's limits are kept.
    """
    if spec.differs or is_native(spec.env_id):
        return spec
    make = partial(
        make_vec_env,
        spec.env_id,
        seed=1,
        settings=replace(settings, workers=1 if settings.workers else None),
        max_episode_steps=max_episode_steps,
    )
    return replace(spec, differs=what_differs(make, clock=clock))
