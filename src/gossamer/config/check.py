"""Refuse settings that cannot work together, each in one line, before anything is made.

What a single setting may be stands at its field; what an algorithm or a topology asks of its own settings, in its file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossamer.config import own_parts
from gossamer.config.names import flag
from gossamer.config.train_config import TrainConfig
from gossamer.config.tree import choices, fields_of
from gossamer.errors import ConfigError
from gossamer.system.importing import RAISED, failed
from gossamer.system.reading import clipped, expand

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ENV_ID = 500
MAX_EXAMPLES = 16
"""Most learners for which an error suggests a value each; for more it shows the default."""


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
    algorithm = config.algorithm
    try:
        algorithm.validate()
    except ConfigError:
        raise
    except RAISED as error:
        name = own_parts.name_of(type(algorithm)) or algorithm.name
        raise failed(name, "fails in validate", error) from error
    for rules in (_data_mistakes, _placement_mistakes, _learner_mistakes, _batch_mistakes):
        for mistake in rules(config):
            raise ConfigError(mistake)


def check_ranges(config: TrainConfig) -> None:
    """Refuse names and paths that no part of a run could take; also those of a run that is only looked at."""
    if not config.env_id.isprintable() or len(config.env_id) > MAX_ENV_ID:
        raise ConfigError(
            f"the environment's id is {clipped(config.env_id)!r}; it must be at most {MAX_ENV_ID} characters that can be "
            "printed, such as CartPole-v1"
        )
    expand(config.run_folder, "; choose another with --run-folder PATH")
    expand(config.init_from, "; name a run: --init-from RUN")
    for i, replay in enumerate(config.replays):
        expand(getattr(replay, "path", ""), f"; choose another: --replays.{i}.path FOLDER")


def _data_mistakes(config: TrainConfig) -> Iterator[str]:
    """Yield mistakes in what an algorithm learns from, and in what batches are made of."""
    algorithm, lag = config.algorithm, config.lag
    if lag == "free" and config.placement == "inline":
        how = "--lag 1, or --placement local" if algorithm.bears_lag else "--lag 0"
        yield f"lag is free, but with placement inline acting and learning take turns: use {how}"
    if not algorithm.bears_lag and lag not in ("auto", "0"):
        only = f"lag is {lag}, but {algorithm.name} can learn only from data of its newest policy"
        yield f"{only}; use --lag 0, or an algorithm that corrects: algorithm:vtrace"
    kinds = [replay.name for replay in config.replays]
    if (queues := kinds.count("queue")) != 1:
        how = "leave one out" if queues else """add {"name": "queue", "fraction": 0.5}"""
        yield f"replays holds {queues} queues among {', '.join(kinds)}; it must hold exactly one: {how}"
    old = [kind for kind in kinds if kind != "queue"]
    if old and not algorithm.corrects:
        algorithms = choices(fields_of(TrainConfig)["algorithm"].annotation)
        able = ", ".join(f"algorithm:{name}" for name, x in algorithms.items() if x.corrects)
        only = f"replays holds {old[0]}, but {algorithm.name} cannot learn from older data"
        yield f"{only}; use a queue only, or an algorithm that corrects: {able}"
    total = sum(replay.fraction for replay in config.replays)
    if abs(total - 1.0) > 1e-4:  # thirds to four digits do
        yield f"replays: fractions sum to {total:g}; they must sum to 1{_whole(config, total)}"
    online, least = config.queue.fraction, algorithm.min_online_fraction
    if online < least:
        how = f"--replay-ratio {1 / least - 1:.3g}, or give the queue that fraction"
        yield f"replays: {online:.3g} of each batch is online; {algorithm.name} learns from at least {least:g}: {how}"
    burn_in, rows = config.replay_burn_in, config.unroll_length
    if burn_in and not old:
        yield f"replay_burn_in is {burn_in}, but nothing is replayed: --replay-ratio 1"
    if burn_in and config.policy.core == "none":
        yield f"replay_burn_in is {burn_in}, but the policy has no recurrent state: --policy.core lstm"
    if burn_in and burn_in >= rows:
        why = f"unroll_length is {rows} and some rows must be left to learn"
        yield f"replay_burn_in is {burn_in}, but {why}: --unroll-length {2 * burn_in}"


def _whole(config: TrainConfig, total: float) -> str:
    """Return what to type so that fractions sum to 1: the queue's, or all if it cannot make up for the others."""
    if len(config.replays) == 1:
        return ": --replays.0.fraction 1, or --replay-ratio 1 to replay as much as is new"
    at = config.replays.index(config.queue)
    fractions = {at: 1.0 - (total - config.queue.fraction)}
    if fractions[at] <= 1e-3:
        fractions = {i: replay.fraction / total for i, replay in enumerate(config.replays)}
    typed = " ".join(f"--replays.{i}.fraction {x:.4g}" for i, x in fractions.items())
    none_was_given = len(config.replays) == 2 and config.queue.fraction == 1.0
    ratio = ", or --replay-ratio 1 to replay as much as is new" if none_was_given else ""
    return f": {typed}{ratio}"


