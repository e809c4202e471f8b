"""A mix of replays over a queue that is a list, and what comes of it."""

from __future__ import annotations

import mmap
from dataclasses import replace

import numpy as np
import torch
from core_fakes import random_batch, small_policy, spec_of

from gossamer.replay.batches import BatchSource
from gossamer.replay.layout import Layout
from gossamer.replay.recent import RecentPolicy
from gossamer.replay.replay import Replay, Share
from gossamer.replay.ring import Ring
from gossamer.replay.selectors.elite import EliteSettings
from gossamer.replay.shards import ReplayShards
from gossamer.spec import ActionSpec, EnvSpec, one_leaf
from gossamer.types import STORED, Trajectory, as_batch, empty_trajectory

T, B = 5, 4


class ListQueue:
    """Gives trajectories one after another; each tells its number by its version."""

    def __init__(self, spec, core_units=0, columns=B):
        self.spec, self.core_units, self.columns = spec, core_units, columns
        self.given, self.released = 0, []

    def get(self):
        trajectory = trajectory_of(
            random_batch(self.spec, T, self.columns, seed=self.given, core_units=self.core_units)
        )
        trajectory.version.fill_(self.given)
        self.given += 1
        return trajectory

    def release(self, trajectory):
        self.released.append(int(trajectory.version[0]))


def trajectory_of(batch):
    return Trajectory(**{name: getattr(batch, name) for name in STORED})


def make_replay(spec, kind, *, capacity=20, core_units=0, seed=7, features=8):
    needs = features if isinstance(kind, EliteSettings) else 0
    layout = Layout(spec, T, core_units, needs)
    candidates = empty_trajectory(spec, unroll_length=T, num_columns=3, core_units=core_units)
    shards = ReplayShards([Ring(layout, capacity, mmap.mmap(-1, layout.nbytes(capacity)))])
    return Replay(shards, kind, candidates=candidates if needs else None, seed=seed)


def sample(replay, batch, features=None):
    """Write columns of a replay over a batch, if there are as many; return whether there were."""
    every = replay.ready(batch.num_columns)
    return every is not None and replay.sample(batch, every, features)


def make_mix(
    *kinds,
    columns=B,
    ahead=1,
    threaded=False,
    policy=None,
    queue=None,
    capacity=20,
    burn_in=0,
    saved=True,
):
    spec = spec_of()
    policy = policy or small_policy(spec)
    queue = queue or ListQueue(spec, policy.core_units)
    shares = [
        Share(
            make_replay(spec, kind, core_units=policy.core_units, capacity=capacity, seed=i),
            columns,
        )
        for i, kind in enumerate(kinds)
    ]
    buffers = [
        as_batch(
            empty_trajectory(
                spec,
                unroll_length=T,
                num_columns=B + columns * len(kinds),
                core_units=policy.core_units,
            ),
            burn_in=burn_in,
        )
        for _ in range(ahead + 1)
    ]
    recent = None
    if any(isinstance(kind, EliteSettings) for kind in kinds):
        recent = RecentPolicy(small_policy(spec), policy.shared_tensors(), ahead + 2)
    mix = BatchSource(
        queue,
        shares,
        buffers,
        policy=recent,
        burn_in=burn_in,
        saved=saved,
        threaded=threaded,
        patience_seconds=20.0,
    )
    return mix, queue, policy


def take(mix, count, policy=None):
    """The entries, versions and observations of so many batches; a policy moves meanwhile."""
    taken = []
    for _ in range(count):
        batch = mix.sample()
        taken.append((batch.entry.tolist(), batch.version.tolist(), batch.obs.clone()))
        if policy is not None:
            with torch.no_grad():
                for p in policy.parameters():
                    p.mul_(0.9).add_(0.01)
        mix.release()
    return taken


def same(one, other):
    return len(one) == len(other) and all(
        a[:2] == b[:2] and torch.equal(a[2], b[2]) for a, b in zip(one, other, strict=True)
    )


ATARI = EnvSpec(
    env_id="Fake-v0",
    leaves=one_leaf("pixels", (4, 84, 84), frame_stack=4, stack_padding="zero"),
    action=ActionSpec("categorical", (6,)),
    protocol="",
    max_episode_steps=100,
)


def pixels(*, stack=4, channels=1, side=5, padding="zero"):
    leaves = one_leaf(
        "pixels",
        (stack * channels, side, side),
        frame_stack=stack,
        stack_padding=padding if stack > 1 else "none",
    )
    return replace(ATARI, leaves=leaves)


def play(spec, t, b, *, seed, end=0.25):
    """Trajectory of environments that stack frames as wrappers do, one after another."""
    rng = np.random.default_rng(seed)
    trajectory = empty_trajectory(spec, unroll_length=t, num_columns=b, core_units=3)
    k, shape = (
        spec.leaf.frame_stack,
        (spec.obs_shape[0] // spec.leaf.frame_stack, *spec.obs_shape[1:]),
    )
    for column in range(b):
        new = lambda: rng.integers(1, 256, size=shape, dtype=np.uint8)  # noqa: E731
        stack = [new() for _ in range(k)]
        starts = rng.random(t + 1) < end
        for row in range(t + 1):
            frame = new()
            if starts[row]:
                first = np.zeros_like(frame) if spec.leaf.stack_padding == "zero" else frame
                stack = [first] * k
            stack = [*stack[1:], frame]
            trajectory.obs[row, column] = torch.from_numpy(np.concatenate(stack))
        trajectory.starts[:, column] = torch.from_numpy(starts)
    generator = torch.Generator().manual_seed(seed)
    for name in ("reward", "behavior", "value", "core_state", "last_reward"):
        getattr(trajectory, name).normal_(generator=generator)
    trajectory.action.random_(6, generator=generator)
    trajectory.last_action.random_(6, generator=generator)
    for name in ("terminated", "truncated", "valid"):
        getattr(trajectory, name).random_(2, generator=generator)
    trajectory.task.random_(100, generator=generator)
    trajectory.version.random_(100, generator=generator)
    return trajectory


def assert_same(a: Trajectory, b: Trajectory):
    for name in STORED:
        x, y = getattr(a, name), getattr(b, name)
        assert x.dtype == y.dtype, name
        assert torch.equal(x, y), name
