"""Entries on a GPU, and on their way there, are those that a CPU keeps, bit for bit."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from core_fakes import CONTINUOUS, DISCRETE, random_batch, small_policy, spec_of
from fake_gpu import META, fake_gpu
from hypothesis import given
from hypothesis import strategies as st
from replay_fakes import assert_same, make_mix, make_replay, pixels, play

from gossamer.replay import recent
from gossamer.replay.entries import frames_of, pack, rebuild_stacks, unpack
from gossamer.replay.layout import Layout
from gossamer.replay.ring import DeviceRing, Ring
from gossamer.replay.selectors.uniform import UniformSettings
from gossamer.replay.shards import ReplayShards
from gossamer.spec import ActionSpec
from gossamer.system import devices
from gossamer.types import empty_trajectory

CPU = torch.device("cpu")


def host_ring(layout, capacity):
    return Ring(layout, capacity, mmap.mmap(-1, layout.nbytes(capacity)))


def empty(spec, t, b, units=3):
    return empty_trajectory(spec, unroll_length=t, num_columns=b, core_units=units)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Trajectories of the CPU are taken for those of a GPU."""
    monkeypatch.setattr(devices, "is_gpu", lambda device: True)


@pytest.mark.parametrize("padding", ["zero", "repeat"])
@pytest.mark.parametrize(("stack", "channels"), [(4, 1), (4, 3), (1, 3), (3, 1), (2, 2)])
def test_entries_are_those_of_a_ring_and_rebuilt_as_it_does(stack, channels, padding):
    spec = pixels(stack=stack, channels=channels, padding=padding)
    written, layout = play(spec, 9, 6, seed=stack, end=0.3), Layout(spec, 9, 3)
    assert written.starts[1:].any()
    ring = host_ring(layout, 6)
    ring.write(range(6), written)
    entries = pack(written, layout)
    for name, x in entries.items():
        assert torch.equal(x, ring.fields[name]), name
        assert x.dtype == ring.fields[name].dtype
    read = empty(spec, 9, 6)
    unpack(entries, read, layout)
    assert_same(read, written)
    assert read.obs.stride() == written.obs.stride()


@given(
    seed=st.integers(0, 10_000),
    t=st.integers(1, 12),
    stack=st.integers(1, 5),
    end=st.sampled_from([0.0, 0.2, 0.9, 1.0]),
    padding=st.sampled_from(["zero", "repeat"]),
)
def test_any_pattern_of_starts(seed, t, stack, end, padding):
    spec = pixels(stack=stack, side=3, padding=padding)
    written = play(spec, t, 3, seed=seed, end=end)
    frames = frames_of(written.obs, stack=stack)
    assert frames.shape == (3, t + stack, 3, 3, 1)
    read = torch.full_like(written.obs, 9)
    rebuild_stacks(frames, written.starts, read, stack=stack, padding=padding)
    assert torch.equal(read, written.obs)


RINGS = ("of the host, sent", "on the device")


def shards_of(layout, capacity, kind):
    if kind == "on the device":
        return ReplayShards([DeviceRing(layout, capacity, CPU)])
    return ReplayShards([host_ring(layout, capacity)])


@pytest.mark.parametrize("kind", RINGS)
def test_what_is_read_was_written(kind, as_on_a_gpu):
    spec = pixels()
    layout = Layout(spec, 5, 3, num_features=4)
    shards = shards_of(layout, 6, kind)
    first, second = play(spec, 5, 4, seed=1), play(spec, 5, 4, seed=2)
    features = torch.randn(5, 4, 4)
    shards.ring.write([0, 1, 2, 3], first, features)
    shards.ring.write([4, 5, 0, 1], second)
    assert shards.readable().tolist() == list(range(6))
    read = empty(spec, 5, 3)
    for _ in range(2):  # the second time through the same memory
        seen = shards.read(np.array([5, 0, 3]), read)
        assert seen.tolist() == [2, 4, 2]
        assert_same(read.columns(0, 2), second.take(torch.tensor([1, 2])))
        assert_same(read.columns(2, 3), first.take(torch.tensor([3])))
    # A smaller read, after a larger one.
    shards.read(np.array([2]), read.columns(1, 2))
    assert_same(read.columns(1, 2), first.take(torch.tensor([2])))
    for name in ("reward", "action", "version", "terminated"):
        found = torch.from_numpy(shards.numbers(name, np.array([4, 3])))
        columns = [getattr(second, name)[..., 0], getattr(first, name)[..., 3]]
        assert torch.equal(found, torch.stack(columns).to(found.dtype)), name
    held = shards.stored_features(np.array([3, 0]))
    assert torch.equal(held[:, 0], features[:, 3].half())
    assert held[0, 1, 0].isinf(), "written without features"


@pytest.mark.parametrize("kind", RINGS)
@pytest.mark.parametrize(
    "action",
    [DISCRETE, ActionSpec("multi_categorical", (2, 3)), ActionSpec("bernoulli", (4,)), CONTINUOUS],
    ids=lambda action: action.kind,
)
def test_vectors_and_every_kind_of_action(kind, action, as_on_a_gpu):
    spec = spec_of(action)
    batch = random_batch(spec, 5, 4, seed=1)
    units = len(batch.core_state)
    shards = shards_of(Layout(spec, 5, units), 4, kind)
    shards.ring.write([3, 2, 1, 0], batch)
    read = empty(spec, 5, 2, units)
    shards.read(np.array([2, 0]), read)
    assert_same(read, batch.take(torch.tensor([1, 3])))


