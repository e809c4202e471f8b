"""Replays over the length of a run: after a resume, a backlog, the end of annealing."""

from __future__ import annotations

import pytest
import torch
from replay_fakes import B, T, make_mix, same, take

from gossamer.replay.selectors.attentive import AttentiveSettings
from gossamer.replay.selectors.circular import CircularSettings
from gossamer.replay.selectors.elite import EliteSettings
from gossamer.replay.selectors.uniform import UniformSettings


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
    after = other.shares[0].replay
    assert after.inserted == 12 * B
    assert after.draws == replayed > 2, "batches that were ready and are not kept were never drawn"
    assert after.stream() in drawn
    assert after.held == 0
    assert sizes_of(other, 8) == [B, B, B, *[2 * B] * 5], "0.2, 0.6, 1.2, 1, 1 of a batch is due"
    assert after.draws > replayed
    assert after.held == 5 * B


def stream(mix):
    return mix.shares[0].replay.stream()


def sizes_of(mix, count):
    sizes = []
    for _ in range(count):
        sizes.append(mix.sample().num_columns)
        mix.release()
    return sizes


def emptied(*kinds, after=60, capacity=40 * B, **settings):
    """A mix of so many columns that begins without what another one held after some batches."""
    one, *_ = make_mix(*kinds, saved=False, capacity=capacity, **settings)
    take(one, after)
    state = one.state_dict()
    one.close()
    other, queue, _ = make_mix(*kinds, saved=False, capacity=capacity, **settings)
    other.load_state_dict(state)
    return other, queue


@pytest.mark.parametrize("kind", [UniformSettings(), CircularSettings(), EliteSettings()])
def test_columns_of_an_emptied_replay_are_replayed_no_more_often_than_others(kind):
    """As a full one does in the long run: a column for each that comes, none of them over and over."""
    mix, _ = emptied(kind)
    uses = torch.zeros(200 * B, dtype=torch.int64)
    shares = []
    for _ in range(160):
        batch = mix.sample()
        uses += torch.bincount(batch.version[batch.replayed], minlength=len(uses))
        shares.append(batch.num_columns > B)
        mix.release()
    parts = [sum(shares[i : i + 10]) for i in (0, 10, 20, 30, 40)]
    assert parts == sorted(parts), "more and more batches have replayed columns"
    assert parts[0] <= 2
    assert parts[-1] == 10, "all of them once it holds as much as it did"
    per_column = uses[:160] / B  # by trajectory
    assert per_column[:100].mean() < 1.2
    assert per_column[:20].mean() < 2 * per_column[40:100].mean()


def test_the_emptiest_replay_decides():
    kinds = UniformSettings(), UniformSettings()
    state = emptied(*kinds)[0].state_dict()
    for held_nothing, sizes in (({1}, [B] * 6), ({0, 1}, [B, *[3 * B] * 5])):
        changed = {f"{i}.full": 0 for i in held_nothing}
        mix, *_ = make_mix(*kinds, saved=False, capacity=40 * B)
        mix.load_state_dict(state | changed)
        assert sizes_of(mix, 6) == sizes


def test_emptied_again_it_still_waits_for_what_it_held_at_first():
    mix, _ = emptied(UniformSettings())
    take(mix, 10)
    state = mix.state_dict()
    again, *_ = make_mix(UniformSettings(), saved=False, capacity=40 * B)
    again.load_state_dict(state)
    assert sum(size > B for size in sizes_of(again, 41)) < 25
    assert again.shares[0].replay.filling == 1.0
    smaller, *_ = make_mix(UniformSettings(), saved=False, capacity=4 * B)
    smaller.load_state_dict(state)
    assert sum(size > B for size in sizes_of(smaller, 41)) > 35, "there is no more room"


def test_emptied_before_learn_start_it_waits_for_that():
    mix, _ = emptied(UniformSettings(learn_start=20 * B * T), after=15)
    sizes = sizes_of(mix, 40)
    assert sizes[:6] == [B] * 6
    assert sizes[20:] == [2 * B] * 20
    assert 4 < sum(size > B for size in sizes[:20]) < 14


def test_one_that_has_held_little_is_soon_as_it_was():
    mix, _ = emptied(UniformSettings(), after=2)
    assert sizes_of(mix, 6)[2:] == [2 * B] * 4


@pytest.mark.parametrize("threaded", [False, True])
def test_while_it_fills_again_it_is_saved_and_goes_on_exactly(threaded):
    lost, _ = emptied(UniformSettings())
    state = lost.state_dict()
    settings = {"saved": True, "capacity": 40 * B}
    one, _, _ = make_mix(UniformSettings(), threaded=threaded, **settings)
    one.load_state_dict(state)
    take(one, 17)
    state = {k: x.clone() if torch.is_tensor(x) else x for k, x in one.state_dict().items()}
    expected = take(one, 50)
    one.close()
    other, queue, _ = make_mix(UniformSettings(), **settings)
    queue.given = 17
    other.load_state_dict(state)
    assert same(take(other, 50), expected)


def test_who_takes_over_a_replay_of_a_dead_learners_own_fills_it_again():
    mix, *_ = make_mix(UniformSettings(), capacity=40 * B)
    mix.take_over(inserted=1000 * B, draws=900)
    assert sizes_of(mix, 6) == [B] * 6
    assert mix.shares[0].replay.filling == pytest.approx(6 / 40)


def test_what_is_older_than_this_number_has_held_what_was_stored():
    one, *_ = make_mix(UniformSettings(), saved=False, capacity=40 * B)
    take(one, 20)
    state = one.state_dict()
    del state["0.full"]
    other, *_ = make_mix(UniformSettings(), saved=False, capacity=40 * B)
    other.load_state_dict(state)
    take(other, 5)
    assert other.shares[0].replay.filling == pytest.approx(5 / 20)


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
        take(mix, 20, policy)
        assert mix.shares[0].replay.draws > 10
        assert 3 <= mix.kept_policy.taken <= 8
    mix, *_ = make_mix(EliteSettings(candidate_multiplier=1.0, insert="elite"))
    take(mix, 10)
    assert mix.kept_policy.taken >= 10


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


def test_one_that_a_resumed_run_is_given_fills_first():
    mix, *_ = make_mix(UniformSettings(), capacity=40 * B)
    mix.load_state_dict({})
    assert sizes_of(mix, 6) == [B] * 6
    mix, *_ = make_mix(UniformSettings(), capacity=40 * B)
    mix.fill_first()
    assert sizes_of(mix, 6) == [B] * 6
