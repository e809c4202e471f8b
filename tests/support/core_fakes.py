"""Small real classes the core's tests share: environments, policies, batches, a replay of one list.

Shapes: T unroll length, B columns, N environments.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from gossamer.envs.seeding import WithoutTasks
from gossamer.ops.distributions import make_distribution
from gossamer.ops.micro_batches import MicroBatches
from gossamer.policies.actor_critic import ActorCritic
from gossamer.policies.settings import PolicyConfig
from gossamer.roles.learner import Learner
from gossamer.roles.optimizers import OptimizerConfig
from gossamer.spec import ActionSpec, EnvSpec, one_leaf
from gossamer.types import Batch, PolicyOutput, StepResult, as_batch, empty_trajectory

torch.set_num_threads(1)  # tensors here are tiny: a second thread only waits

DISCRETE = ActionSpec("categorical", (3,))
CONTINUOUS = ActionSpec("gaussian", (2,), (-1.0, -2.0), (1.0, 4.0))
JOINT = ActionSpec("joint", parts=(("aim", CONTINUOUS), ("move", ActionSpec("categorical", (3,)))))


def spec_of(action=DISCRETE, obs_shape=(4,)):
    kind = "pixels" if len(obs_shape) == 3 else "vector"
    return EnvSpec("Fake-v0", one_leaf(kind, tuple(obs_shape)), action, "fake", 1000)


def small_policy(spec=None, *, seed=0, value_norm=False, **settings):
    settings = {"hidden_sizes": (8,), "normalize_obs": False, **settings}
    torch.manual_seed(seed)
    policy = ActorCritic(spec or spec_of(), PolicyConfig(**settings), value_norm=value_norm)
    with torch.no_grad():  # orthogonal heads of gain 0.01 say nearly nothing; let them speak
        policy.action_head.weight.mul_(50.0)
    return policy


def episode_length(env, episode):
    return (3, 1, 5, 2, 4)[(env + 2 * episode) % 5]


class CountingEnvs(WithoutTasks):
    """Observation: (env, episode, step of the episode, last action); lengths 1 to 5.

    Odd episodes end by termination, even ones by truncation. Reward: step + a tenth of the action.
    """

    def __init__(self, num_envs, *, first=0, action=DISCRETE, length=episode_length):
        self.num_envs, self.first, self.length = num_envs, first, length
        self.spec = spec_of(action)
        self.in_flight = None
        self.closed = False
        self.sent = []

    def start(self, episodes):
        self.episode = np.array(episodes, dtype=np.int64)
        self.step = np.zeros(self.num_envs, dtype=np.int64)
        self.last = np.zeros(self.num_envs)
        self.over = np.zeros(self.num_envs, dtype=bool)
        return self._obs()

    def send(self, action):
        assert self.in_flight is None, "sent twice"
        assert action.shape == (self.num_envs, *self.spec.action.shape)
        self.in_flight = action.copy()
        self.sent.append(self.in_flight)

    def recv(self):
        action, self.in_flight = self.in_flight, None
        n = self.num_envs
        reward = np.zeros(n, np.float32)
        ended, was_over = np.zeros(n, bool), self.over.copy()
        for i in range(n):
            if was_over[i]:
                self.episode[i] += 1
                self.step[i], self.last[i] = 0, 0.0
            else:
                self.step[i] += 1
                self.last[i] = float(action[i].sum())
                reward[i] = self.step[i] + 0.1 * self.last[i]
                ended[i] = self.step[i] == self.length(self.first + i, self.episode[i])
        self.over = ended.copy()
        odd = self.episode % 2 == 1
        return StepResult(self._obs(), reward, ended & odd, ended & ~odd, ended)

    def restore(self, episodes, logs):
        obs = self.start(episodes)
        for i, log in enumerate(logs):
            self.step[i] = len(log)
            self.last[i] = float(log[-1].sum()) if len(log) else 0.0
            self.over[i] = self.step[i] == self.length(self.first + i, self.episode[i])
            obs = self._obs()
        return obs

    def close(self):
        self.closed = True

    def _obs(self):
        env = self.first + np.arange(self.num_envs)
        return np.stack([env, self.episode, self.step, self.last], axis=1).astype(np.float32)


class SignEnvs(WithoutTasks):
    """One-step episodes: pays 1 for action 1 where the observation is positive, else for action 0."""

    def __init__(self, num_envs, *, seed=0):
        self.num_envs = num_envs
        self.spec = spec_of(ActionSpec("categorical", (2,)), (1,))
        self.rng = np.random.default_rng(seed)

    def start(self, episodes):
        self.over = np.zeros(self.num_envs, dtype=bool)
        self.shown = self.rng.choice([-1.0, 1.0], self.num_envs)
        return self.shown[:, None].astype(np.float32)

    def send(self, action):
        self.action = action.copy()

    def recv(self):
        right = ((self.action == 1) == (self.shown > 0)) & ~self.over
        ended = ~self.over
        self.shown = self.rng.choice([-1.0, 1.0], self.num_envs)
        self.over = ended
        never = np.zeros(self.num_envs, bool)
        obs = self.shown[:, None].astype(np.float32)
        return StepResult(obs, right.astype(np.float32), ended.copy(), never, ended.copy())

    def close(self):
        pass


def random_batch(spec, t, b, *, seed=0, off_policy=0.5, core_units=0) -> Batch:
    """A batch with ends, truncations, lost lives, reset rows and starts where they belong.

    Of vectors, observation [..., 0] is the row and [..., 1] the column, for `TablePolicy`.
    """
    gen = torch.Generator().manual_seed(seed)
    x = empty_trajectory(spec, unroll_length=t, num_columns=b, core_units=core_units)
    if spec.leaf.kind == "pixels":
        x.obs.copy_(torch.randint(0, 256, x.obs.shape, generator=gen))
    else:
        x.obs.copy_(torch.randn(x.obs.shape, generator=gen))
        x.obs[..., 0] = torch.arange(t + 1.0)[:, None]
        x.obs[..., 1] = torch.arange(float(b))
    x.behavior.copy_(off_policy * torch.randn(x.behavior.shape, generator=gen))
    x.action.copy_(make_distribution(spec.action, x.behavior).sample(gen))
    x.last_action.copy_(x.action[0].flip(0))
    x.reward.copy_(2.0 * torch.randn((t, b), generator=gen))
    x.last_reward.copy_(torch.randn(b, generator=gen))
    x.value.copy_(torch.randn((t, b), generator=gen))
    x.core_state.copy_(torch.randn(x.core_state.shape, generator=gen))
    draw = torch.rand((t, b), generator=gen)
    was_over = torch.zeros(b, dtype=torch.bool)
    was_over[0] = True  # the first column begins with a reset row
    for row in range(t):
        x.valid[row] = ~was_over
        x.starts[row + 1] = was_over
        terminated = (draw[row] < 0.15) & ~was_over
        truncated = (draw[row] > 0.85) & ~was_over
        lost_life = (draw[row] > 0.5) & (draw[row] < 0.55) & ~was_over
        x.terminated[row], x.truncated[row] = terminated | lost_life, truncated
        x.reward[row, was_over] = 0.0
        was_over = terminated | truncated
    return as_batch(x)


class TablePolicy(nn.Module):
    """Says what a table holds for (row, column), so that gradients show row by row."""

    core_units = 0
    looks_back = False

    def __init__(self, spec, t, b, *, seed=0, scale=1.0, value_norm=False):
        super().__init__()
        gen = torch.Generator().manual_seed(seed + 1000)
        self.spec, self.scale, self.value_norm = spec, scale, value_norm
        shape = (t + 1, b, spec.action.num_params)
        self.params = nn.Parameter(torch.randn(shape, generator=gen).double())
        self.value = nn.Parameter(torch.randn((t + 1, b), generator=gen).double())

    def forward(self, obs, starts, core_state, last_action=None, last_reward=None):
        row, column = obs[..., 0].long(), obs[..., 1].long()
        params, value = self.params[row, column], self.value[row, column]
        return PolicyOutput(params, value, params, core_state)

    def distribution(self, action_params):
        return make_distribution(self.spec.action, action_params)

    def value_scale(self):
        return torch.tensor(self.scale)

    def refresh(self):
        pass


def as_double(batch: Batch) -> Batch:
    """The batch's numbers in float64, to compare with slow references exactly."""
    names = ("reward", "behavior", "value", "last_reward")
    return replace(batch, **{name: getattr(batch, name).double() for name in names})


