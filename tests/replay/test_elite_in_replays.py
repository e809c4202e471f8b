"""Elite and attentive replays as wholes: what is overwritten, what is replayed next, and what it is compared with."""

from __future__ import annotations

import math
import mmap

import numpy as np
import pytest
import torch
from core_fakes import spec_of
from replay_fakes import T, sample

from gossamer.replay.layout import Layout
from gossamer.replay.replay import Replay, Share, Tally
from gossamer.replay.ring import Ring
from gossamer.replay.selectors.attentive import AttentiveSettings
from gossamer.replay.selectors.elite import EliteSettings
from gossamer.replay.shards import ReplayShards
from gossamer.types import as_batch, empty_trajectory

SPEC, F = spec_of(), 3


def columns(count):
    return empty_trajectory(SPEC, unroll_length=T, num_columns=count, core_units=0)


def make(settings, *, num_learners=1, capacity=8):
    layout = Layout(SPEC, T, 0, F if settings.stores_features else 0)
    blocks = [mmap.mmap(-1, layout.nbytes(capacity)) for _ in range(num_learners)]
    made = []
    for rank in range(num_learners):
        rings = [Ring(layout, capacity, x) for x in blocks]
        made.append(Replay(ReplayShards(rings, rank), settings, candidates=columns(3), seed=rank))
    return made


class Moving:
    """Features that are what is observed, times how far the policy has come."""

    far = 1.0

    def __call__(self, trajectory):
        return self.far * trajectory.obs[:-1, :, :1].expand(-1, -1, F)


def store(replay, features, *levels):
    for level in levels:
        column = columns(1)
        column.obs.fill_(level)
        column.version.fill_(level)
        replay.add(column, features)


def held(replay):
    return replay.shards.ring.fields["version"].tolist()


@pytest.mark.parametrize("rank", [0, 1])
def test_what_has_moved_most_of_ones_own_columns_is_overwritten(rank):
    settings = EliteSettings(candidate_multiplier=1.0, insert="elite", elite_batch=100)
    replays, features = make(settings, num_learners=2), Moving()
    store(replays[0], features, 3, 1, 4, 8, 5, 2, 6, 7)
    store(replays[1], features, 6, 7, 1, 5, 8, 3, 2, 4)
    features.far = 2.0  # a column has moved as far as its level is high
    replay, other = replays[rank], held(replays[1 - rank])
    expected = held(replay)
    for level in (8, 7, 6):
        expected[expected.index(level)] = 0
        store(replay, features, 0)
        assert held(replay) == expected
    assert held(replays[1 - rank]) == other


def test_what_was_used_least_is_replayed_next_and_among_it_the_nearest():
    (replay,), features = make(EliteSettings(candidate_multiplier=4.0)), Moving()
    store(replay, features, 3, 1, 4, 8, 5, 2, 6, 7)
    features.far = 2.0
    replayed = []
    for _ in range(4):
        batch = as_batch(columns(2))
        assert sample(replay, batch, features)
        replay.count_use()
        replayed.append(sorted(batch.version.tolist()))
    assert replayed == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_attentive_replay_compares_with_the_last_row_of_the_newest_column():
    (replay,), features = make(AttentiveSettings(candidate_multiplier=4.0), capacity=4), Moving()
    store(replay, features, 0, T - 1, 9)
    newest = columns(1)
    newest.obs.copy_(torch.arange(T + 1.0)[:, None, None])  # features are of the rows but the last
    newest.version.fill_(100)
    replay.add(newest, features)
    batch = as_batch(columns(1))
    assert sample(replay, batch, features)
    assert batch.version.tolist() == [T - 1]


@pytest.mark.parametrize("kind", [EliteSettings, AttentiveSettings])
@pytest.mark.parametrize(
    ("distance", "order"), [("lp", 1.0), ("lp", 2.0), ("lp", 4.0), ("cosine", 2.0), ("kl", 2.0)]
)
def test_the_distance_is_that_of_the_settings(kind, distance, order):
    now, like = torch.randn(2, T, 4, F, generator=torch.Generator().manual_seed(3)).half()
    a, b = now.double().numpy(), like.double().numpy()
    if distance == "lp":
        expected = (np.abs(a - b) ** order).sum((0, 2)) ** (1.0 / order)
    elif distance == "cosine":
        expected = 1.0 - (a * b).sum((0, 2)) / np.sqrt((a * a).sum((0, 2)) * (b * b).sum((0, 2)))
    else:
        p, q = (np.exp(x) / np.exp(x).sum(2, keepdims=True) for x in (a, b))
        expected = (p * np.log(p / q)).sum((0, 2))
    found = kind(distance=distance, norm_order=order).distance_of(now.float(), like)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("elite_batch", [1, 3])
def test_as_many_columns_as_were_asked_for_compete_for_being_overwritten(elite_batch):
    settings = EliteSettings(candidate_multiplier=1.0, insert="elite", elite_batch=elite_batch)
    (replay,), features, looked_at = make(settings), Moving(), []
    store(replay, features, 3, 1, 4, 8, 5, 2, 6, 7)

    def counted(trajectory):
        looked_at.extend(trajectory.version.tolist())
        return features(trajectory)

    store(replay, counted, 9)
    assert looked_at[0] == 9, "the one that comes"
    assert len(looked_at) == 1 + elite_batch


def test_a_successor_compares_with_the_newest_state_of_whom_it_follows():
    settings = AttentiveSettings(candidate_multiplier=10.0)
    (other, dead), features = make(settings, num_learners=2), Moving()
    store(other, features, 1, 2, 3)
    store(dead, features, 5, 6, 7)
    successor = Replay(dead.shards, settings, candidates=columns(3), seed=1)
    successor.take_over(inserted=dead.inserted, draws=0)
    batch = as_batch(columns(1))
    assert sample(successor, batch, features)
    assert batch.version.tolist() == [7]


def metrics_of(replay, features, wanted):
    """What metrics say of a batch with so many columns of a replay."""
    tally, batch = Tally([Share(replay, wanted)]), as_batch(columns(1 + wanted))
    assert sample(replay, batch.columns(1, 1 + wanted), features)
    tally.count(batch, columns(1), [replay.count_use()])
    return tally.take()


def test_metrics_tell_the_distances_of_candidates_and_of_those_that_were_chosen():
    settings = EliteSettings(strategy="nearest", candidate_multiplier=10.0)
    (replay,), features = make(settings, capacity=11), Moving()
    store(replay, features, *range(11))
    features.far = 2.0  # a column has moved as far as its level is high
    metrics, level = metrics_of(replay, features, 2), math.sqrt(T * F)
    told = {"p10": 1.0, "p50": 5.0, "p90": 9.0, "chosen": 0.5}
    for name, expected in told.items():
        assert metrics[f"replay/elite_distance_{name}"] == pytest.approx(expected * level), name


def test_where_no_candidate_is_known_any_are_replayed_and_no_distance_is_told():
    (replay,), features = make(EliteSettings(candidate_multiplier=2.0)), Moving()
    store(replay, features, 3, 1, 4, 8)
    features.far = math.nan
    metrics = metrics_of(replay, features, 2)
    assert metrics["replay/elite_columns"] == 4.0
    assert not any("distance" in name for name in metrics)
