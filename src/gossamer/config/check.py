"""Refuse settings that cannot work, each in one line, before anything is made."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from gossamer.config import own_parts
from gossamer.config.names import flag
from gossamer.config.train_config import PER_LEARNER
from gossamer.config.tree import fields_of, flatten, member_name, members, to_tree
from gossamer.errors import ConfigError
from gossamer.system.importing import RAISED, failed
from gossamer.system.reading import clipped, expand

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gossamer.config.train_config import TrainConfig


@dataclass(frozen=True)
class Range:
    """Numbers a setting may take."""

    words: str
    allows: Callable[[float], bool]
    ends: tuple[int, ...] = ()
    """Allowed ends, the lowest first."""


_ANY = Range("any number", lambda _: True)
_NOT_NEGATIVE = Range(">= 0", lambda x: x >= 0, (0,))
_POSITIVE = Range("> 0", lambda x: x > 0)
_AT_LEAST_ONE = Range(">= 1", lambda x: x >= 1, (1,))
_FRACTION = Range("in [0, 1]", lambda x: 0 <= x <= 1, (0, 1))
_BELOW_ONE = Range("in [0, 1)", lambda x: 0 <= x < 1, (0,))
_SHARE = Range("in (0, 1]", lambda x: 0 < x <= 1, (1,))

RANGES: Mapping[str, Range] = {
    "total_env_steps": _AT_LEAST_ONE,
    "stop_at_return": _ANY,
    "num_learners": Range("in [1, 65536]", lambda x: 1 <= x <= 65536, (1, 65536)),
    "unroll_length": _AT_LEAST_ONE,
    "algorithm.discount": _FRACTION,
    "algorithm.trace_lambda": _FRACTION,
    "algorithm.num_minibatches": _AT_LEAST_ONE,
    "algorithm.passes": _AT_LEAST_ONE,
    "algorithm.clip_rho": _POSITIVE,
    "algorithm.clip_c": _POSITIVE,
    "algorithm.clip_pg_rho": _POSITIVE,
    "algorithm.clip_ratio": _POSITIVE,
    "algorithm.max_target_ratio": _POSITIVE,
    "algorithm.target_every_updates": _AT_LEAST_ONE,
    "prefetch_batches": Range("in [0, 64]", lambda x: 0 <= x <= 64, (0, 64)),
    "replays.fraction": _SHARE,
    "replays.capacity": _AT_LEAST_ONE,
    "replays.capacity_steps": _AT_LEAST_ONE,
    "replays.candidate_multiplier": _AT_LEAST_ONE,
    "replays.norm_order": _POSITIVE,
    "replays.elite_batch": _AT_LEAST_ONE,
    "optimizer.learning_rate": _POSITIVE,
    "optimizer.schedule_end": _FRACTION,
    "optimizer.schedule_power": _POSITIVE,
    "optimizer.epsilon": _POSITIVE,
    "optimizer.decay": _BELOW_ONE,
    "optimizer.momentum": _BELOW_ONE,
    "optimizer.beta1": _BELOW_ONE,
    "optimizer.beta2": _BELOW_ONE,
    "policy.hidden_sizes": _AT_LEAST_ONE,
    "policy.last_filters": _AT_LEAST_ONE,
    "policy.core_size": _AT_LEAST_ONE,
    "policy.core_layers": _AT_LEAST_ONE,
    "policy.obs_clip": _POSITIVE,
    "policy.pixel_std_floor": _POSITIVE,
    "policy.noise_correlation": _BELOW_ONE,
    "policy.init_log_std": Range("in [-20, 20]", lambda x: -20 <= x <= 20, (-20, 20)),
    "env.frame_skip": _AT_LEAST_ONE,
    "env.frame_stack": _AT_LEAST_ONE,
    "env.size": _AT_LEAST_ONE,
    "env.tasks_per_learner": _AT_LEAST_ONE,
    "env.sticky": _BELOW_ONE,
    "topology.degree": _AT_LEAST_ONE,
    "topology.link_drop": _BELOW_ONE,
    "evaluation.episodes": _AT_LEAST_ONE,
    "evaluation.confirm_episodes": _AT_LEAST_ONE,
    "evaluation.max_time_fraction": _SHARE,
}
"""Where numbers may lie; any number that is not here must be >= 0."""

_THREADS, _SECONDS, _UNITS, _SEED = 1024, 10**9, 65536, 2**63 - 1
MOST: Mapping[str, int] = {
    "seed": _SEED,
    "env.task_seed": _SEED,
    "stop_after_seconds": _SECONDS,
    "checkpoint_every_seconds": _SECONDS,
    "evaluation.every_seconds": _SECONDS,
    "evaluation.episodes": 10**6,
    "evaluation.held_out_tasks": 10**6,
    "replay_ratio": 10**4,
    "replays.candidate_multiplier": 10**4,
    "replays.elite_batch": 10**6,
    "replays.norm_order": 1000,
    "optimizer.learning_rate": 1000,
    "policy.hidden_sizes": _UNITS,
    "policy.last_filters": _UNITS,
    "policy.fc_size": _UNITS,
    "policy.core_size": 16384,
    "policy.core_layers": 16,
    "topology.degree": 65535,
    "topology.num_peers": 65535,
    "num_envs": 10**6,
    "learners_per_process": 65536,
    "actors_per_learner": _THREADS,
    "unroll_length": 10**6,
    "max_episode_steps": 10**9,
    "micro_batch_rows": 10**9,
    "learner_threads": _THREADS,
    "actor_threads": _THREADS,
    "env_threads": _THREADS,
    "env_groups": _THREADS,
    "env.tasks_per_learner": 10**6,
    "env.stuck_steps": 10**9,
    "env.workers": _THREADS,
}
"""What nobody exceeds who means it, and beyond which a step somewhere fails; of other numbers MOST_OF_ANY."""
MOST_OF_ANY = 10**15
MAX_LAYERS = 64
MAX_ENV_ID = 500
MAX_EXAMPLES = 16
"""Of values, one per learner, that an error suggests."""


def validate(config: TrainConfig) -> None:
    """Refuse a configuration that cannot work.

    Raises:
        ConfigError: one line with the setting, its value, what is allowed and what to type.
    """
    if not config.env_id.strip():
        raise ConfigError(
            "no environment given; type its id, for example: gossamer train CartPole-v1"
        )
    check_ranges(config)
    _check_algorithm(config)
    _check_replays(config)
    _check_counts(config)


def range_of(name: str) -> Range:
    """Return the numbers a dotted setting name may take, none of which is larger than `most_of` it."""
    return RANGES.get(_bare(name), _NOT_NEGATIVE)


def most_of(name: str) -> int:
    """Return the largest number a dotted setting name may take."""
    return MOST.get(_bare(name), MOST_OF_ANY)


def _bare(name: str) -> str:
    return re.sub(r"\.\d+", "", name)


def check_ranges(config: TrainConfig) -> None:
    """Refuse numbers, names and lists that no part of a run could take; also those of a run that is only looked at."""
    if not config.env_id.isprintable() or len(config.env_id) > MAX_ENV_ID:
        raise ConfigError(
            f"the environment's id is {clipped(config.env_id)!r}; it must be at most {MAX_ENV_ID} characters that can be "
            "printed, such as CartPole-v1"
        )
    expand(config.run_folder, "; choose another with --run-folder PATH")
    expand(config.init_from, "; name a run: --init-from RUN")
    for i, replay in enumerate(config.replays):
        expand(getattr(replay, "path", ""), f"; choose another: --replays.{i}.path FOLDER")
    if len(config.policy.hidden_sizes) > MAX_LAYERS:
        raise ConfigError(
            f"policy.hidden_sizes has {len(config.policy.hidden_sizes)} entries, a layer each; it must have at most "
            f"{MAX_LAYERS}: --policy.hidden-sizes 64 64"
        )
    own = own_settings(config)
    for name, value in flatten(to_tree(config)):
        if name in own:  # whose class says what it takes, in `validate`
            continue
        numbers = cast("list[Any]", value) if isinstance(value, list) else [value]
        allowed, most = range_of(name), most_of(name)
        for number in numbers:
            is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
            if is_number and not allowed.allows(number):
                raise ConfigError(
                    f"{name} is {number:.12g}; it must be {allowed.words}: "
                    f"{flag(name)} {_example(config, name, allowed, number)}"
                )
            if is_number and abs(number) > most:
                raise ConfigError(f"{name} is {number:.12g}; it must be at most {most:_}")


def own_settings(config: TrainConfig) -> set[str]:
    """Return the dotted names of settings that only a class of the user's has."""
    found: set[str] = set()
    sections: dict[str, Any] = {"algorithm": config.algorithm, "topology": config.topology}
    sections |= {f"replays.{i}": replay for i, replay in enumerate(config.replays)}
    for section, part in sections.items():
        for owner in type(part).__mro__:
            if not own_parts.is_ours(owner):
                found |= {f"{section}.{name}" for name in inspect.get_annotations(owner)}
    return found