def test_learners_rings_are_read_together_on_the_way_to_a_gpu(as_on_a_gpu):
    spec = pixels()
    layout = Layout(spec, 5, 3)
    rings = [host_ring(layout, 4) for _ in range(3)]
    written = [play(spec, 5, 4, seed=i) for i in range(3)]
    for ring, columns in zip(rings, written, strict=True):
        ring.write(range(4), columns)
    shards = ReplayShards(rings, 1)
    read = empty(spec, 5, 4)
    rings[2].sequence[1] |= 1  # being written
    seen = shards.read(np.array([9, 0, 6, 3]), read)
    assert (seen < 0).tolist() == [True, False, False, False]
    for column, (ring, place) in enumerate([(2, 1), (0, 0), (1, 2), (0, 3)]):
        assert_same(read.columns(column, column + 1), written[ring].take(torch.tensor([place])))


@pytest.mark.parametrize("kinds", [RINGS, RINGS[::-1]])
def test_a_checkpoint_is_the_same_wherever_it_was_kept(kinds, as_on_a_gpu):
    spec = pixels()
    layout = Layout(spec, 5, 3)
    before, after = (shards_of(layout, 6, kind) for kind in kinds)
    written = play(spec, 5, 4, seed=3)
    before.ring.write([0, 1, 2, 3], written)
    before.count_use(np.array([1]), np.array([2]))
    after.load_state_dict(before.state_dict())
    read = empty(spec, 5, 4)
    assert after.read(np.arange(4), read).tolist() == [2] * 4
    assert_same(read, written)
    assert after.uses(np.arange(2), np.array([2, 2])).tolist() == [0, 1]
    held, kept = before.state_dict(), after.state_dict()
    assert held.keys() == kept.keys()
    assert all(torch.equal(x, kept[name]) for name, x in held.items())


def test_a_successor_finds_nothing_of_a_ring_on_the_device():
    replay = make_replay(pixels(), UniformSettings(), capacity=8, core_units=3)
    replay.shards = ReplayShards([DeviceRing(Layout(pixels(), 5, 3), 8, CPU)])
    replay.take_over(inserted=40, draws=2)
    assert (replay.held, replay.newest, replay.inserted) == (0, -1, 40)
    assert replay.filling == 0.0, "it fills again before it is replayed in full"


def test_a_slot_is_given_back_when_the_device_has_stored_it(monkeypatch):
    told, (mix, queue, _) = [], make_mix(UniformSettings())
    monkeypatch.setattr(devices, "wait", lambda device: told.append("wait"))
    release = queue.release
    monkeypatch.setattr(queue, "release", lambda x: told.append("release") or release(x))
    add = mix.shares[0].replay.add
    monkeypatch.setattr(mix.shares[0].replay, "add", lambda *x: told.append("store") or add(*x))
    mix.sample()
    assert told[-3:] == ["store", "wait", "release"]


def test_env_steps_of_a_batch_are_those_of_its_trajectory(monkeypatch):
    mix, queue, _ = make_mix(UniformSettings(), burn_in=1)
    get, release = queue.get, queue.release

    def counted():
        trajectory = get()
        trajectory.env_steps = int(trajectory.valid.sum())
        return trajectory

    def refilled(trajectory):
        release(trajectory)
        trajectory.env_steps = 999  # an actor has it already

    monkeypatch.setattr(queue, "get", counted)
    monkeypatch.setattr(queue, "release", refilled)
    replayed = 0
    for _ in range(6):
        batch = mix.sample()
        online = batch.columns(0, 4)
        assert batch.env_steps == online.valid.sum()
        assert online.env_steps == -1, "of a part it is not known"
        replayed += int(batch.replayed.sum())
        mix.release()
    assert replayed


def test_features_come_after_the_policy_that_was_kept(monkeypatch):
    told = []

    class Noted:
        def __init__(self, device):
            self.number = len([x for x, _ in told if x == "made"])
            told.append(("made", self.number))

        def set(self):
            told.append(("set", self.number))

        def follow(self):
            told.append(("follow", self.number))

    monkeypatch.setattr(recent, "Mark", Noted)
    policy = small_policy(spec_of())
    kept = recent.RecentPolicy(small_policy(spec_of()), policy.shared_tensors(), 2)
    told.clear()
    batch = random_batch(spec_of(), 5, 2, seed=1)
    for version in range(3):
        assert kept.take() == version
        kept.features(version, batch)
    assert told == [(what, n) for n in (0, 1, 0) for what in ("set", "follow")]


@pytest.mark.parametrize("num_features", [0, 4])
def test_nothing_is_waited_for_on_a_device(num_features):
    spec = pixels()
    layout = Layout(spec, 5, 3, num_features=num_features)
    with fake_gpu() as mode:
        ring = DeviceRing(layout, 6, META)
        on_host = {name for name, x in ring.fields.items() if x.device == CPU}
        assert on_host == {"task", "version", "sequence"}
        written = play(spec, 5, 4, seed=1)
        there = empty_trajectory(spec, unroll_length=5, num_columns=4, core_units=3, device=META)
        mode.waits.clear()
        features = torch.zeros(5, 4, 4) if num_features else None
        ring.write([1, 2, 3, 4], there, features)
        ring.write([0, 1, 2, 3], written)  # of an actor elsewhere
        ring.read([1, 2], there.columns(0, 2))
        assert mode.waits == []
