"""Micro-batches learnt side by side: the same numbers every time, and errors that surface."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from core_fakes import learn, make_learner, random_batch, small_policy, spec_of

from gossamer.algorithms.a2c import A2C
from gossamer.algorithms.ppo import PPO
from gossamer.algorithms.vtrace import VTrace


def batches_of(count):
    return [random_batch(spec_of(), 5, 4, seed=i) for i in range(count)]


def learnt(algorithm, num_threads):
    learner = make_learner(
        small_policy(), algorithm, *batches_of(2), micro_batch_rows=6, num_threads=num_threads
    )
    metrics = [learn(learner) for _ in range(4)]
    learner.close()
    return torch.cat([x.detach().flatten() for x in learner.policy.parameters()]), metrics


@pytest.mark.parametrize(
    ("num_threads", "algorithm"),
    [
        (3, PPO(passes=2, num_minibatches=2)),
        (2, A2C(normalize_advantage=True, num_minibatches=2)),
        (3, VTrace(normalize_advantage=True, num_minibatches=2, passes=2)),
    ],
)
def test_threads_change_nothing_but_the_order_of_sums(num_threads, algorithm):
    params, metrics = learnt(algorithm, num_threads)
    again = learnt(algorithm, num_threads)
    assert torch.equal(params, again[0]), "timing must not matter"
    assert metrics == again[1]
    alone, _ = learnt(algorithm, 1)
    torch.testing.assert_close(params, alone, rtol=1e-3, atol=1e-5)


def test_threads_share_weights_in_bfloat16():
    spec = spec_of(obs_shape=(4, 44, 44))
    gradients = []
    for num_threads in (1, 2, 2):
        policy = small_policy(spec, torso="a3c", fc_size=16)
        policy.set_precision(torch.bfloat16)
        batch = random_batch(spec, 5, 4)
        learner = make_learner(policy, PPO(), batch, micro_batch_rows=6, num_threads=num_threads)
        learner.adapt()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters()]))
        learner.close()
    alone, two, again = gradients
    assert torch.equal(two, again)
    assert (two - alone).norm() < 0.02 * alone.norm()


@pytest.mark.parametrize("acts", [False, True])
def test_a_thread_that_ends_leaves_anothers_gradients_as_they_are(acts):
    """A weight that is used twice, as with a burn-in, is cast once, whenever other threads end, or act with the user's layers."""
    spec = spec_of(obs_shape=(4, 44, 44))
    policy = small_policy(spec, torso="a3c", fc_size=16)
    policy.set_precision(torch.bfloat16)
    actor = small_policy(spec, torso="own_encoders:Keeps")
    actor.set_precision(torch.bfloat16, inference=True)
    batch = random_batch(spec, 5, 4)
    params = list(policy.parameters())

    def forward() -> torch.Tensor:
        out = policy(batch.obs[:5], batch.starts[:5], batch.core_state)
        return out.value.square().sum() + out.action_params.square().sum()

    def other() -> None:
        if acts:
            with torch.no_grad():
                actor(batch.obs[:5], batch.starts[:5], batch.core_state)
            return
        with policy.accumulating():
            forward()

    gradients = []
    for ends_between in (False, True):
        with policy.accumulating():
            loss = forward()
            if ends_between:
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()
            loss = loss + 0.37 * forward()
            found = torch.autograd.grad(loss, params, allow_unused=True)
        gradients.append([x for x in found if x is not None])
    assert all(map(torch.equal, *gradients))
    with torch.no_grad():  # the next update casts what is learnt meanwhile
        for p in params:
            p.zero_()
    with policy.accumulating():
        assert float(forward().detach()) == 0.0


def test_an_error_in_a_learners_thread_is_raised_once_all_have_ended():
    class Broken(A2C):
        def loss(self, policy, batch, state):
            in_work.append(threading.current_thread())
            try:
                if threading.current_thread() is threading.main_thread():
                    time.sleep(0.05)
                    return super().loss(policy, batch, state)
                raise ValueError("of a thread")
            finally:
                in_work.remove(threading.current_thread())

    in_work = []
    learner = make_learner(
        small_policy(), Broken(), *batches_of(1), micro_batch_rows=6, num_threads=2
    )
    with pytest.raises(ValueError, match="of a thread"):
        learner.adapt()
    assert not in_work
    learner.close()