def _example(config: TrainConfig, name: str, allowed: Range, number: float) -> str:
    """Return what may be typed: the setting's default, or the allowed number nearest to this one."""
    section, last = _home(config, name)
    default = fields_of(type(section))[last].default
    numbers = cast("tuple[Any, ...]", default if isinstance(default, tuple) else (default,))
    if any(x is None or not allowed.allows(x) for x in numbers):
        numbers = (min(allowed.ends, key=lambda end: abs(end - number)),)
    return " ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in numbers)


def _home(config: TrainConfig, name: str) -> tuple[Any, str]:
    """Return the section that holds a dotted name, and what the name is there."""
    *path, last = name.split(".")
    section: Any = config
    for part in path:
        section = section[int(part)] if part.isdecimal() else getattr(section, part)
    return section, last


def _check_algorithm(config: TrainConfig) -> None:
    algorithm = config.algorithm
    if config.lag == "free" and config.placement == "inline":
        raise ConfigError(
            "lag is free, but with placement inline acting and learning take turns: use --lag 1, or "
            "--placement local"
        )
    if not algorithm.bears_lag and config.lag not in ("auto", "0"):
        raise ConfigError(
            f"lag is {config.lag}, but {algorithm.name} can learn only from data of its newest policy; "
            "use --lag 0, or an algorithm that corrects: algorithm:vtrace"
        )
    try:
        algorithm.validate()
    except ConfigError:
        raise
    except RAISED as error:
        raise failed(
            own_parts.name_of(type(algorithm)) or algorithm.name, "fails in validate", error
        ) from error


