"""Default number of learners, environments and threads for a machine's cores: one table, with the reason beside each row.

The rows of 1 and 2 cores are measured (docs/results/cores.md). Those above them follow from two cores, of which every
learner has its own pair, and are a prediction.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gossamer.envs.settings import is_native
from gossamer.system.importing import main_is_ours

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gossamer.config.train_config import TrainConfig

MACHINE, PLAIN = "GOSSAMER_MACHINE", "plain"
"""Environment variable that, set to plain, keeps the machine out of a run's settings: there is one learner for auto, and
what `gossamer tune` found is not looked at."""
AUTO = "auto"
"""Number of learners that the machine decides."""
MIXED: Mapping[str, Any] = {"name": "gossip", "graph": "rotating", "max_staleness": 0}
"""How learners mix whose number the machine decides. In lock-step every update is mixed: learners that do not wait took
twice the steps until Pong was learnt. Each hears one other at a time, and after log2 of their number all of them."""
IMAGE_ENVS = 64
"""Environments of a learner where neither a suite nor the user says how many: for images, on a CPU."""
GPU_IMAGE_ENVS = 128
VECTOR_ENVS = 16
ENVS_OF_ONE = 16
"""Environments of a learner alone to which the table's numbers for several belong; of a preset with more they grow alike."""
MIXED_RATE = 2.0
"""Times the learning rate of one learner: averaging shortens steps. With two learners of half its batch, twice its rate
was the best of three that were tried; with more it is a guess."""
MAX_LEARNERS = 16
"""Most learners that are chosen: with more, each has more cores. Nobody has measured what more of them learn."""
DIVISIONS = ("learner_threads", "actor_threads", "env_threads", "env_groups", "actors_per_learner")
"""Settings that divide a machine for one learner."""
LEAST_ENV_STEPS = 200_000
"""Shorter runs have one learner: two cores train them in two minutes, of which starting processes would take much."""


@dataclass(frozen=True)
class Row:
    """Division of a number of cores, on a CPU, for images."""

    cores: int
    learners: int
    """Learners of a run, for "auto": each in a process of its own, with an equal share of the cores."""
    envs: int
    """Environments of each of them, where a suite says how many one has; 0: as many as that. Fewer, the more learners there
    are, so that the parameters are updated as often for as many steps."""
    learner_threads: int
    """The rest is of one learner that has all of these cores to itself."""
    actor_threads: int
    env_threads: int
    env_groups: int
    why: str


ROWS = (
    Row(1, 1, 0, 1, 1, 1, 1, "acting and learning take turns; nothing can overlap"),
    Row(
        2, 1, 0, 1, 1, 2, 1,
        "measured: one core learns while the other acts, 0.8 to 0.9 of the limit",
    ),
    Row(
        4, 2, 8, 2, 1, 4, 1,
        "two learners, each with the measured row above; together they have the batch of one, with which two learners were "
        "at 18 in Pong sooner than one",
    ),
    Row(
        8, 4, 8, 4, 1, 8, 2,
        "four learners of two cores; with 4 environments each they would be a quarter slower, with 8 they keep 0.95",
    ),
    Row(
        16, 8, 4, 8, 2, 16, 2,
        "eight learners of two cores; one learner was no faster on 16 cores than on two, since a thread's part of a minibatch "
        "has 32 rows then. With 16 environments each, they update so seldom that 200,000 steps taught nothing",
    ),
    Row(32, 16, 4, 16, 4, 32, 2, "sixteen learners of two cores, the most that are chosen"),
    Row(
        64, 16, 4, 32, 8, 64, 2,
        "sixteen learners of four cores: more learners would average over more of them than has been tried",
    ),
)  # fmt: skip


def row_for(cores: int) -> Row:
    """Return the row of a number of cores; between two rows, and above the last, the lower one's numbers grow with it."""
    low = max((row for row in ROWS if row.cores <= cores), key=lambda row: row.cores)

    growing = ("learners", "learner_threads", "actor_threads", "env_threads")
    grown = {name: getattr(low, name) * cores // low.cores for name in growing}
    return replace(low, cores=cores, **grown | {"learners": min(grown["learners"], MAX_LEARNERS)})


def envs_for(learners: int) -> int:
    """Return how many environments each of several learners has, where one has ENVS_OF_ONE."""
    return next((row.envs for row in ROWS if row.learners >= learners > 1), ROWS[-1].envs)


def is_plain() -> bool:
    """Whether the machine is to be kept out of a run's settings."""
    return os.environ.get(MACHINE, "") == PLAIN


def uses_gpu(device: str, *, gpu: bool) -> bool:
    """Whether a run with a setting of the device computes on a GPU; `gpu`: the machine has one."""
    return device == "cuda" or (gpu and device == "auto")


def learners_for(config: TrainConfig, cores: int, *, gpu: bool) -> tuple[int, str]:
    """Return how many learners a run has for which the machine decides, and why.

    Args:
        config: its settings.
        cores: of the machine.
        gpu: whether it has a GPU.
    """
    given = [name for name in DIVISIONS if getattr(config, name)]
    if config.placement != "local":
        return 1, f"1 with placement {config.placement}"
    if uses_gpu(config.device, gpu=gpu):
        return 1, "1 on a GPU"
    if given:
        return 1, f"1 with {given[0]}"
    if len(config.replays) > 1:
        return 1, "1 with replays"
    if config.total_env_steps < LEAST_ENV_STEPS:
        return 1, f"1 for fewer than {LEAST_ENV_STEPS:,} env steps"
    count = row_for(cores).learners
    return count, f"{count} for {cores} core{'s' * (cores != 1)}"


def actors_for(config: TrainConfig, cores: int, *, gpu: bool) -> int:
    """Return how many actor processes each learner has; 0: its own process steps the environments.

    Where nobody says it is one if that is quicker: simulators in Python and a small network both need the interpreter, for
    which two threads of one process wait half of the time (docs/results/speed.md). What is learned is the same.

    Args:
        config: its settings.
        cores: of a learner.
        gpu: whether the machine has a GPU.
    """
    if config.placement == "inline":
        return 0
    if config.actors_per_learner is not None:
        return config.actors_per_learner
    # A user's script may hold what only its own process has.
    if config.placement != "local" or is_plain() or not main_is_ours():
        return 0
    computes_apart = uses_gpu(config.device, gpu=gpu)
    if is_native(config.env_id) or config.known_lag != "1" or computes_apart or config.env.workers:
        return 0
    return int(
        cores > 1 and config.learners_per_process <= 1 and config.total_env_steps >= LEAST_ENV_STEPS
    )