def _placement_mistakes(config: TrainConfig) -> Iterator[str]:
    """Yield mistakes in where roles run, and in how many processes there are."""
    alone = config.num_learners == 1
    if config.placement == "cluster" and config.shares_replay:
        why = "machines of a cluster have no memory in common"
        yield f"replays are shared, but {why}: leave shared out, or --placement local"
    if (fewest := config.cluster.min_learners) > (size := config.num_learners):
        yield f"cluster.min_learners is {fewest}, but there are {size} learners: --cluster.min-learners {size}, or more learners"
    elif 0 < fewest < size and config.topology.on_death == "restart_group":
        why = f"with topology {config.topology.name} no learner goes on without the others"
        yield f"cluster.min_learners is {fewest}, but {why}: leave it out, or use --topology.name gossip"
    elif 0 < fewest < size and config.topology.staleness == 0 and config.learners_per_process > 1:
        why = "in lock-step learners that share a process cannot join those that run"
        yield f"cluster.min_learners is {fewest}, but {why}: --learners-per-process 1, or --topology.max-staleness never"
    if (per := config.learners_per_process) and (config.placement == "inline" or alone):
        why = "there is one learner" if alone else "placement is inline"
        yield f"learners_per_process is {per}, but {why}, so there are no processes to share: --learners-per-process 0"
    transport = getattr(config.topology, "transport", "auto")
    if transport in ("nccl", "gloo") and (config.placement == "inline" or alone):
        connects = (
            f"topology.transport is {transport}, which connects learners of different processes"
        )
        yield f"{connects}: leave it out, or use several learners with --placement local"
    if config.deterministic and config.lag == "free":
        never = "deterministic is on, but runs with lag free can never be repeated"
        yield f"{never}: use --lag 1, or leave deterministic out"


def _learner_mistakes(config: TrainConfig) -> Iterator[str]:
    """Yield mistakes in what a topology asks of learners, and in settings with a value for each of them."""
    topology, size = config.topology, config.num_learners
    topology.check(size, config.seed, own_parts.name_of(type(topology)))
    equal = topology.mixes == "gradients"
    for section, setting, values in config.per_learner():
        name = f"{section}.{setting}"
        count = len(values)
        if count not in (1, size):
            each = fields_of(type(getattr(config, section)))[setting].default
            if count > 0 and size <= MAX_EXAMPLES:
                each = [values[i % count] for i in range(size)]
            typed = " ".join(f"{x:g}" for x in each)
            yield f"{name} has {count} values for {size} learner(s); give one value, or one per learner: {flag(name)} {typed}"
        if equal and count > 1:
            same = f"learners of the {topology.name} topology take the same steps"
            yield f"{name} has {count} values, but {same}: give one value, or let them gossip: topology:gossip"
    if equal and not config.same_start:
        kept = f"same_start is off, but the {topology.name} topology keeps all learners equal"
        yield f"{kept}: leave same_start out, or let learners gossip: topology:gossip"


def _batch_mistakes(config: TrainConfig) -> Iterator[str]:
    """Yield mistakes in how a batch is cut up, in whether any batch is learnt, and in settings of the optimizer."""
    core, optimizer, start = config.policy.core, config.optimizer, config.optimizer.learn_start
    if getattr(config.algorithm, "deal", "") == "rows" and core != "none":
        only = f"algorithm.deal is rows, but a policy with {core} can only learn from whole columns"
        yield f"{only}: --algorithm.deal columns, or --policy.core none"
    if config.num_envs:
        check_minibatches(config, config.num_envs)
    if start and first_learnt(config) >= config.total_env_steps:
        ends = f"the last batch begins before, as the run ends after {config.total_env_steps} env steps"
        yield f"optimizer.learn_start is {start}, but {ends}; nothing would be learnt: --optimizer.learn-start 0"
    if optimizer.momentum and not optimizer.name.startswith("rmsprop"):
        has_none = f"optimizer.momentum is {optimizer.momentum:g}, but {optimizer.name} knows beta1"
        yield f"{has_none}: --optimizer.beta1 {optimizer.momentum:g} --optimizer.momentum 0, or --optimizer.name rmsprop"
    if optimizer.outer_nesterov and not optimizer.outer_momentum:
        alone = "optimizer.outer_nesterov is on, but optimizer.outer_momentum is 0"
        yield f"{alone}: --optimizer.outer-momentum 0.5, or leave outer_nesterov out"


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
    most = num_envs * config.unroll_length if rows else num_envs
    if parts <= most:
        return
    why, or_rows = f"the {most} rows of a batch", ""
    if not rows:
        why = f"num_envs {num_envs}, and a part holds whole columns"
        or_rows = ", or --algorithm.deal rows" if deal and config.policy.core == "none" else ""
    raise ConfigError(
        f"algorithm.num_minibatches is {parts}, more than {why}: --algorithm.num-minibatches {most}{or_rows}"
    )