def _check_replays(config: TrainConfig) -> None:
    algorithm, kinds = config.algorithm, [replay.name for replay in config.replays]
    if (queues := kinds.count("queue")) != 1:
        how = "leave one out" if queues else """add {"name": "queue", "fraction": 0.5}"""
        raise ConfigError(
            f"replays holds {queues} queues among {', '.join(kinds)}; it must hold exactly one: {how}"
        )
    old = [replay.name for replay in config.replays if replay.name != "queue"]
    if old and not algorithm.corrects:
        able = [
            member_name(x)
            for x in members(fields_of(type(config))["algorithm"].annotation)
            if x.corrects
        ]
        raise ConfigError(
            f"replays holds {old[0]}, but {algorithm.name} cannot learn from older data; use a queue only, "
            f"or an algorithm that corrects: {', '.join(f'algorithm:{name}' for name in able)}"
        )
    total = sum(replay.fraction for replay in config.replays)
    if abs(total - 1.0) > 1e-4:  # thirds to four digits do
        raise ConfigError(
            f"replays: fractions sum to {total:g}; they must sum to 1{_whole(config, total)}"
        )
    queue = next(replay.fraction for replay in config.replays if replay.name == "queue")
    if queue < (least := algorithm.min_online_fraction):
        raise ConfigError(
            f"replays: {queue:.3g} of each batch is online; {algorithm.name} learns from at least {least:g}: "
            f"--replay-ratio {1 / least - 1:.3g}, or give the queue that fraction"
        )
    burn_in = config.replay_burn_in
    if burn_in and (not old or config.policy.core == "none" or burn_in >= config.unroll_length):
        why = (
            f"unroll_length is {config.unroll_length} and some rows must be left to learn: "
            f"--unroll-length {2 * burn_in}"
        )
        if not old:
            why = "nothing is replayed: --replay-ratio 1"
        elif config.policy.core == "none":
            why = "the policy has no recurrent state: --policy.core lstm"
        raise ConfigError(f"replay_burn_in is {burn_in}, but {why}")


