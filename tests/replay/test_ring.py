"""What is read from a ring is what was written, bit for bit, and takes the memory that was said."""

from __future__ import annotations

import mmap
from dataclasses import replace

import numpy as np
import pytest
import torch
from core_fakes import CONTINUOUS, DISCRETE, JOINT, random_batch, spec_of
from hypothesis import given
from hypothesis import strategies as st
from replay_fakes import ATARI, assert_same, pixels, play

from gossamer.replay.layout import Layout
from gossamer.replay.ring import Ring
from gossamer.replay.shards import ReplayShards
from gossamer.spec import ActionSpec
from gossamer.types import empty_trajectory


def make_ring(layout, capacity):
    return Ring(layout, capacity, mmap.mmap(-1, layout.nbytes(capacity)))


@pytest.mark.parametrize("padding", ["zero", "repeat"])
@pytest.mark.parametrize(("stack", "channels"), [(4, 1), (4, 3), (1, 3), (3, 1), (2, 2)])
def test_stacks_are_rebuilt_across_episode_starts(stack, channels, padding):
    spec = pixels(stack=stack, channels=channels, padding=padding)
    written = play(spec, 9, 6, seed=stack, end=0.3)
    assert written.starts[1:].any()
    ring = make_ring(Layout(spec, 9, 3), 8)
    ring.write([7, 0, 3, 2, 5, 1], written)
    read = empty_trajectory(spec, unroll_length=9, num_columns=6, core_units=3)
    ring.read([7, 0, 3, 2, 5, 1], read)
    assert_same(read, written)
    assert read.obs.stride() == written.obs.stride()


@given(seed=st.integers(0, 10_000), t=st.integers(1, 12), end=st.sampled_from([0.0, 0.2, 0.9]))
def test_any_pattern_of_starts(seed, t, end):
    spec = pixels(side=3)
    written = play(spec, t, 2, seed=seed, end=end)
    ring = make_ring(Layout(spec, t, 3), 2)
    ring.write([1, 0], written)
    read = empty_trajectory(spec, unroll_length=t, num_columns=2, core_units=3)
    ring.read([1, 0], read)
    assert_same(read, written)


ACTIONS = [
    DISCRETE,
    ActionSpec("multi_categorical", (2, 3)),
    ActionSpec("bernoulli", (4,)),
    CONTINUOUS,
    JOINT,
]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.kind)
def test_vectors_and_every_kind_of_action(action):
    spec = spec_of(action)
    batch = random_batch(spec, 5, 4, seed=1)
    ring = make_ring(Layout(spec, 5, batch.core_state.shape[0]), 4)
    ring.write([3, 2, 1, 0], batch)
    read = empty_trajectory(
        spec, unroll_length=5, num_columns=2, core_units=batch.core_state.shape[0]
    )
    ring.read([2, 0], read)
    assert_same(read, batch.take(torch.tensor([1, 3])))


def test_real_atari_is_rebuilt():
    pytest.importorskip("ale_py")
    from gossamer.envs.registry import make_vec_env
    from gossamer.envs.settings import EnvConfig
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.policies.settings import PolicyConfig
    from gossamer.roles.actor import Actor

    envs = make_vec_env(
        "ALE/Breakout-v5", num_envs=3, seed=3, rank=0, first_env=0, num_threads=1,
        settings=EnvConfig(size=36), max_episode_steps=25, training=True,
    )  # fmt: skip
    try:
        policy = ActorCritic(envs.spec, PolicyConfig(fc_size=16))
        actor = Actor([envs], policy, unroll_length=30, seeds=[1], on_episode=lambda _: None)
        slot = empty_trajectory(envs.spec, unroll_length=30, num_columns=3, core_units=0)
        ring = make_ring(Layout(envs.spec, 30), 3)
        read = empty_trajectory(envs.spec, unroll_length=30, num_columns=3, core_units=0)
        for _ in range(3):
            actor.collect(slot, 0)
            assert slot.starts[1:].any()
            ring.write([0, 1, 2], slot)
            ring.read([0, 1, 2], read)
            assert_same(read, slot)
    finally:
        envs.close()


@pytest.mark.parametrize("t", [16, 20, 32])
def test_bytes_of_a_transition(t):
    for num_actions in (4, 18):
        spec = replace(ATARI, action=ActionSpec("categorical", (num_actions,)))
        steps = 64 * t
        assert Layout(spec, t).nbytes(64) / steps <= 7056 * (t + 4) / t + 100
        more = Layout(spec, t, num_features=512).nbytes(64) - Layout(spec, t).nbytes(64)
        assert more == steps * 2 * 512


def test_a_block_holds_what_it_is_said_to():
    layout = Layout(pixels(), 4, 2, 8)
    views = layout.views(mmap.mmap(-1, layout.nbytes(5)), 5)
    held = sum(x.numel() * x.element_size() for x in views.values())
    assert held <= layout.nbytes(5) < held + 64 * len(views)
    for x in views.values():
        x.fill_(1)  # none lies on another
    views["obs"].zero_()
    assert all(bool(x.all()) for name, x in views.items() if name != "obs")


def test_entries_tell_what_is_in_a_place_from_what_was():
    spec = pixels()
    ring = make_ring(Layout(spec, 4, 3), 4)
    shards = ReplayShards([ring])
    places = np.array([2, 1])
    ring.write([2, 1], play(spec, 4, 2, seed=1))
    before = shards.entries(places, shards.sequences(places))
    shards.count_use(places[:1], np.array([2]))
    shards.count_use(places, np.array([2, 2]))
    assert shards.uses(places, np.array([2, 2])).tolist() == [2, 1]
    ring.write([2, 1], play(spec, 4, 2, seed=2))
    after = shards.entries(places, shards.sequences(places))
    assert len({*before.tolist(), *after.tolist()}) == 4
    assert shards.uses(places, np.array([4, 4])).tolist() == [0, 0]
    assert (ring.sequence[places] == 4).all()
