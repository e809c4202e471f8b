"""Evaluation plays exactly the episodes it was asked for, long ones no less than short ones."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from core_fakes import CountingEnvs, small_policy

from gossamer.evaluator import Evaluation, Evaluator, Interrupted, Trial, evaluate, play_trials
from gossamer.links import StopSignal, ThreadBoard


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
    result = evaluate(small_policy(), make, episodes=episodes, greedy=greedy, seed=0)
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
    result = evaluate(small_policy(), Made(), episodes=32, greedy=False, seed=0)
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
        evaluate(policy, make, episodes=4, greedy=greedy, seed=seed)
        runs[name] = np.stack(make.envs[0].sent).flatten().tolist()
    assert set(runs["greedy"]) == {1}
    assert set(runs["a"]) == {0, 1, 2}
    assert runs["a"] == runs["b"]
    assert runs["a"] != runs["c"]


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
    evaluate(policy, make, episodes=3, greedy=True, seed=0)
    assert calls[0][1].all()
    assert not calls[0][2].any()
    for (before, now), sent in zip(pairwise(calls), make.envs[0].sent, strict=False):
        assert torch.equal(now[2], before[5].core_state)
        assert now[2].any()
        assert now[3][0].tolist() == sent.tolist()
        assert torch.equal(now[1][0], now[0][0, :, 2] == 0), "starts where a step count is 0"
        step, last = now[0][0, :, 2], now[0][0, :, 3]
        torch.testing.assert_close(now[4][0], torch.where(step > 0, step + 0.1 * last, 0.0))


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
    trials = [Trial(made, 3, (0, 1, 2)), Trial(made, 2, (7, 8))]
    envs = [trial.open() for trial in trials]
    for trial in (trials[:1], trials):
        result = play_trials(
            small_policy(), trial, envs[: len(trial)], greedy=True, seed=0, stop=lambda: False
        )
        assert result.tasks == (0, 1, 2)
        assert list(result.lengths) == expected_lengths(3)
    assert result.held_out.tasks == (7, 8)
    assert list(result.held_out.lengths) == expected_lengths(2)
    assert Trial(made, 40).open().num_envs == 16


def test_stopping_interrupts_and_closes():
    make, asked = Made(lambda env, episode: 10**6), []
    with pytest.raises(Interrupted):
        evaluate(
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

    evaluate(
        small_policy(), Made(), episodes=1, greedy=True, seed=0,
        on_step=on_step,
    )  # fmt: skip
    assert seen == list(range(13))
    assert ended == [0] * 12 + [1]


def make_evaluator(policy, results, *, every_seconds=0.0):
    stop = StopSignal()
    like = policy.shared_tensors()
    board = ThreadBoard(like, stop, timeout_seconds=20.0)
    evaluator = Evaluator(
        small_policy(seed=5), like, [Trial(Made(), 2)], partial(board.read, 0, exact=False), stop,
        greedy=True, every_seconds=every_seconds, max_time_fraction=1.0,
        on_evaluation=lambda *result: (results.append(result), stop.stop()),
    )  # fmt: skip
    return evaluator, board, stop


def test_the_newest_parameters_are_evaluated():
    policy, results = small_policy(seed=1), []
    evaluator, board, _ = make_evaluator(policy, results)
    for version in range(3):
        with torch.no_grad():
            policy.value_head.bias.fill_(version)
        board.publish(policy.shared_tensors(), version)
    evaluator.evaluate_newest(stop=lambda: False)
    ((result, version, tensors),) = results
    assert version == 2
    for x, held, own in zip(
        policy.shared_tensors(), tensors, evaluator.policy.shared_tensors(), strict=True
    ):
        assert torch.equal(x, held)
        assert torch.equal(x, own)
    expected = evaluate(policy, Made(), episodes=2, greedy=True, seed=2)
    assert result == expected


def test_the_role_ends_when_stopped():
    policy, results = small_policy(), []
    evaluator, board, stop = make_evaluator(policy, results)
    board.publish(policy.shared_tensors(), 0)
    evaluator.run()
    assert len(results) == 1
    assert evaluator.seconds > 0.0
    evaluator, _, stop = make_evaluator(policy, results, every_seconds=1e6)
    stop.stop()
    evaluator.run()
    assert len(results) == 1
