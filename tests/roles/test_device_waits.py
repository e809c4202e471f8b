"""On a GPU nothing mixes devices, and the host waits for it once an acting step, once a trajectory and once a version."""

from __future__ import annotations

from itertools import product

import pytest
from fake_gpu import fake_run
from sessions import fast, slow

ALGORITHMS = {
    "a2c": {"name": "a2c", "num_minibatches": 2},
    "a2c, normalised": {"name": "a2c", "normalize_advantage": True, "value_norm": True},
    "vtrace": {"name": "vtrace", "value_norm": True, "normalize_advantage": False, "scale_rewards": True},
    "vtrace, passes": {"name": "vtrace", "passes": 2, "num_minibatches": 2, "normalize_advantage": True},
    "laser": {"name": "laser", "num_minibatches": 2, "cut": "cumulative"},
    "ppo": {"name": "ppo", "max_kl_nats": 1e9, "target_kl_nats": 0.01, "clip_value": 0.2, "value_norm": True,
            "passes": 2, "num_minibatches": 2},
    "impact": {"name": "impact", "num_minibatches": 2, "target_every_updates": 3},
}  # fmt: skip
CORES = ("none", "lstm", "gru")
ENVS = ("Pendulum-v1", "Acrobot-v1")
OPTIMIZERS = ("rmsprop", "rmsprop_tf", "adam", "adamw")
REPLAYS = [
    {"name": "queue", "fraction": 0.25},
    {"name": "uniform", "fraction": 0.25, "capacity": 16},
    {"name": "elite", "fraction": 0.25, "capacity": 16},
    {"name": "attentive", "fraction": 0.25, "capacity": 16},
]
TOPOLOGIES = [
    {"name": "allreduce"},
    {"name": "gossip"},
    {"name": "gossip", "graph": "complete", "max_staleness": 0},
    {"name": "diffusion", "adjacency": "ring"},
]
VERSIONS = 2


class Waits:
    """What a run waited for, by what it was doing."""

    def __init__(self):
        self.doing = {"act": [], "update": [], "publish": [], "read": []}
        self.counts = dict.fromkeys(self.doing, 0)

    def most(self, what):
        """How often it waited each time, at least once in all."""
        return len(self.doing[what]) / max(self.counts[what], 1)

    def check(self, **most):
        for what, bound in most.items():
            assert self.counts[what], f"never: {what}"
            told = "\n".join(sorted({f"{x.what} {x.line}" for x in self.doing[what]}))
            assert self.most(what) <= bound, f"{what}: {self.most(what):.1f} waits\n{told}"


def play(group, mode, versions=VERSIONS):
    """Do what a supervisor in one process does, and note what is waited for."""
    noted = Waits()

    def note(what, count=1):
        noted.doing[what] += mode.waits
        noted.counts[what] += count
        mode.waits.clear()

    mode.waits.clear()
    for _ in range(versions):
        for parts in group.parts:
            group.publish(parts)
            note("publish")
            parts.board.read(0, parts.actor.policy.shared_tensors(), exact=False)
            parts.actor.policy.refresh()
            note("read")
            slot = parts.queue.slot()
            parts.actor.collect(slot, parts.learner.version)
            parts.queue.put(slot)
            note("act", parts.plan.env_groups * slot.unroll_length + 1)
        learning = [parts.learner for parts in group.parts]
        before = {learner.rank: learner.version for learner in learning}
        while learning:
            for learner in learning:
                learner.adapt()
            for learner in learning:
                learner.combine()
            note("update", 0)
            learning = [x for x in learning if x.version == before[x.rank]]
        noted.counts["update"] += len(group.parts)
        for parts in group.parts:
            parts.learner.take_metrics()
            note("read")
    return noted


ONCE = {"act": 1.0, "update": 1.0, "publish": 0.0, "read": 0.0}
"""Waits for each step and trajectory, version, and the rest."""


@pytest.mark.parametrize(
    ("algorithm", "core"),
    # Each fourth pair: six of the seven algorithms, each core twice.
    fast(list(product(ALGORITHMS, CORES))[::4], product(ALGORITHMS, CORES)),
)
def test_every_algorithm_and_core_waits_once_an_update_and_once_a_step(algorithm, core):
    policy = {"core": core, "core_size": 8, "last_reward": True, "last_action": True}
    with fake_run("CartPole-v1", algorithm=ALGORITHMS[algorithm], policy=policy) as (group, mode):
        play(group, mode).check(**ONCE)


