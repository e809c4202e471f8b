"""What a learner picks from a replay while others write it: whole, different and comparable columns."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from core_fakes import random_batch, spec_of
from replay_fakes import sample

from gossamer.replay.batches import BatchSource, Share
from gossamer.replay.layout import Layout
from gossamer.replay.replay import Replay
from gossamer.replay.ring import Ring
from gossamer.replay.selectors.attentive import AttentiveSettings
from gossamer.replay.selectors.circular import CircularSettings
from gossamer.replay.selectors.elite import EliteSettings
from gossamer.replay.selectors.uniform import UniformSettings
from gossamer.replay.shards import ReplayShards
from gossamer.types import STORED, Trajectory, as_batch, empty_trajectory

T, B, F = 6, 4, 3
SPEC = spec_of()


class BusyRing(Ring):
    """A ring whose writer is at some places whenever they are read."""

    hot: tuple[int, ...] = ()
    reads = 0
    times = 1 << 30

    def read(self, places, into, *args):
        super().read(places, into, *args)
        self.reads += 1
        if self.times:
            self.times -= 1
            self.sequence[list(self.hot)] += 2

    def stored_features(self, places):
        found = super().stored_features(places)
        self.sequence[list(getattr(self, "hot_features", ()))] += 2
        return found


def make(num_learners, settings, *, capacity=8, features=0):
    layout = Layout(SPEC, T, 0, features)
    blocks = [mmap.mmap(-1, layout.nbytes(capacity)) for _ in range(num_learners)]
    made = []
    for rank in range(num_learners):
        rings = [BusyRing(layout, capacity, x) for x in blocks]
        candidates = empty_trajectory(SPEC, unroll_length=T, num_columns=32, core_units=0)
        made.append(Replay(ReplayShards(rings, rank), settings, candidates=candidates, seed=rank))
    return made


def constant(level, columns=B):
    trajectory = empty_trajectory(SPEC, unroll_length=T, num_columns=columns, core_units=0)
    for x in (trajectory.obs, trajectory.reward, trajectory.value, trajectory.behavior):
        x.fill_(level)
    trajectory.version.fill_(int(level))
    return trajectory


def batch_of(columns):
    return as_batch(empty_trajectory(SPEC, unroll_length=T, num_columns=columns, core_units=0))


def level_features(trajectory):
    return trajectory.obs[:-1, :, :1].expand(-1, -1, F)


def test_what_was_never_whole_is_not_there():
    one, other = make(2, UniformSettings())
    one.add(constant(1.0), None)
    one.shards.ring.sequence[[1, 5]] |= 1  # 5 was never whole
    assert other.shards.readable().tolist() == [0, 2, 3]
    assert other.ready(4) is None
    assert other.ready(3).tolist() == [0, 2, 3]


def test_without_columns_of_ones_own_a_batch_may_have_to_be_online_only():
    one, other = make(2, UniformSettings())
    one.add(constant(1.0), None)
    other.shards.rings[0].hot = (0, 1, 2, 3)
    assert other.ready(4) is not None
    assert not sample(other, batch_of(4))
    assert other.draws == 0
    mix = BatchSource(Online(), [Share(other, 4)], [batch_of(B + 4) for _ in range(2)])
    assert mix.sample().num_columns == B
    mix.release()
    assert mix.sample().num_columns == B + 4
    mix.close()


def test_what_another_replay_has_no_columns_for_has_not_been_used():
    uniform, other = make(1, UniformSettings())[0], make(2, UniformSettings())[1]
    other.shards.rings[0].fields["version"].fill_(1)
    other.shards.rings[0].sequence[:] = 2  # another's, who is at all of them
    other.shards.rings[0].hot = tuple(range(8))
    buffers = [batch_of(9 + 2 * B) for _ in range(2)]
    mix = BatchSource(Online(), [Share(other, 9), Share(uniform, B)], buffers)
    for _ in range(4):
        assert mix.sample().num_columns == B
        mix.release()
    assert uniform.inserted == 4 * B
    assert uniform.draws == 0
    every = uniform.shards.readable()
    assert not uniform.shards.uses(every, uniform.shards.sequences(every)).any()
    mix.close()


class Online:
    """A queue of trajectories, each of the version that it is the number of."""

    def __init__(self):
        self.given = 0

    def get(self):
        self.given += 1
        return constant(float(self.given))

    def release(self, trajectory):
        pass


def test_what_is_drawn_anew_is_different():
    one, other = make(2, UniformSettings())
    one.add(constant(1.0), None)
    one.add(constant(1.0), None)
    other.add(constant(2.0), None)
    other.shards.rings[0].hot = (0, 3, 5)
    for _ in range(30):
        batch = batch_of(9)
        assert sample(other, batch)
        places = batch.entry.numpy() % 16
        assert sorted(places.tolist()) == [1, 2, 4, 6, 7, 8, 9, 10, 11]
        assert sorted(batch.version.tolist()) == [1] * 5 + [2] * 4


def test_what_is_drawn_anew_is_of_the_saved_stream():
    """Even by a circular replay, which draws nothing else."""
    one, other = make(2, CircularSettings())
    one.add(constant(1.0), None)
    other.add(constant(2.0), None)
    other.add(constant(2.0), None)
    other.shards.rings[0].hot = (0, 1, 2, 3)

    def drawn():
        batches = [batch_of(B) for _ in range(10)]
        assert all(sample(other, batch) for batch in batches)
        return [batch.entry.tolist() for batch in batches]

    state = other.state_dict(held=False)
    expected = drawn()
    assert drawn() != expected
    other.load_state_dict(state, held=False)
    assert drawn() == expected


def test_an_entry_is_told_by_what_was_read():
    """Another writes over a place as soon as it has been read: its successor has not been used."""
    one, other = make(2, UniformSettings())
    one.add(constant(1.0), None)
    other.add(constant(2.0), None)
    confirm = other.shards.confirm

    def confirmed_just_before(places, sequences):
        seen = confirm(places, sequences)
        one.shards.ring.sequence[:4] += 2
        return seen

    other.shards.confirm = confirmed_just_before
    batch = batch_of(8)
    assert sample(other, batch)
    assert sorted(batch.entry.tolist()) == [16, 17, 18, 19, 24, 25, 26, 27]
    places = np.arange(4)
    assert other.shards.uses(places, other.shards.sequences(places)).tolist() == [0] * 4


def test_attentive_sampling_waits_for_a_state_of_its_own():
    one, other = make(2, AttentiveSettings())
    one.add(constant(1.0), None)
    assert one.ready(2) is not None
    assert other.ready(2) is None, "nothing that columns could be like"
    other.add(constant(2.0), None)
    assert other.ready(2) is not None


def test_the_newest_state_is_that_of_one_environment_after_another():
    _, replay = make(2, AttentiveSettings(strategy="nearest", candidate_multiplier=9.0))
    for k in range(2 * B):
        trajectory = constant(0.0)
        levels = torch.arange(B) + k * B  # of each environment another
        trajectory.obs.copy_(levels[:, None].expand(T + 1, B, -1))
        trajectory.version.copy_(levels)
        replay.add(trajectory, level_features)
        batch = batch_of(1)
        assert sample(replay, batch, level_features)
        assert batch.version.item() == k * B + k % B, "nothing is nearer to it than itself"


def test_in_a_shared_replay_features_are_always_stored():
    one, other = make(2, EliteSettings(strategy="nearest"), features=F)
    one.draws = 10**6
    assert one.measures
    for level in (5.0, 6.0, 1.0):  # the last over the first
        one.add(constant(level), level_features)
    other.add(constant(4.0), level_features)
    batch = batch_of(B)
    assert sample(other, batch, lambda x: torch.full((T, x.num_columns, F), 1.0))
    assert (batch.version == 1).all()


def test_columns_without_features_are_no_candidates():
    """As after a resume with more to anneal; the memory tells zeros of them, or what was there before."""
    (replay,) = make(1, EliteSettings(strategy="nearest", anneal_updates=1), features=F)
    replay.add(constant(7.0), level_features)
    replay.draws = 1
    assert not replay.measures
    replay.add(constant(2.0), None)
    longer = EliteSettings(strategy="nearest", candidate_multiplier=9.0)
    candidates = empty_trajectory(SPEC, unroll_length=T, num_columns=64, core_units=0)
    again = Replay(replay.shards, longer, candidates=candidates, seed=1)
    again.take_over(inserted=8, draws=0)
    nothing = lambda x: torch.zeros(T, x.num_columns, F)  # noqa: E731
    batch = batch_of(B)
    sample(again, batch, nothing)
    assert (batch.version == 7).all()
    batch = batch_of(6)
    sample(again, batch, nothing)
    assert sorted(batch.version.tolist()) == [2, 2, 7, 7, 7, 7], "the rest uniformly"


@pytest.mark.parametrize("when", ["hot", "hot_features"])
def test_what_changes_while_it_is_measured_is_no_candidate(when):
    one, other = make(2, EliteSettings(strategy="least_used", candidate_multiplier=9.0), features=F)
    one.add(constant(1.0), level_features)
    other.add(constant(2.0), level_features)
    batch = batch_of(B)
    own = np.arange(8, 12)
    other.shards.count_use(own, other.shards.sequences(own))
    ring = other.shards.rings[0]
    setattr(ring, when, (0, 1, 2, 3))
    ring.times = 1  # while it is measured
    assert sample(other, batch, level_features)
    assert (batch.version == 2).all()


def test_the_sequence_is_put_back_last():
    (replay,) = make(1, EliteSettings(), features=F)
    replay.add(constant(1.0), level_features)
    asked = []

    class Watched(dict):
        def __getitem__(self, name):
            asked.append(name)
            return super().__getitem__(name)

    state = Watched(replay.shards.state_dict())
    (other,) = make(1, EliteSettings(), features=F)
    other.shards.load_state_dict(state)
    assert asked[-1] == "ring.sequence"
    assert "ring.features" in asked
    assert other.shards.readable().tolist() == [0, 1, 2, 3]


def test_the_age_is_of_columns_of_ones_own():
    one, other = make(2, UniformSettings())
    one.add(constant(10_000.0), None)
    mix = BatchSource(Online(), [Share(other, 6)], [batch_of(B + 6) for _ in range(2)])
    for _ in range(8):
        mix.sample()
        mix.release()
    other.updates_per_batch = 5
    metrics = mix.take_metrics()
    assert metrics["replay/ratio"] > 1.0
    assert 5.0 <= metrics["replay/age_updates"] <= 15.0
    mix.close()


def test_columns_of_a_segment_are_read_in_one_go():
    replays = make(3, UniformSettings())
    written = []
    for rank, replay in enumerate(replays):
        batch = random_batch(SPEC, T, B, seed=rank)
        written.append(Trajectory(**{x: getattr(batch, x) for x in STORED}))
        replay.add(written[-1], None)
    places = np.array([1, 17, 0, 9, 19, 8, 3])
    into = empty_trajectory(SPEC, unroll_length=T, num_columns=7, core_units=0)
    assert (replays[0].shards.read(places, into) > 0).all()
    assert [ring.reads for ring in replays[0].shards.rings] == [1, 1, 1]
    for i, place in enumerate(places.tolist()):
        source, column = written[place // 8], place % 8
        for name in ("obs", "action", "reward", "starts", "behavior"):
            assert torch.equal(getattr(into, name)[:, i], getattr(source, name)[:, column]), name
        for name in ("version", "last_reward", "last_action"):
            assert torch.equal(getattr(into, name)[i], getattr(source, name)[column]), name


def test_a_circular_replay_of_many_writers_takes_what_is_new():
    """Four write as much as each can replay: what it cannot use is left, not replayed just before its end."""
    replays = make(4, CircularSettings())
    for step in range(10):
        for replay in replays:
            replay.add(constant(float(step)), None)
        if step > 1:
            batch = batch_of(B)
            assert sample(replays[2], batch)
            assert (batch.version == step).all()


@pytest.mark.parametrize("steps", [1, 2, 3, 5])  # of 4 columns each, into 8 or 6 places
@pytest.mark.parametrize("capacity", [8, 6])
def test_a_successor_goes_on_where_the_dead_writer_was(steps, capacity):
    settings = EliteSettings(
        candidate_multiplier=3.0, anneal_updates=10, capacity=capacity, learn_start=4 * T * B
    )
    layout = Layout(SPEC, T, 0, F)
    block = mmap.mmap(-1, layout.nbytes(capacity))

    def replay():
        candidates = empty_trajectory(SPEC, unroll_length=T, num_columns=32, core_units=0)
        shards = ReplayShards([Ring(layout, capacity, block)], 0)
        return Replay(shards, settings, candidates=candidates, seed=0)

    dead, successor = replay(), replay()
    for step in range(steps):
        dead.add(constant(float(step)), level_features)
    assert successor.held == 0
    successor.take_over(inserted=dead.inserted, draws=4)
    assert successor.held == dead.held
    assert (successor.ready(B) is not None) == (dead.ready(B) is not None) == (steps >= 4)
    assert successor.settings.multiplier(successor.updates) == pytest.approx(2.2)
    # The oldest are overwritten next, as the dead one would have.
    assert successor.places_for(B, level_features) == dead.places_for(B, level_features)
    successor.add(constant(9.0), level_features)
    every = successor.shards.readable()
    ages = successor.shards.ages(every)
    versions = successor.shards.ring.fields["version"].numpy()
    newest = [int(versions[place]) for place in every[np.argsort(ages)]]
    assert newest == sorted(newest, reverse=True)
    if steps == 1:
        fresh = replay()
        fresh.shards.ring.sequence[:] = 0
        fresh.take_over(inserted=100, draws=1)
        assert fresh.held == 0, "nothing of it is there"
