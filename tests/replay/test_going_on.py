"""Replays over the length of a run: after a resume, a backlog, the end of annealing."""

from __future__ import annotations

import pytest
import torch
from replay_fakes import B, T, make_mix, same, take

from gossamer.replay.settings import (
    AttentiveSettings,
    CircularSettings,
    EliteSettings,
    UniformSettings,
)


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_without_what_it_held_a_replay_goes_on_counting(ahead, threaded):
    kinds = (EliteSettings(anneal_updates=12, learn_start=6 * B * T),)
    one, _, policy = make_mix(*kinds, saved=False, ahead=ahead, threaded=threaded)
    drawn = [stream(one)]
    replayed = 0
    for _ in range(12):
        replayed += one.sample().num_columns > B
        one.release()
        one.state_dict()  # waits
        drawn.append(stream(one))
        with torch.no_grad():
            for p in policy.parameters():
                p.mul_(0.9)
    state = one.state_dict()
    one.close()
    assert not [name for name, x in state.items() if isinstance(x, torch.Tensor)]
    other, *_ = make_mix(*kinds, saved=False)
    other.load_state_dict(state)
    after = other._shares[0].replay
    assert after.inserted == 12 * B
    assert after.draws == replayed > 2, "batches that were ready and are not kept were never drawn"
    assert after.stream() in drawn
    assert after.held == 0
    sizes = []
    for _ in range(4):
        sizes.append(other.sample().num_columns)
        other.release()
    assert sizes == [B, 2 * B, 2 * B, 2 * B], "learn_start was reached long ago"
    assert after.draws > replayed
    assert after.held == 4 * B


def stream(mix):
    return mix._shares[0].replay.stream()


def test_a_circular_replay_works_off_what_waited_for_learn_start():
    kind = CircularSettings(learn_start=8 * B * T)
    mix, *_ = make_mix(kind, columns=3 * B, capacity=60 * B)
    seen: dict[int, list[int]] = {}
    for k in range(80):
        batch = mix.sample()
        for entry in batch.entry[B:].tolist():
            seen.setdefault(entry, []).append(k)
        if k > 30:
            assert (k - batch.version[B:]).max() <= 4
        mix.release()
    late = [batches for batches in seen.values() if 31 < batches[0] < 74]
    assert len(late) > 10 * B
    assert all(len(batches) == 3 for batches in late), "as often as every other"


def test_a_policy_is_kept_only_while_it_measures():
    for kind in (EliteSettings(anneal_updates=3), AttentiveSettings(anneal_updates=3)):
        mix, _, policy = make_mix(kind)
        taken = []
        whole = mix._policy.take

        def counted(taken=taken, whole=whole):
            taken.append(whole())
            return taken[-1]

        mix._policy.take = counted
        take(mix, 20, policy)
        assert mix._shares[0].replay.draws > 10
        assert 3 <= len(taken) <= 8
    mix, *_ = make_mix(EliteSettings(candidate_multiplier=1.0, insert="elite"))
    take(mix, 10)
    assert mix._policy._taken >= 10


@pytest.mark.parametrize("learn_start", [0, 3 * B * T])
def test_of_a_batch_that_has_nothing_replayed_only_that_is_saved(learn_start):
    kinds = (UniformSettings(learn_start=learn_start),)
    one, *_ = make_mix(*kinds, ahead=1)
    take(one, 1)
    state = {k: x.clone() if torch.is_tensor(x) else x for k, x in one.state_dict().items()}
    ahead = {name for name in state if name.startswith("coming.")}
    assert (ahead == {"coming.0.whole"}) is (learn_start > 0)
    expected = take(one, 6)
    other, queue, _ = make_mix(*kinds, ahead=1)
    queue.given = 1
    other.load_state_dict(state)
    assert same(take(other, 6), expected)
