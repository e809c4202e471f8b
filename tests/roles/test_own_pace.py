"""Workers that go at their own pace beside a GPU: the trajectories of workers that wait for each other."""

from __future__ import annotations

import mmap
import os
import signal

import numpy as np
import pytest
import torch
from core_fakes import small_policy, spec_of
from paced_envs import PacedEnvs
from recorder import calling, recording

from gossamer.envs.registry import make_worker_groups
from gossamer.envs.seeding import Part
from gossamer.envs.settings import EnvConfig
from gossamer.envs.workers import EnvWorkerDied
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.roles.actor import Actor
from gossamer.spec import ActionSpec
from gossamer.system import devices
from gossamer.types import empty_trajectory

T, N, PARTS, TRAJECTORIES = 7, 8, 4, 3
SPEC = spec_of(ActionSpec("categorical", (4,)))


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(devices, "is_gpu", lambda device: True)


def policy_of(spec, **more):
    torch.manual_seed(2)
    settings = {"fc_size": 16, "hidden_sizes": (16,), "core_size": 8, "normalize_obs": True}
    return small_policy(spec, **settings, **more).requires_grad_(False)


def actor_of(groups, policy, episodes, **more):
    return Actor(
        groups,
        policy,
        unroll_length=T,
        seeds=range(len(groups)),
        on_episode=episodes.append,
        **more,
    )


def collected(groups, policy, graphs=None):
    """What an actor collects, tells and keeps."""
    episodes = []
    actor = actor_of(groups, policy, episodes, graphs=graphs or calling())
    sent = [watched(envs) for envs in groups]
    slot = empty_trajectory(
        policy.spec, unroll_length=T, num_columns=actor.num_columns, core_units=policy.core_units
    )
    found = []
    for version in range(TRAJECTORIES):
        actor.collect(slot, version)
        found.append({name: x.clone() for name, x, _ in slot.each()})
    state = actor.state_dict()
    actor.close()
    for envs, workers in zip(groups, sent, strict=True):
        alone = [x for x in workers if len(x) < len(envs.parts)]
        assert envs.paced or not alone, "all are acted for at once"
        # Processes may arrive together, those of the made-up ones never do.
        assert not isinstance(envs, PacedEnvs) or bool(alone) == envs.paced
    return found, episodes, state


def watched(envs):
    """The workers of each step that environments are asked for from now on."""
    found, send = [], envs.send_parts

    def noted(workers, action):
        found.append([*workers])
        send(workers, action)

    envs.send_parts = noted
    return found


def assert_same(one, other):
    for ours, theirs in zip(one[0], other[0], strict=True):
        for name, x in ours.items():
            assert torch.equal(x, theirs[name]), name
    assert one[1] == other[1]
    assert one[2].keys() == other[2].keys()
    for name, x in one[2].items():
        assert np.array_equal(x, other[2][name]), name


@pytest.fixture(params=[False, True], ids=["copied", "shared"])
def shared(request, monkeypatch):
    """Whether the GPU reaches the memory that environments write to."""
    monkeypatch.setattr(devices.PageLocked, "holds", request.param)
    return request.param


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("order", range(3))
def test_whoever_arrives_first_trajectories_episodes_and_state_are_the_same(
    core, past, order, shared
):
    def run(*, paced, graphs=None):
        groups = [
            PacedEnvs(SPEC, N, PARTS, seed=i, order=10 * order + i, paced=paced) for i in range(2)
        ]
        policy = policy_of(SPEC, core=core, last_reward=past, last_action=past)
        return collected(groups, policy, graphs)

    in_step = run(paced=False)
    assert len(in_step[1]) > 5
    assert_same(run(paced=True), in_step)
    assert_same(run(paced=True, graphs=recording()), in_step)


def test_a_stop_leaves_no_worker_at_a_step():
    class Soon(StopSignal):
        """Stops after some looks."""

        looks = 0

        @property
        def stopped(self):
            self.looks += 1
            return self.looks > 5

    groups = [PacedEnvs(SPEC, N, PARTS, seed=i) for i in range(2)]
    actor = actor_of(groups, policy_of(SPEC), [], graphs=calling(), stop=Soon())
    slot = empty_trajectory(SPEC, unroll_length=T, num_columns=2 * N, core_units=0)
    with pytest.raises(Stopped):
        actor.collect(slot, 0)
    assert not any(envs.in_flight for envs in groups)


def pong(paced):
    parts = [Part(4, first_env=first) for first in (0, 4)]
    groups = make_worker_groups(
        "PongNoFrameskip-v4", parts, seed=3, settings=EnvConfig(workers=2), num_threads=2
    )
    for envs in groups:
        assert envs.paced
        assert envs.pages.ctypes.data % mmap.PAGESIZE == 0, "only whole pages are locked"
        envs.paced = paced
    return groups


@pytest.mark.usefixtures("shared")
def test_games_in_processes_play_the_same_at_their_own_pace():
    runs = []
    for paced in (False, True):
        groups = pong(paced)
        runs.append(collected(groups, policy_of(groups[0].spec)))
    assert_same(*runs)


def test_a_worker_that_dies_on_the_way_is_told():
    groups = pong(True)
    actor = actor_of(groups, policy_of(groups[0].spec), [], graphs=calling())
    slot = empty_trajectory(groups[0].spec, unroll_length=T, num_columns=8, core_units=0)
    actor.collect(slot, 0)
    os.kill(groups[0].processes[1].pid, signal.SIGKILL)
    with pytest.raises(EnvWorkerDied, match="worker 1"):
        collect_for_ever(actor, slot)
    actor.close()


def collect_for_ever(actor, slot):
    while True:
        actor.collect(slot, 1)
