"""Evaluation plays exactly the episodes it was asked for, long ones no less than short ones."""

from __future__ import annotations

import math
from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest
import torch
from core_fakes import CountingEnvs, small_policy

from gossamer.envs.registry import make_vec_env, read_spec
from gossamer.envs.settings import EnvConfig
from gossamer.errors import RunFailed
from gossamer.links.stopping import StopSignal
from gossamer.links.threads import Roles, ThreadBoard
from gossamer.roles.evaluation import Evaluation, EvaluationEpisodes, Interrupted, play, play_trials
from gossamer.roles.evaluator import Contest, Evaluator, Source


def evaluated(policy, make_envs, *, episodes, **how):
    """Play episodes in environments that are made for them."""
    with closing(EvaluationEpisodes(make_envs, episodes).open()) as envs:
        return play(policy, envs, episodes=episodes, **how)


def uneven(env, episode):
    """Even envs play long episodes."""
    return 12 if env % 2 == 0 else 2


class Made:
    """Makes environments and remembers them."""

    def __init__(self, length=uneven):
        self.length, self.envs = length, []

    def __call__(self, n):
        self.envs.append(CountingEnvs(n, length=self.length))
        return self.envs[-1]


def expected_lengths(episodes, length=uneven):
    n = min(episodes, 16)
    return [length(j % n, j // n) for j in range(episodes)]


@pytest.mark.parametrize("episodes", [1, 3, 16, 21, 40])
@pytest.mark.parametrize("greedy", [False, True])
def test_exactly_the_episodes_asked_for(episodes, greedy):
    make = Made()
    result = evaluated(small_policy(), make, episodes=episodes, greedy=greedy, seed=0)
    assert list(result.lengths) == expected_lengths(episodes)
    n = min(episodes, 16)
    for j, (length, total) in enumerate(zip(result.lengths, result.returns, strict=True)):
        base = length * (length + 1) / 2
        assert base - 1e-4 <= total <= base + 0.2 * length + 1e-4, (j, n)
    assert result.truncated == sum(j // n % 2 == 0 for j in range(episodes))
    assert make.envs[0].closed
    assert result.mean == pytest.approx(np.mean(result.returns))


def test_short_episodes_are_not_counted_more_often():
    """Half the envs play episodes of 2 steps, half of 12: the mean length is 7, not near 2."""
    result = evaluated(small_policy(), Made(), episodes=32, greedy=False, seed=0)
    assert np.mean(result.lengths) == 7.0


def test_greedy_takes_the_mode_and_sampling_follows_its_seed():
    policy = small_policy()
    with torch.no_grad():
        policy.action_head.weight.zero_()
        policy.action_head.bias.copy_(torch.tensor([0.0, 0.1, 0.0]))
    runs = {}
    for name, greedy, seed in [
        ("greedy", True, 0),
        ("a", False, 1),
        ("b", False, 1),
        ("c", False, 2),
    ]:
        make = Made()
        evaluated(policy, make, episodes=4, greedy=greedy, seed=seed)
        runs[name] = np.stack(make.envs[0].sent).flatten().tolist()
    assert set(runs["greedy"]) == {1}
    assert set(runs["a"]) == {0, 1, 2}
    assert runs["a"] == runs["b"]
    assert runs["a"] != runs["c"]


def test_what_environments_tell_of_episodes_is_kept_with_its_means():
    env_id, settings = "task_envs:Windy", EnvConfig(episode_info=True)
    policy = small_policy(read_spec(env_id, settings))

    def make(n):
        return make_vec_env(env_id, num_envs=n, seed=1, settings=settings)

    result = evaluated(policy, make, episodes=20, greedy=True, seed=0)
    assert [x["steps"] for x in result.infos] == [5.0] * 20
    assert result.as_dict()["info"] == {"wind": 0.0, "steps": 5.0}
    assert len(result.plus(result).infos) == 40


def test_recurrent_state_is_carried_and_cleared():
    policy = small_policy(core="lstm", core_size=4, last_action=True, last_reward=True)
    calls = []
    forward = policy.forward

    def watched(obs, starts, core_state, last_action, last_reward):
        out = forward(obs, starts, core_state, last_action, last_reward)
        calls.append((obs, starts, core_state, last_action, last_reward, out))
        return out

    policy.forward = watched
    make = Made()
    evaluated(policy, make, episodes=3, greedy=True, seed=0)
    assert calls[0][1].all()
    assert not calls[0][2].any()
    for (before, now), sent in zip(pairwise(calls), make.envs[0].sent, strict=False):
        assert torch.equal(now[2], before[5].core_state)
        assert now[2].any()
        assert now[3][0].tolist() == sent.tolist()
        assert torch.equal(now[1][0], now[0][0, :, 2] == 0), "starts where a step count is 0"
        step, last = now[0][0, :, 2], now[0][0, :, 3]
        torch.testing.assert_close(now[4][0], torch.where(step > 0, step + 0.1 * last, 0.0))


def test_returns_are_sums_of_what_was_paid():
    def made(n):
        return make_vec_env("counting_envs:PaysMuch", num_envs=n, seed=1, settings=EnvConfig())

    spec = read_spec("counting_envs:PaysMuch", EnvConfig())
    for past in ({}, {"core": "lstm", "core_size": 4, "last_reward": True}):
        policy = small_policy(spec, **past)
        assert evaluated(policy, made, episodes=3, greedy=True, seed=0).returns == (5.0, 5.0, 5.0)


def test_a_single_episode_has_no_error_and_errors_are_of_the_mean():
    assert Evaluation((3.0,), (1,), 0).standard_error == 0.0
    result = Evaluation((1.0, 2.0, 6.0), (1, 1, 1), 0)
    assert result.mean == 3.0
    assert result.standard_error == pytest.approx(np.sqrt(7.0 / 3.0))


def test_errors_of_several_tasks_are_those_of_their_means():
    returns, lengths = (0.0, 2.0, 1.0, 4.0), (1, 1, 1, 1)
    result = Evaluation(returns, lengths, 0, (3, 9, 3, 9))  # means 0.5 and 3
    assert result.standard_error == pytest.approx(1.25)
    alike = Evaluation(returns, lengths, 0, (3, 3, 3, 3))
    assert alike.standard_error == Evaluation(returns, lengths, 0).standard_error


def test_a_trial_knows_its_tasks_and_results_are_joined():
    made = Made()
    trials = [EvaluationEpisodes(made, 3, (0, 1, 2)), EvaluationEpisodes(made, 2, (7, 8))]
    envs = [trial.open() for trial in trials]
    for trial in (trials[:1], trials):
        result = play_trials(
            small_policy(), trial, envs[: len(trial)], greedy=True, seed=0, stop=lambda: False
        )
        assert result.tasks == (0, 1, 2)
        assert list(result.lengths) == expected_lengths(3)
    assert result.held_out.tasks == (7, 8)
    assert list(result.held_out.lengths) == expected_lengths(2)
    assert EvaluationEpisodes(made, 40).open().num_envs == 16


def test_stopping_interrupts_and_closes():
    make, asked = Made(lambda env, episode: 10**6), []
    with pytest.raises(Interrupted):
        evaluated(
            small_policy(), make, episodes=2, greedy=True, seed=0,
            stop=lambda: asked.append(None) or len(asked) > 5,
        )  # fmt: skip
    assert len(make.envs[0].sent) == 5
    assert make.envs[0].closed


def test_onlookers_see_every_state():
    seen, ended = [], []

    def on_step(envs, num_ended):
        seen.append(int(envs.step[0]))
        ended.append(num_ended)

    evaluated(
        small_policy(), Made(), episodes=1, greedy=True, seed=0,
        on_step=on_step,
    )  # fmt: skip
    assert seen == list(range(13))
    assert ended == [0] * 12 + [1]


class ListKeeper:
    """Remembers what it is told; what waits for being confirmed is set from outside."""

    run_seconds = math.inf
    has_begun = False

    def __init__(self, after=lambda: None):
        self.results, self.contests, self.next, self.after = [], [], None, after

    @property
    def waiting(self):
        return self.next is not None

    def on_evaluation(self, result, source, params):
        self.results.append((result, source, [x.clone() for x in params]))
        self.after()

    def contest(self):
        return self.next

    def decide(self, candidate, best):
        self.contests.append((candidate, best))
        self.next = None

    def film(self, policy, stop): ...


def make_evaluator(keeper, stop, *, policy=None, episodes=2, trials=None, read=None, **settings):
    policy = policy or small_policy(seed=1)
    like = policy.shared_tensors()
    board = ThreadBoard(like, stop, Roles(20.0))
    evaluator = Evaluator(
        small_policy(seed=5), like, trials or [EvaluationEpisodes(Made(), episodes)],
        read or (lambda into: Source(board.read(0, into, exact=False), learner=3, at=(7, 70))), stop,
        **{
            "greedy": True, "seed": 11, "every_seconds": 0.0, "max_time_fraction": 1.0,
            "confirm_episodes": 6, **settings,
        },
    )  # fmt: skip
    evaluator.report_to(keeper)
    return evaluator, board


def test_the_newest_parameters_are_evaluated():
    policy, keeper, stop = small_policy(seed=1), ListKeeper(), StopSignal()
    evaluator, board = make_evaluator(keeper, stop, policy=policy)
    for version in range(3):
        with torch.no_grad():
            policy.value_head.bias.fill_(version)
        board.publish(policy.shared_tensors(), version)
    evaluator.work()
    ((result, source, tensors),) = keeper.results
    assert source == Source(2, 3, (7, 70))
    for x, held, own in zip(
        policy.shared_tensors(), tensors, evaluator.policy.shared_tensors(), strict=True
    ):
        assert torch.equal(x, held)
        assert torch.equal(x, own)
    assert list(result.lengths) == expected_lengths(2)
    assert not keeper.contests


def test_environments_are_closed_where_those_of_held_out_tasks_cannot_be_made():
    made = Made()

    def refused(_):
        raise RunFailed("no port is free")

    trials = [EvaluationEpisodes(made, 2), EvaluationEpisodes(refused, 2)]
    evaluator, board = make_evaluator(ListKeeper(), StopSignal(), trials=trials)
    board.publish(small_policy(seed=1).shared_tensors(), 0)
    with pytest.raises(RunFailed, match="no port is free"):
        evaluator.work()
    evaluator.close()
    assert [envs.closed for envs in made.envs] == [True]


def test_the_role_ends_when_stopped():
    stop = StopSignal()
    keeper = ListKeeper(stop.stop)
    evaluator, board = make_evaluator(keeper, stop)
    board.publish(small_policy(seed=1).shared_tensors(), 0)
    evaluator.run()
    assert len(keeper.results) == 1
    assert evaluator.seconds > 0.0
    evaluator, _ = make_evaluator(keeper, stop, every_seconds=1e6)
    evaluator.run()
    assert len(keeper.results) == 1


class Noted(CountingEnvs):
    """Notes the numbers of the episodes that are played."""

    def start(self, episodes):
        self.begun = getattr(self, "begun", [])
        self.begun.append({(i, episode) for i, episode in enumerate(episodes.tolist())})
        return super().start(episodes)

    def recv(self):
        result = super().recv()
        self.begun[-1] |= {(i, episode) for i, episode in enumerate(self.episode.tolist())}
        return result


@pytest.mark.parametrize("tasks", [(), (0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6)])
def test_every_evaluation_and_every_contest_has_episodes_of_its_own(tasks):
    made, stop, policy = [], StopSignal(), small_policy(seed=1)
    keeper = ListKeeper()
    trial = EvaluationEpisodes(lambda n: made.append(Noted(n)) or made[-1], len(tasks) or 5, tasks)
    whose = [Source(v, learner) for v in (0, 1, 40_000) for learner in (None, 0, 65_535)]
    sources = [*whose, *whose]
    evaluator, _ = make_evaluator(
        keeper,
        stop,
        policy=policy,
        trials=[trial],
        confirm_episodes=40,
        read=lambda _: sources.pop(),
    )
    for _ in range(len(sources)):
        evaluator.evaluate_newest()
    first, second = made[0].begun[: len(whose)], made[0].begun[len(whose) :]
    assert first == second, "of the same version the same ones"
    del made[0].begun[:]
    tensors = policy.shared_tensors()
    for source in whose:
        keeper.next = Contest(source, tensors, tensors)
        evaluator.confirm()
    candidates, bests = made[0].begun[::2], made[0].begun[1::2]
    assert candidates == bests
    assert all(candidate == best for candidate, best in keeper.contests)
    assert {len(candidate.returns) for candidate, _ in keeper.contests} == {42 if tasks else 40}
    played = [*first, *candidates]
    assert sum(map(len, played)) == len(set().union(*played)), "none is played for two of them"
    # a family's tasks are played in the same order whenever it begins
    starts = {min(episode for _, episode in begun) % (len(set(tasks)) or 1) for begun in played}
    assert starts == {0}


@pytest.mark.parametrize("late", [1, 2, 4, 6])
def test_a_contest_that_was_begun_late_plays_no_episode_twice(late):
    made, tensors = [], small_policy(seed=1).shared_tensors()
    trial = EvaluationEpisodes(lambda n: made.append(Noted(n)) or made[-1], 5, ())
    keeper = ListKeeper()
    evaluator, board = make_evaluator(keeper, StopSignal(), trials=[trial], confirm_episodes=20)
    board.publish(tensors, 0)
    for played in range(0, 3 * late, 3):
        keeper.next = Contest(Source(4), tensors, None, played)
        evaluator.confirm(few=True)
    keeper.next = Contest(Source(4), tensors, None, 3 * late)
    evaluator.confirm()
    evaluator.evaluate_newest()
    begun = [episodes for envs in made for episodes in envs.begun]
    rounds = [*[1] * late, 20 // 5, 1]
    counted = [  # whoever is quick plays more, which nobody counts
        {(i, n) for i, n in episodes if n < min(n for _, n in episodes) + each}
        for episodes, each in zip(begun, rounds, strict=True)
    ]
    assert list(map(len, counted)) == [*[3] * late, 20, 5]
    assert len(set().union(*counted)) == 3 * late + 20 + 5


@pytest.mark.parametrize("num_tasks", [5, 17, 25])
def test_late_parts_of_a_contest_go_on_where_rounds_through_the_tasks_begin(num_tasks):
    """Whatever the number of environments: results are told by task, and no episode is played twice."""
    made, tensors = [], small_policy(seed=1).shared_tensors()
    trial = EvaluationEpisodes(
        lambda n: made.append(Noted(n)) or made[-1], num_tasks, tuple(range(num_tasks))
    )
    keeper = ListKeeper()
    evaluator, board = make_evaluator(keeper, StopSignal(), trials=[trial], confirm_episodes=100)
    board.publish(tensors, 0)
    for part in range(3):
        keeper.next = Contest(Source(4), tensors, None, part * num_tasks)
        evaluator.confirm(few=True)
    size = min(num_tasks, 16)
    starts = [min(n for _, n in episodes) for envs in made for episodes in envs.begun]
    assert [(start - starts[0]) * size % num_tasks for start in starts] == [0, 0, 0]
    assert all(later - start >= math.ceil(num_tasks / size) for start, later in pairwise(starts))


def test_a_policy_is_confirmed_in_as_many_episodes_as_an_evaluation_has_at_least():
    stop, tensors = StopSignal(), small_policy(seed=1).shared_tensors()
    for episodes, asked, played in ((3, 8, 8), (9, 8, 9)):
        keeper = ListKeeper()
        evaluator, _ = make_evaluator(keeper, stop, episodes=episodes, confirm_episodes=asked)
        keeper.next = Contest(Source(4), tensors, None)
        evaluator.confirm()
        ((candidate, best),) = keeper.contests
        assert list(candidate.lengths)[:1] == expected_lengths(1, lambda *_: 12)
        assert len(candidate.returns) == played
        assert best is None
        evaluator.confirm()
        assert len(keeper.contests) == 1, "nothing waits any more"


def always(action):
    """The tensors of a policy that takes one action whatever it sees."""
    policy = small_policy()
    with torch.no_grad():
        policy.action_head.weight.zero_()
        policy.action_head.bias.copy_(torch.eye(3)[action])
    return policy.shared_tensors()


def test_both_of_a_contest_are_played_by_their_own_parameters():
    keeper, stop = ListKeeper(), StopSignal()
    evaluator, _ = make_evaluator(keeper, stop)
    for candidate, best in ((0, 2), (2, 0), (1, 1)):
        keeper.next = Contest(Source(4), always(candidate), always(best))
        evaluator.confirm()
        scored = [sum(x.returns) for x in keeper.contests[-1]]
        steps = sum(keeper.contests[-1][0].lengths)
        assert scored[0] - scored[1] == pytest.approx(0.1 * steps * (candidate - best), abs=1e-3)


class Clock:
    """Stands in for `time`; an evaluation makes it go on."""

    def __init__(self):
        self.now = self.spent = 0.0

    def monotonic(self):
        return self.now

    def thread_time(self):
        return self.spent

    def work(self, seconds):
        self.now += 2 * seconds  # a thread of low priority waits as long as it works
        self.spent += seconds


def paced(monkeypatch, *, episode_seconds, waits, run_seconds, expected=math.inf, **settings):
    """Let an evaluator work for so long; return times of evaluations and contests, and its share."""
    clock, keeper, stop = Clock(), ListKeeper(), StopSignal()
    keeper.run_seconds = expected
    monkeypatch.setattr("gossamer.roles.evaluator.time", clock)
    evaluator, board = make_evaluator(keeper, stop, episodes=5, confirm_episodes=20, **settings)
    tensors = small_policy(seed=1).shared_tensors()
    board.publish(tensors, 0)
    times = {"evaluations": [], "contests": []}

    def play(policy, trials, *_, **how):
        (trial,) = trials
        clock.work(episode_seconds * trial.episodes)
        return Evaluation((0.0,) * trial.episodes, (1,) * trial.episodes, 0)

    def told(kind):
        times[kind].append(clock.now)
        if waits:
            keeper.next = Contest(Source(1), tensors, tensors)

    monkeypatch.setattr("gossamer.roles.evaluator.play_trials", play)
    keeper.after = lambda: told("evaluations")
    decide = keeper.decide
    keeper.decide = lambda *result: (decide(*result), times["contests"].append(clock.now))
    while clock.now < run_seconds:
        clock.now += evaluator.pause
        evaluator.work()
    return times, clock.spent / clock.now


def test_environments_elsewhere_cost_the_time_that_they_take(monkeypatch):
    """Their processes' work is not in the processor time of the evaluator's thread."""
    now = [0.0]
    evaluator, board = make_evaluator(
        ListKeeper(), StopSignal(), every_seconds=60.0, max_time_fraction=0.03, clock=lambda: now[0]
    )
    board.publish(small_policy(seed=1).shared_tensors(), 0)

    def played(*asked, **how):
        now[0] += 250.0
        return play_trials(*asked, **how)

    monkeypatch.setattr("gossamer.roles.evaluator.play_trials", played)
    evaluator.work()
    assert evaluator.pause == pytest.approx((250.0 - 0.03 * 60.0) / 0.03, rel=0.1)
    evaluator.budget = 7.5
    assert evaluator.budget == 7.5


def test_evaluations_and_contests_share_the_time_that_they_may_take(monkeypatch):
    # Short episodes: an evaluation a minute, and what it leaves is enough for a contest now and then.
    times, share = paced(
        monkeypatch, episode_seconds=0.1, waits=True, run_seconds=6000,
        every_seconds=60.0, max_time_fraction=0.03,
    )  # fmt: skip
    assert np.diff(times["evaluations"]) == pytest.approx(60.0)
    assert 30 <= len(times["contests"]) <= 34
    assert 0.9 * 0.03 < share <= 0.03
    # Long ones take all the time there is. Half of it is for contests, if something waits.
    times, share = paced(
        monkeypatch, episode_seconds=2.0, waits=True, run_seconds=60_000,
        every_seconds=60.0, max_time_fraction=0.03,
    )  # fmt: skip
    assert 90 <= len(times["evaluations"]) <= 100
    assert 10 <= len(times["contests"]) <= 11
    assert 0.9 * 0.03 < share <= 1.01 * 0.03
    times, share = paced(
        monkeypatch, episode_seconds=2.0, waits=False, run_seconds=60_000,
        every_seconds=60.0, max_time_fraction=0.03,
    )  # fmt: skip
    assert 175 <= len(times["evaluations"]) <= 185
    assert not times["contests"]
    assert 0.9 * 0.03 < share <= 1.01 * 0.03


def test_evaluations_that_would_come_late_are_given_time(monkeypatch):
    """Twenty times in a run at least, with as few games as tell something, for at most a tenth of the time."""
    pace = {"every_seconds": 60.0, "max_time_fraction": 0.03}
    times, share = paced(
        monkeypatch, episode_seconds=2.0, waits=False, run_seconds=1_400, expected=1_400, **pace
    )  # fmt: skip
    assert 17 <= len(times["evaluations"]) <= 20
    assert times["evaluations"][0] < 120.0
    assert 0.03 < share < 0.1
    # Where a tenth is not enough for that, a tenth it is.
    times, share = paced(
        monkeypatch, episode_seconds=20.0, waits=False, run_seconds=6_000, expected=1_400, **pace
    )  # fmt: skip
    assert share == pytest.approx(0.1, rel=0.15)
    assert np.diff(times["evaluations"])[2:] == pytest.approx(600.0)
    # A candidate that waits is confirmed in turn with evaluations.
    times, share = paced(
        monkeypatch, episode_seconds=2.0, waits=True, run_seconds=1_400, expected=1_400, **pace
    )  # fmt: skip
    assert len(times["contests"]) == pytest.approx(len(times["evaluations"]), abs=2)
    assert share < 0.12
    # A long run has time, and evaluates as it is told.
    times, share = paced(
        monkeypatch, episode_seconds=2.0, waits=False, run_seconds=60_000, expected=60_000, **pace
    )  # fmt: skip
    assert 175 <= len(times["evaluations"]) <= 185
    assert share <= 1.01 * 0.03


def test_an_evaluation_is_told_by_its_mean() -> None:
    assert (
        str(Evaluation((500.0, 300.0), (1, 1), truncated=0)) == "mean 400 +- 1e+02 over 2 episodes"
    )
    assert str(Evaluation((-7.25,), (1,), truncated=0)) == "mean -7.25 +- 0 over 1 episode"


@pytest.mark.parametrize(
    ("episodes", "quantile"),
    [(2, 12.706), (3, 4.303), (6, 2.571), (11, 2.228), (12, 2.201), (20, 2.093), (31, 2.042)],
)
def test_an_interval_is_students(episodes, quantile):
    result = Evaluation(tuple(map(float, range(episodes))), (1,) * episodes, 0)
    assert result.half_width == pytest.approx(quantile * result.standard_error, rel=6e-3)


def test_parts_of_a_contest_are_joined_with_their_tasks():
    """Intervals are of the tasks, as episodes of one task are alike; more episodes do not narrow them as much."""
    part = Evaluation(
        (1.0, 5.0, 3.0), (4, 5, 6), 1, (0, 1, 2), held_out=Evaluation((9.0,), (1,), 0)
    )
    joined = part.plus(Evaluation((2.0, 6.0, 4.0), (7, 8, 9), 2, (0, 1, 2)))
    assert joined == Evaluation(
        (1.0, 5.0, 3.0, 2.0, 6.0, 4.0), (4, 5, 6, 7, 8, 9), 3, (0, 1, 2, 0, 1, 2)
    )
    ahead = joined.minus(Evaluation((0.5,) * 6, joined.lengths, 0, joined.tasks))
    assert ahead.mean == 3.0
    # of 1, 5 and 3, the tasks' means
    assert ahead.half_width == pytest.approx(4.303 * 2.0 / math.sqrt(3.0), rel=1e-3)


def test_an_episode_costs_its_share_of_all_that_were_played(monkeypatch):
    """By that contests wait for time, and a run at its end says how long few episodes take."""
    now = [0.0]
    trials = [EvaluationEpisodes(Made(), 4, (0, 1, 2, 3)), EvaluationEpisodes(Made(), 2, (7, 8))]
    evaluator, board = make_evaluator(
        ListKeeper(), StopSignal(), trials=trials, confirm_episodes=8, clock=lambda: now[0]
    )
    board.publish(small_policy(seed=1).shared_tensors(), 0)

    def played(*asked, **how):
        now[0] += 12.0
        return play_trials(*asked, **how)

    monkeypatch.setattr("gossamer.roles.evaluator.play_trials", played)
    evaluator.evaluate_newest()
    assert evaluator.confirming_cost == pytest.approx(2 * 8 * 2.0)
    assert evaluator.few_cost == pytest.approx(12.0)


def test_the_longest_evaluation_so_far_is_known(monkeypatch):
    """At its end a run gives the last one twice that time."""
    clock, keeper = Clock(), ListKeeper()
    monkeypatch.setattr("gossamer.roles.evaluator.time", clock)
    evaluator, board = make_evaluator(keeper, StopSignal())
    board.publish(small_policy(seed=1).shared_tensors(), 0)
    seconds = iter((5.0, 30.0, 1.0))
    keeper.after = lambda: clock.work(next(seconds))
    for _ in range(3):
        evaluator.work()
    assert evaluator.longest_seconds == pytest.approx(60.0)


def test_actions_are_sampled_anew_in_every_evaluation():
    policy, made = small_policy(seed=1), []
    with torch.no_grad():
        policy.action_head.weight.zero_()
        policy.action_head.bias.zero_()
    versions = [1, 2, 1]

    def read(into):
        for x, y in zip(into, policy.shared_tensors(), strict=True):
            x.copy_(y.detach())
        return Source(versions.pop(0))

    trial = EvaluationEpisodes(lambda n: made.append(CountingEnvs(n, length=uneven)) or made[-1], 2)
    evaluator, _ = make_evaluator(
        ListKeeper(), StopSignal(), trials=[trial], read=read, greedy=False
    )
    sent = []
    for _ in range(3):
        before = len(made[0].sent) if made else 0
        evaluator.evaluate_newest()
        sent.append(np.stack(made[0].sent[before:]).tolist())
    assert sent[0] == sent[2], "of the same version alike"
    assert sent[0] != sent[1]


def late_evaluator(monkeypatch):
    """An evaluator that has just found out that its evaluations come late, and a candidate that waits."""
    clock, keeper = Clock(), ListKeeper()
    keeper.run_seconds = 1_400.0
    monkeypatch.setattr("gossamer.roles.evaluator.time", clock)
    evaluator, board = make_evaluator(
        keeper, StopSignal(), episodes=5, confirm_episodes=20, every_seconds=60.0,
        max_time_fraction=0.03,
    )  # fmt: skip
    tensors = small_policy(seed=1).shared_tensors()
    board.publish(tensors, 0)

    def play(policy, trials, *_, **how):
        (trial,) = trials
        clock.work(2.0 * trial.episodes)
        return Evaluation((0.0,) * trial.episodes, (1,) * trial.episodes, 0)

    monkeypatch.setattr("gossamer.roles.evaluator.play_trials", play)
    evaluator.work()
    keeper.next = Contest(Source(1), tensors, tensors)
    told = []
    keeper.after = lambda: told.append("evaluation")
    keeper.decide = lambda *_: told.append("contest")
    return evaluator, keeper, told


def test_who_asks_for_an_evaluation_gets_one_though_a_contest_is_next(monkeypatch):
    evaluator, _, told = late_evaluator(monkeypatch)
    evaluator.asked = True
    evaluator.work()
    evaluator.work()
    assert told == ["evaluation", "contest"]


def test_a_contest_that_was_begun_goes_on_before_another_evaluation(monkeypatch):
    """Which may bring another candidate: contests that are too short decide nothing."""
    evaluator, keeper, told = late_evaluator(monkeypatch)
    for has_begun in (True, True, False, False):
        keeper.has_begun = has_begun
        evaluator.work()
    assert told == ["contest", "contest", "contest", "evaluation"]