class ListReplay:
    """Gives batches from a list, over and over; counts releases."""

    def __init__(self, *batches):
        self.batches, self.given, self.released = list(batches), 0, 0
        self.replays = any(batch.replayed.any() for batch in batches)

    def sample(self):
        batch = self.batches[self.given % len(self.batches)]
        self.given += 1
        return batch

    def release(self):
        self.released += 1

    def take_metrics(self):
        return {}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def close(self):
        pass


CONSTANT = OptimizerConfig(learning_rate=(1e-2,), schedule="constant", max_grad_norm=0.0)


def make_learner(
    policy,
    algorithm,
    *batches,
    optimizer=CONSTANT,
    micro_batch_rows=10**6,
    num_threads=1,
    **options,
):
    options = {
        "total_env_steps": 1000,
        "seed": 3,
        **options,
    }
    return Learner(
        policy,
        algorithm,
        optimizer,
        ListReplay(*batches),
        micro_batches=MicroBatches(micro_batch_rows, num_threads),
        **options,
    )


def learn(learner):
    """Learn a version; return the metrics since they were last asked for."""
    learner.learn_version()
    return learner.take_metrics()


def gradient_of(policy, algorithm, batch, micro_batch_rows):
    """The first gradient that a learner computes, one flat vector, from a copy of the policy."""
    return gradient_and_losses_of(policy, algorithm, batch, micro_batch_rows)[0]


def gradient_and_losses_of(policy, algorithm, batch, micro_batch_rows):
    """The same, and the metrics of the update, the loss and its terms among them."""
    policy = copy.deepcopy(policy)
    learner = make_learner(policy, algorithm, batch, micro_batch_rows=micro_batch_rows)
    learner.adapt()
    learner.combine()
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    return gradient, learner.take_metrics()


def poisoned(batch):
    batch.reward[batch.valid.nonzero()[0][0], batch.valid.nonzero()[0][1]] = float("nan")
    return batch