def _whole(config: TrainConfig, total: float) -> str:
    """Return what to type so that fractions sum to 1: the queue's, or all if it cannot make up for the others."""
    if len(config.replays) == 1:
        return ": --replays.0.fraction 1, or --replay-ratio 1 to replay as much as is new"
    at = next(i for i, replay in enumerate(config.replays) if replay.name == "queue")
    rest = 1.0 - (total - config.replays[at].fraction)
    fractions = {at: rest} if rest > 1e-3 else {
        i: replay.fraction / total for i, replay in enumerate(config.replays)
    }  # fmt: skip
    or_ratio = ""
    if len(config.replays) == 2 and config.replays[at].fraction == 1.0:  # none was given
        or_ratio = ", or --replay-ratio 1 to replay as much as is new"
    typed = " ".join(f"--replays.{i}.fraction {x:.4g}" for i, x in fractions.items())
    return f": {typed}{or_ratio}"


def _check_counts(config: TrainConfig) -> None:
    if config.placement == "cluster":
        raise ConfigError(
            "placement is cluster; this version runs on one machine: --placement local or inline"
        )
    per = config.learners_per_process
    if per and (config.placement == "inline" or config.num_learners == 1):
        what = "placement is inline" if config.num_learners > 1 else "there is one learner"
        raise ConfigError(
            f"learners_per_process is {per}, but {what}, so there are no processes to share: "
            "--learners-per-process 0"
        )
    _check_topology(config)
    for name in PER_LEARNER:
        _check_per_learner(config, name)
    if config.topology.mixes == "gradients" and not config.same_start:
        raise ConfigError(
            f"same_start is off, but the {config.topology.name} topology keeps all learners equal: leave same_start "
            "out, or let learners gossip: topology:gossip"
        )
    transport = getattr(config.topology, "transport", "auto")
    if transport in ("nccl", "gloo") and (config.placement == "inline" or config.num_learners == 1):
        raise ConfigError(
            f"topology.transport is {transport}, which connects learners of different processes: leave it "
            "out, or use several learners with --placement local"
        )
    if config.deterministic and config.lag == "free":
        raise ConfigError(
            "deterministic is on, but runs with lag free can never be repeated: use --lag 1, or leave "
            "deterministic out"
        )
    rows = getattr(config.algorithm, "deal", "") == "rows"
    if rows and config.policy.core != "none":
        raise ConfigError(
            f"algorithm.deal is rows, but a policy with {config.policy.core} can only learn from whole columns: "
            "--algorithm.deal columns, or --policy.core none"
        )
    if config.num_envs:
        check_minibatches(config, config.num_envs)
    if config.optimizer.learn_start and first_learnt(config) >= config.total_env_steps:
        raise ConfigError(
            f"optimizer.learn_start is {config.optimizer.learn_start}, but the last batch begins before, as the run ends "
            f"after {config.total_env_steps} env steps; nothing would be learnt: --optimizer.learn-start 0"
        )


