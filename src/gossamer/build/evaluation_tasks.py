"""Which task each environment plays, in training and in evaluation, and what an evaluation plays."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gossamer.config.cores import GPU_IMAGE_ENVS, IMAGE_ENVS, VECTOR_ENVS
from gossamer.envs.registry import make_vec_env
from gossamer.envs.seeding import EVALUATION_RANK, ONE_TASK, Tasks
from gossamer.errors import ConfigError
from gossamer.roles.evaluation import EvaluationEpisodes

if TYPE_CHECKING:
    from gossamer.config import TrainConfig
    from gossamer.spec import EnvSpec
    from gossamer.types import VecEnv

HELD_OUT_TASKS = 10
"""Held-out tasks of a family that are scored where no other number was asked for."""
MAX_TASKS = 100
"""Most tasks of a set that an evaluation plays, or as many as episodes were asked for, if those are more."""


def envs_per_learner(config: TrainConfig, spec: EnvSpec, device: str = "cpu") -> int:
    """Return how many environments each learner has; a GPU acts for more of them in the same time."""
    images = IMAGE_ENVS if device == "cpu" else GPU_IMAGE_ENVS
    return config.num_envs or (images if spec.has_pixels else VECTOR_ENVS)


def refuse_tasks(config: TrainConfig, spec: EnvSpec, num_envs: int) -> None:
    """Refuse tasks that do not fit the environments of a learner."""
    per_learner = config.env.tasks_per_learner or 1
    if spec.family and num_envs % per_learner:
        raise ConfigError(
            f"env.tasks_per_learner is {per_learner}; it must divide the {num_envs} environments of a "
            f"learner: --env.tasks-per-learner {math.gcd(num_envs, per_learner)}"
        )
    held_out = config.evaluation.held_out_tasks
    if held_out is not None and not spec.family:
        raise ConfigError(
            f"evaluation.held_out_tasks is {held_out}, but {config.env_id} is not a family of tasks; "
            "leave held_out_tasks out"
        )


def training_tasks(config: TrainConfig, spec: EnvSpec, *, num_envs: int = 0) -> Tasks:
    """Return which tasks learners' environments play.

    A resumed run has the `num_envs` it began with; 0: what a new run would have.
    """
    if not spec.family:
        return ONE_TASK
    num_envs = num_envs or envs_per_learner(config, spec)
    per_learner = config.env.tasks_per_learner or num_envs
    return Tasks(
        seed=config.seed if config.env.task_seed is None else config.env.task_seed,
        count=config.num_learners * per_learner,
        envs_per_task=num_envs // per_learner,
    )


def tasks_in_words(config: TrainConfig, spec: EnvSpec, *, num_envs: int = 0) -> str:
    """Return how many tasks are trained on and held out; empty where there is one."""
    if not spec.family:
        return ""
    training = training_tasks(config, spec, num_envs=num_envs)
    held_out = held_out_tasks(config, spec, num_envs=num_envs)
    return (
        f"{training.count:,} task{'s' * (training.count > 1)} drawn from seed {training.seed}, "
        f"{held_out.count:,} held out for evaluation"
    )


def held_out_tasks(config: TrainConfig, spec: EnvSpec, *, num_envs: int = 0) -> Tasks:
    """Return the tasks that only evaluation sees."""
    asked = config.evaluation.held_out_tasks
    count = HELD_OUT_TASKS if asked is None else asked
    tasks = training_tasks(config, spec, num_envs=num_envs)
    return replace(tasks, envs_per_task=1, count=count, held_out=True)


def build_trials(
    config: TrainConfig,
    spec: EnvSpec,
    *,
    num_envs: int = 0,
    episodes: int = 0,
    seed: int | None = None,
    rank: int = EVALUATION_RANK,
    num_threads: int = 1,
) -> list[EvaluationEpisodes]:
    """Return what evaluations play: full episodes with the evaluation protocol and seeds of their own.

    Of a family: as many episodes of every training task as make up `episodes` or more, and then the same
    of the held-out tasks, if there are any. Of more tasks than MAX_TASKS and than `episodes` that many are
    played, evenly spaced.

    Args:
        config: the run's.
        spec: of its environment.
        num_envs: as for `training_tasks`.
        episodes: how many; 0: the setting's.
        seed: of the episodes; None: the run's.
        rank: whose seeds those are, of which different ranks have none in common.
        num_threads: of a native simulator.
    """
    episodes = episodes or config.evaluation.episodes
    seed = config.seed if seed is None else seed
    if not spec.family:
        made = partial(_evaluation_envs, config, seed, rank, num_threads, ONE_TASK)
        return [EvaluationEpisodes(made, episodes)]
    trained = replace(training_tasks(config, spec, num_envs=num_envs), envs_per_task=1)
    trials: list[EvaluationEpisodes] = []
    for tasks in (trained, held_out_tasks(config, spec, num_envs=num_envs)):
        if not tasks.count:
            continue
        num_played = min(tasks.count, max(episodes, MAX_TASKS))
        played = replace(tasks, num_played=num_played)
        count = -(-episodes // num_played) * num_played
        trials.append(
            EvaluationEpisodes(
                partial(_evaluation_envs, config, seed, rank, num_threads, played),
                count,
                tuple(played.number(j, 0) for j in range(count)),
            )
        )
    return trials


def _evaluation_envs(
    config: TrainConfig, seed: int, rank: int, num_threads: int, tasks: Tasks, num_envs: int
) -> VecEnv:
    settings = config.env
    if settings.workers:  # chosen for the training environments, of which there are others
        settings = replace(settings, workers=math.gcd(num_envs, settings.workers))
    return make_vec_env(
        config.env_id,
        num_envs=num_envs,
        seed=seed,
        rank=rank,
        first_env=0,
        num_threads=num_threads,
        settings=settings,
        max_episode_steps=config.max_episode_steps,
        training=False,
        # Episode j of an evaluation is number j // num_envs, from its first, of environment j % num_envs.
        tasks=replace(tasks, stride=num_envs),
    )