@pytest.mark.parametrize(
    ("torso", "precision"),
    fast(
        [("nature", "fp32"), ("impala", "bf16")],
        product(("nature", "a3c", "impala"), ("fp32", "bf16")),
    ),
)
def test_every_torso_and_precision(torso, precision):
    policy = {"torso": torso, "fc_size": 16, "normalize_steps": 64, "core": "lstm", "core_size": 8}
    settings = {"policy": policy, "precision": precision, "env_groups": 2, "env.size": 36}
    with fake_run("PongNoFrameskip-v4", algorithm=ALGORITHMS["vtrace"], **settings) as (
        group,
        mode,
    ):
        play(group, mode).check(**ONCE)
        assert group.first.actor.policy.compute_dtype == group.first.policy.compute_dtype


@pytest.mark.parametrize(
    ("env_id", "optimizer"),
    fast(
        zip(ENVS * 2, OPTIMIZERS, strict=True),
        product(ENVS, OPTIMIZERS),
    ),
)
def test_every_optimizer_and_kind_of_action(env_id, optimizer):
    settings = {"optimizer": {"name": optimizer, "learning_rate": 1e-3}}
    with fake_run(env_id, algorithm=ALGORITHMS["ppo"], **settings) as (group, mode):
        play(group, mode).check(**ONCE)


@pytest.mark.parametrize(
    "topology",
    [{"name": "single"}, TOPOLOGIES[0], TOPOLOGIES[2], slow(TOPOLOGIES[1]), slow(TOPOLOGIES[3])],
    ids=str,
)
def test_an_outer_step_is_waited_for_only_by_metrics(topology):
    size = 1 if topology["name"] == "single" else 2
    step = {"outer_momentum": 0.5, "outer_rate": 0.7, "outer_nesterov": size == 1}
    settings = {"num_learners": size, "topology": topology, "optimizer": step}
    with fake_run("CartPole-v1", algorithm=ALGORITHMS["ppo"], **settings) as (group, mode):
        noted = play(group, mode)
        messages = group.first.learner.updates_per_version if size > 1 else 0
        # Of two times that something is read, one is of metrics.
        noted.check(act=1.0, update=1.0 + messages, publish=1.0, read=0.5)
        assert all("outer_step" in x.line for x in noted.doing["read"])


@pytest.mark.parametrize(
    ("algorithm", "burn_in"),
    fast([("vtrace", 0), ("laser", 3)], product(("vtrace", "laser", "impact"), (0, 3))),
)
def test_replayed_columns_cost_no_more(algorithm, burn_in):
    settings = {"replays": REPLAYS, "replay_burn_in": burn_in, "prefetch_batches": 0}
    policy = {"core": "lstm", "core_size": 8}
    with fake_run("CartPole-v1", algorithm=ALGORITHMS[algorithm], policy=policy, **settings) as (
        group,
        mode,
    ):
        mix = group.first.learner.replay
        sample, columns = mix.sample, set()

        def replayed():
            batch = sample()
            measured = len(mode.waits)  # what replays measure is for the replays' thread
            del mode.waits[:measured]
            columns.add(batch.num_columns)
            return batch

        mix.sample = replayed
        noted = play(group, mode, versions=4)
        noted.check(**ONCE)
        assert len(columns) == 2, "batches with and without replayed columns"


@pytest.mark.parametrize(
    ("topology", "algorithm"),
    fast(
        zip(TOPOLOGIES, ("ppo", "vtrace", "ppo", "vtrace"), strict=True),
        product(TOPOLOGIES, ("ppo", "vtrace")),
    ),
    ids=str,
)
def test_learners_that_mix_wait_once_more_for_their_message(topology, algorithm):
    settings = {"num_learners": 2, "topology": topology}
    with fake_run("CartPole-v1", algorithm=ALGORITHMS[algorithm], **settings) as (group, mode):
        messages = group.first.learner.updates_per_version
        play(group, mode).check(act=1.0, update=1.0 + messages, publish=1.0, read=0.0)


@pytest.mark.parametrize("lag", ["1", "free"])
def test_actors_in_processes_act_on_the_cpu_for_a_learner_on_a_gpu(lag):
    settings = {"placement": "local", "actors_per_learner": 2, "env_groups": 2, "lag": lag,
                "num_envs": 4, "unroll_length": 8}  # fmt: skip
    with fake_run("CartPole-v1", algorithm=ALGORITHMS["vtrace"], **settings) as (group, mode):
        noted = play(group, mode)
        tensors = len(group.first.policy.shared_tensors())
        noted.check(act=float(tensors), update=1.0, publish=0.0, read=0.0)
        rows = VERSIONS * 4 * 8
        # A row that begins an episode is no step.
        assert group.first.actor.env_steps >= rows * (0.9 if lag == "1" else 0.5)
