"""The actor's rows line up, its episodes add up, and it continues where it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from core_fakes import CONTINUOUS, DISCRETE, CountingEnvs, episode_length, small_policy, spec_of

from gossamer.envs.registry import make_vec_env
from gossamer.envs.settings import EnvConfig
from gossamer.errors import RunFailed
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.roles.actor import Actor
from gossamer.roles.slot_rows import write_obs
from gossamer.types import STORED, Trajectory, empty_trajectory


class TaskEnvs(CountingEnvs):
    """Env i plays task 10 + i, and tells the step it is at."""

    def tasks(self):
        return 10 + self.first + np.arange(self.num_envs)

    def episode_info(self, env):
        return {"step": float(self.step[env])}


def make_actor(sizes, *, t=7, action=DISCRETE, seed=1, policy=None, length=episode_length):
    episodes = []
    groups, first = [], 0
    for n in sizes:
        groups.append(CountingEnvs(n, first=first, action=action, length=length))
        first += n
    policy = policy or small_policy(
        spec_of(action), core="gru", core_size=3, last_action=True, last_reward=True
    )
    actor = Actor(
        groups,
        policy,
        unroll_length=t,
        seeds=[seed + k for k in range(len(groups))],
        on_episode=episodes.append,
    )
    return actor, groups, episodes


def collect(actor, count, *, t=7):
    """Collect trajectories through one slot that is overwritten in between, as slots are."""
    spec = actor.policy.spec
    slot = empty_trajectory(
        spec, unroll_length=t, num_columns=actor.num_columns, core_units=actor.policy.core_units
    )
    collected = []
    for k in range(count):
        for name in STORED:
            if name != "task":
                getattr(slot, name).fill_(1)
        actor.collect(slot, k)
        assert slot.env_steps == slot.valid.sum()
        slot.check(spec)
        collected.append(slot.take(torch.arange(actor.num_columns)))
    return collected


def assert_same(one: Trajectory, other: Trajectory):
    for name in STORED:
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_columns_and_episodes_know_their_task():
    episodes = []
    actor = Actor(
        [TaskEnvs(2), TaskEnvs(3, first=2)], small_policy(), unroll_length=9, seeds=[1, 2],
        on_episode=episodes.append,
    )  # fmt: skip
    (batch,) = collect(actor, 1, t=9)
    assert batch.task.tolist() == [10, 11, 12, 13, 14]
    assert len(episodes) > 5
    for episode in episodes:
        assert episode.task == 10 + episode.env
        assert episode.info == {"step": episode.length}


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("sizes", [(5,), (2, 3)])
def test_rows_are_aligned(sizes, action):
    actor, _, _ = make_actor(sizes, action=action)
    trajectories = collect(actor, 5)
    for i in range(5):
        episode, step, over, start = 0, 0, False, True
        last_action, last_reward = 0.0, 0.0
        for k, x in enumerate(trajectories):
            assert x.version[i] == k
            assert float(x.last_action[i].sum()) == last_action
            assert x.last_reward[i].item() == last_reward
            for t in range(7):
                assert x.obs[t, i, :3].tolist() == [i, episode, step]
                assert x.starts[t, i] == start
                assert x.valid[t, i] == (not over)
                last_action, last_reward = float(x.action[t, i].sum()), x.reward[t, i].item()
                if over:
                    episode, step, over, start = episode + 1, 0, False, True
                    assert last_reward == 0.0
                    assert not x.terminated[t, i]
                    assert not x.truncated[t, i]
                else:
                    step, start = step + 1, False
                    over = step == episode_length(i, episode)
                    assert last_reward == pytest.approx(step + 0.1 * last_action)
                    assert x.terminated[t, i] == (over and episode % 2 == 1)
                    assert x.truncated[t, i] == (over and episode % 2 == 0)
                    assert x.obs[t + 1, i, 3].item() == last_action
            assert x.obs[7, i, :3].tolist() == [i, episode, step]
            assert x.starts[7, i] == start


def test_what_it_wrote_is_what_the_policy_says():
    actor, _, _ = make_actor((4,))
    for x in collect(actor, 3):
        last_action = torch.cat([x.last_action[None], x.action])[:-1]
        last_reward = torch.cat([x.last_reward[None], x.reward])[:-1]
        out = actor.policy(x.obs[:-1], x.starts[:-1], x.core_state, last_action, last_reward)
        torch.testing.assert_close(out.action_params, x.behavior)
        torch.testing.assert_close(out.value, x.value)


def unfinished(actor):
    return [n for k in (0, 1) for n in actor.state_dict()[f"{k}.length"].tolist()]


def test_episodes_add_up():
    actor, _, episodes = make_actor((2, 3))
    trajectories = collect(actor, 6)
    rewards = torch.cat([x.reward for x in trajectories])
    ends = torch.cat([x.terminated | x.truncated for x in trajectories])
    decisions = torch.cat([x.valid for x in trajectories])  # a row that resets is none
    assert len(episodes) == int(ends.sum())
    for i in range(5):
        mine = [e for e in episodes if e.env == i]
        rows = ends[:, i].nonzero().flatten().tolist()
        assert [e.number for e in mine] == list(range(len(mine)))
        assert [e.length for e in mine] == [episode_length(i, e.number) for e in mine]
        assert [e.truncated for e in mine] == [e.number % 2 == 0 for e in mine]
        begin = 0
        for e, row in zip(mine, rows, strict=True):
            total = rewards[begin : row + 1, i].sum().item()
            assert e.episode_return == pytest.approx(total, abs=1e-5)
            assert e.env_steps == decisions[: row + 1].sum()
            begin = row + 1
    assert actor.env_steps == decisions.sum() < 6 * 7 * 5
    assert actor.env_steps == sum(e.length for e in episodes) + sum(unfinished(actor))


def test_returns_are_sums_of_what_was_paid():
    envs = make_vec_env("counting_envs:PaysMuch", num_envs=2, seed=1, settings=EnvConfig())
    episodes = []
    actor = Actor(
        [envs], small_policy(envs.spec), unroll_length=7, seeds=[1], on_episode=episodes.append
    )
    collect(actor, 4)
    assert [(x.episode_return, x.length) for x in episodes] == [(5.0, 10)] * 4


def test_several_groups_equal_one_where_the_policy_is_certain():
    def certain():
        policy = small_policy(core="gru", core_size=3)
        with torch.no_grad():
            policy.action_head.weight.mul_(1e5)
        return policy

    one, _, one_episodes = make_actor((5,), policy=certain())
    many, _, many_episodes = make_actor((1, 3, 1), policy=certain())
    actions = set()
    for a, b in zip(collect(one, 4), collect(many, 4), strict=True):
        actions |= set(a.action.flatten().tolist())
        for name in ("obs", "action", "reward", "terminated", "truncated", "valid", "starts"):
            assert torch.equal(getattr(a, name), getattr(b, name)), name
        torch.testing.assert_close(a.core_state, b.core_state)
    assert len(actions) > 1
    order = {e: (e.env, e.number) for e in [*one_episodes, *many_episodes]}
    assert sorted(one_episodes, key=order.get) == sorted(many_episodes, key=order.get)


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_it_continues_in_the_middle_of_episodes(action, before):
    def long(env, episode):
        return 11 if env == 1 else episode_length(env, episode)

    actor, _, episodes = make_actor((2, 3), action=action, length=long)
    collect(actor, before)
    state = {
        k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in actor.state_dict().items()
    }
    seen = len(episodes)
    expected = collect(actor, 4)
    other, _, more = make_actor((2, 3), action=action, length=long, seed=99)
    other.load_state_dict(state, exact=True)
    again = other.state_dict()
    assert again.keys() == state.keys()
    for name, x in state.items():
        assert torch.equal(again[name], x) if isinstance(x, torch.Tensor) else again[name] == x
    for a, b in zip(expected, collect(other, 4), strict=True):
        a.version.fill_(0)
        b.version.fill_(0)
        assert_same(a, b)
    assert more == episodes[seen:]
    # twice interrupted: the logs were rebuilt whole
    third, _, _ = make_actor((2, 3), action=action, length=long)
    assert third.load_state_dict(other.state_dict(), exact=True)
    for a, b in zip(collect(other, 2), collect(third, 2), strict=True):
        assert_same(a, b)


def test_correlated_noise_goes_on_where_it_was():
    def make(seed):
        policy = small_policy(spec_of(CONTINUOUS), noise_correlation=0.9)
        return make_actor((2, 3), action=CONTINUOUS, policy=policy, seed=seed)[0]

    actor, other = make(1), make(2)
    collect(actor, 2)
    assert other.load_state_dict(actor.state_dict(), exact=True)
    for a, b in zip(collect(actor, 3), collect(other, 3), strict=True):
        assert_same(a, b)


def test_logs_do_not_outgrow_the_oldest_episode():
    actor, _, _ = make_actor((5,))
    collect(actor, 10)
    assert actor.logged_steps <= 7, "episode of 5 steps, its reset, one step more"


def test_inexact_environments_begin_new_episodes():
    actor, _, _ = make_actor((3,))
    collect(actor, 2)
    state = actor.state_dict()
    other, groups, episodes = make_actor((3,))
    other.load_state_dict(state, exact=False)
    assert groups[0].episode.tolist() == (state["0.episodes"] + 1).tolist()
    (x,) = collect(other, 1)
    assert x.starts[0].all()
    assert x.valid[0].all()
    assert x.obs[0, :, 2].tolist() == [0.0] * 3
    assert other.env_steps == actor.env_steps + x.valid.sum()
    assert episodes[0].number == state["0.episodes"][episodes[0].env] + 1


@pytest.mark.parametrize("how", ["elsewhere", "past the end"])
def test_environments_that_do_not_come_back_begin_new_episodes(how):
    actor, _, _ = make_actor((2, 3))
    collect(actor, 1)
    state = actor.state_dict()
    other, groups, episodes = make_actor((2, 3))
    if how == "elsewhere":
        state["1.obs"][0] += 1.0
    else:

        def fails(*_):
            raise RunFailed("stepped past the end")

        groups[1].restore = fails
    assert not other.load_state_dict(state, exact=True)
    for k in (0, 1):  # the first has been back, and begins anew with the others
        assert groups[k].episode.tolist() == (state[f"{k}.episodes"] + 1).tolist()
    (x,) = collect(other, 1)
    assert x.starts[0].all()
    assert x.valid[0].all()
    assert x.obs[0, :, 2].tolist() == [0.0] * 5
    assert not x.core_state.any()
    assert not x.last_reward.any()
    assert episodes[0].length <= 7
    assert other.env_steps == actor.env_steps + int(x.valid.sum())


def test_after_a_stream_of_another_device_comes_one_that_depends_on_it():
    def drawn(generator):
        state = actor.state_dict() | {"generator": generator}
        other, _, _ = make_actor((3,))
        assert other.load_state_dict(state, exact=True)
        return collect(other, 1)[0].action.tolist()

    actor, _, _ = make_actor((3,))
    begun = collect(actor, 1)[0].action.tolist()
    one, two = torch.arange(16, dtype=torch.uint8), torch.ones(16, dtype=torch.uint8)
    assert drawn(one) == drawn(one)
    assert begun != drawn(one) != drawn(two)


def test_close_closes_every_group():
    actor, groups, _ = make_actor((1, 2))
    actor.close()
    assert [group.closed for group in groups] == [True, True]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pixels_are_written_channels_last(channels):
    obs = np.random.default_rng(0).integers(0, 256, (3, channels, 6, 5), dtype=np.uint8)
    slot = torch.zeros(2, 4, 6, 5, channels, dtype=torch.uint8).movedim(-1, 2)
    write_obs(slot[1, 1:4].numpy(), obs)
    assert torch.equal(slot[1, 1:], torch.from_numpy(obs))
    assert not slot[0].any()
    assert not slot[1, 0].any()


class StopsAfter(StopSignal):
    """Stops after so many looks."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    @property
    def stopped(self):
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize("steps", [0, 3])
def test_a_stop_between_two_steps_leaves_no_environment_at_one(steps):
    """Nor does it wait for one that nobody has begun."""
    groups = [CountingEnvs(2), CountingEnvs(3, first=2)]
    actor = Actor(
        groups, small_policy(), unroll_length=7, seeds=[1, 2], on_episode=lambda _: None,
        stop=StopsAfter(steps),
    )  # fmt: skip
    slot = empty_trajectory(spec_of(), unroll_length=7, num_columns=5, core_units=0)
    with pytest.raises(Stopped):
        actor.collect(slot, 0)
    assert [envs.in_flight for envs in groups] == [None, None]
    assert [len(envs.sent) for envs in groups] == [steps, steps]