def _check_topology(config: TrainConfig) -> None:
    """Refuse a graph that does not fit so many learners, and matrices of the user's that are no averages."""
    topology, size = config.topology, config.num_learners
    if own_parts.is_ours(type(topology)):
        topology.turns(size, config.seed)
        return
    name = own_parts.name_of(type(topology)) or type(topology).__name__
    for attribute, allowed in (
        ("run_policy", ("first", "average", "best")),
        ("on_death", ("replace", "restart_group")),
        ("mixes", ("parameters", "gradients")),
    ):
        value = getattr(topology, attribute)
        if value not in allowed:
            raise ConfigError(
                f"{name}: {attribute} is {value!r}; it must be one of {', '.join(allowed)}"
            )
    if topology.mixes == "gradients" and topology.on_death != "restart_group":
        raise ConfigError(
            f"{name} mixes gradients, which nobody can do without a learner that has died: on_death must be restart_group"
        )
    if size == 1:
        return
    try:
        turns = topology.turns(size, config.seed)
        rows = [dict(row) for matrix in turns for row in matrix]
        sums = [float(sum(row.values())) for row in rows]
    except ConfigError:
        raise
    except RAISED as error:
        raise failed(name, "fails in turns", error) from error
    if not turns or any(len(matrix) != size for matrix in turns):
        raise ConfigError(
            f"{name}: turns must return one or more matrices with a row for each of {size} learners"
        )
    for i, (row, total) in enumerate(zip(rows, sums, strict=True)):
        if not set(row) <= set(range(size)):
            raise ConfigError(
                f"{name}: row {i % size} names learner {max(row)}; there are learners 0 to {size - 1}"
            )
        if abs(total - 1.0) > 1e-6 or min(row.values()) < 0.0:
            raise ConfigError(
                f"{name}: row {i % size} sums to {total:g}; weights must be >= 0, and sum to 1"
            )


def first_learnt(config: TrainConfig) -> int:
    """Return the env steps at which the first batch begins that is learnt; of unknown environments at least."""
    batch = max(config.num_envs * config.unroll_length * config.num_learners, 1)
    return -(-config.optimizer.learn_start // batch) * batch


def may_deal_rows(config: TrainConfig) -> bool:
    """Whether minibatches may be dealt by single rows, in an environment that fits."""
    deal = getattr(config.algorithm, "deal", "columns")
    return deal == "rows" or (deal == "auto" and config.policy.core == "none")


def check_minibatches(config: TrainConfig, num_envs: int, *, vectors: bool = True) -> None:
    """Refuse more minibatches than a learner's batch of so many online columns can be dealt into.

    Args:
        config: the settings.
        num_envs: online columns of a learner's batch.
        vectors: observations are, or may be.
    """
    parts, deal = config.algorithm.num_minibatches, getattr(config.algorithm, "deal", "")
    rows = may_deal_rows(config) and (vectors or deal == "rows" or parts > num_envs)
    if rows and parts > (most := num_envs * config.unroll_length):
        raise ConfigError(
            f"algorithm.num_minibatches is {parts}, more than the {most} rows of a batch: "
            f"--algorithm.num-minibatches {most}"
        )
    if not rows and parts > num_envs:
        raise ConfigError(
            f"algorithm.num_minibatches is {parts}, more than num_envs {num_envs}, and a part "
            f"holds whole columns: --algorithm.num-minibatches {num_envs}{_or_rows(config)}"
        )


def _or_rows(config: TrainConfig) -> str:
    can = hasattr(config.algorithm, "deal") and config.policy.core == "none"
    return ", or --algorithm.deal rows" if can else ""


def _check_per_learner(config: TrainConfig, name: str) -> None:
    values = getattr(*_home(config, name))
    if not isinstance(values, (tuple, list)):
        raise ConfigError(
            f"{name} is {values!r}; it must hold one value, or one per learner: ({values!r},)"
        )
    count, size = len(cast("tuple[Any, ...]", values)), config.num_learners
    if count not in (1, size):
        each = [f"{values[i % count]:g}" for i in range(min(size, MAX_EXAMPLES) if count else 0)]
        few = _example(config, name, range_of(name), 0)
        raise ConfigError(
            f"{name} has {count} values for {size} learner(s); give one value, or one per learner: "
            f"{flag(name)} {' '.join(each) if len(each) == size else few}"
        )
    if config.topology.mixes == "gradients" and count > 1:
        raise ConfigError(
            f"{name} has {count} values, but learners of the {config.topology.name} topology take the "
            "same steps: give one value, or let them gossip: topology:gossip"
        )
