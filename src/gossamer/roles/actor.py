"""The actor: steps environments with a policy and writes trajectories into slots.

Shapes: T unroll length, B columns, n columns of one group, S numbers of recurrent state a column.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from gossamer.errors import RunFailed
from gossamer.links.stopping import Stopped
from gossamer.roles.acting_group import Episode, Group
from gossamer.roles.acting_step import ActingStep
from gossamer.roles.inference import Inference
from gossamer.roles.own_pace import OwnPace
from gossamer.roles.slot_rows import ActedRows, Rows
from gossamer.spec import copy_obs, leaf_field, leaves_of, map_obs, nested_obs, obs_at
from gossamer.system import devices
from gossamer.system.graphs import Graphs
from gossamer.system.prefixes import without_prefix
from gossamer.types import Trajectory, fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gossamer.links.stopping import StopSignal
    from gossamer.policies.actor_critic import ActorCritic
    from gossamer.spec import EnvSpec, Obs
    from gossamer.types import SharedEnvs, VecEnv


WRITTEN_BY_HOST = (
    *("reward", "terminated", "truncated", "valid", "starts"),
    *("last_action", "last_reward", "task", "version"),
)
"""Fields of a trajectory that the host knows before a GPU does."""


def host_rows(spec: EnvSpec, *, unroll_length: int, num_columns: int) -> Trajectory:
    """Allocate the fields of a trajectory that the host writes, where a GPU reaches them, and actions; no others."""
    made: dict[str, Any] = {}
    for name, kind in fields_of(spec).items():
        shape = kind.shape(spec, unroll_length=unroll_length, num_columns=num_columns, core_units=0)
        wanted = name in (*WRITTEN_BY_HOST, "action")
        dtype: torch.dtype = getattr(torch, kind.dtype_in(spec))
        made[name] = devices.pinned(torch.zeros(shape if wanted else (0,), dtype=dtype))
    return Trajectory(**nested_obs(made))


class Acting(Protocol):
    """Collector of a learner's trajectories: an actor in its process, or several in processes of their own."""

    env_steps: int
    """Decisions so far."""
    seconds: dict[str, float]
    """Spent on environments ("env") and on choosing actions ("inference")."""
    exact: bool
    """Whether its episodes are those that the run's seed says."""

    @property
    def processes(self) -> list[dict[str, int]]:
        """Processes of its own: index of the actor, pid and restarts of each; none in the learner's process."""
        ...

    @property
    def policy(self) -> ActedWith:
        """Tensors into which the parameters to act with are written."""
        ...

    @property
    def thread_ids(self) -> list[int]:
        """Native ids of the threads, or ids of the processes, that act beside the caller's thread."""
        ...

    def collect(self, slot: Trajectory, version: int) -> None:
        """Fill a slot with the next T steps of every environment."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue exactly, between two trajectories."""
        ...

    def load_state_dict(self, state: dict[str, Any], *, exact: bool) -> bool:
        """Continue from `state_dict`; return whether every environment is back."""
        ...

    def close(self) -> None:
        """Free the environments."""
        ...


class ActedWith(Protocol):
    """The parameters that act."""

    def shared_tensors(self) -> list[Tensor]:
        """Parameters and moments."""
        ...

    def refresh(self) -> None:
        """Record that they were written."""
        ...


class Actor:
    """Steps groups of environments in turn: while one steps, the policy acts for the next.

    Args:
        groups: environments, their columns side by side in this order.
        policy: a copy of its own, set up for inference; the placement copies parameters into it.
        unroll_length: T.
        seeds: of the streams that sample actions, one a group: so groups draw alike in one process or several.
        on_episode: told every finished episode.
        first_obs: first observations of groups that have begun their episode 0; None begins it.
        stop: ends collecting between two steps; None: nothing does.
        num_threads: parts of a group's columns that are acted for side by side, on a CPU.
        moment: what an episode tells as its `env_steps`, from the slot and the row of its end; None: all env steps so
            far.
        graphs: makes captured functions; None: those of the policy's device.
    """

    def __init__(
        self,
        groups: Sequence[VecEnv],
        policy: ActorCritic,
        *,
        unroll_length: int,
        seeds: Sequence[int],
        on_episode: Callable[[Episode], None],
        first_obs: Sequence[Obs[NDArray[Any]]] | None = None,
        stop: StopSignal | None = None,
        num_threads: int = 1,
        moment: Callable[[Trajectory, int], int] | None = None,
        graphs: Graphs | None = None,
    ):
        self._stop = stop
        self._moment = moment or self._env_steps_at
        self._infer = Inference(policy, num_threads)
        self.policy = policy
        self.env_steps = 0  # decisions: a row that resets an environment is none
        self.exact = True
        self.processes: list[dict[str, int]] = []
        self.seconds = {"env": 0.0, "inference": 0.0}
        self._unroll_length = unroll_length
        self._on_episode = on_episode
        self._device = policy.device
        self._graphs = graphs or Graphs(self._device)
        self._groups: list[Group] = []
        self._locked: dict[int, devices.PageLocked] = {}
        for envs, seed in zip(groups, seeds, strict=True):
            first = self._groups[-1].columns.stop if self._groups else 0
            obs = first_obs[len(self._groups)] if first_obs is not None else None
            if obs is None:
                obs = envs.start(np.zeros(envs.num_envs, dtype=np.int64))
            generator = torch.Generator(device=self._device).manual_seed(seed)
            self._groups.append(self._group(envs, first, obs, generator))
        self._written: Trajectory | None = None
        self._own_pace: OwnPace | None = None
        if devices.is_gpu(self._device):
            # Where the host writes rows; they go to the slot once a trajectory.
            self._written = host_rows(
                policy.spec, unroll_length=unroll_length, num_columns=self.num_columns
            )
            if OwnPace.suits(self._groups):
                self._own_pace = OwnPace(policy, self._written, stop=stop, seconds=self.seconds)

    def _group(
        self, envs: VecEnv, first: int, obs: Obs[NDArray[Any]], generator: torch.Generator
    ) -> Group:
        step = None
        if devices.is_gpu(self._device):
            step = ActingStep(
                self.policy,
                envs.num_envs,
                unroll_length=self._unroll_length,
                generator=generator,
                graphs=self._graphs,
                memory=self._memory_of(envs),
            )
        return Group(envs, first, self.policy, obs, generator, step)

    def _memory_of(self, envs: VecEnv) -> Obs[Tensor] | None:
        """Return where worker processes write observations; None: there are none, or the GPU does not reach that."""
        if not hasattr(envs, "pages"):
            return None
        shared = cast("SharedEnvs", envs)
        if id(envs) not in self._locked:
            self._locked[id(envs)] = devices.PageLocked(shared.pages, self._device)
        if not self._locked[id(envs)].holds:
            return None
        return map_obs(torch.from_numpy, shared.results.obs)

    @property
    def num_columns(self) -> int:
        """B: environments of all groups."""
        return self._groups[-1].columns.stop

    @property
    def logged_steps(self) -> int:
        """Steps whose actions are kept, for bringing environments back: those since the oldest episode began."""
        return max(len(group.sent) for group in self._groups)

    @devices.memory_told("to act", devices.ROOM)
    @torch.no_grad()
    def collect(self, slot: Trajectory, version: int) -> None:
        """Fill a slot with the next T steps of every environment; nothing is left in flight."""
        given, slot = slot, self._written or slot
        for group in self._groups:
            columns = group.columns
            if group.step is None:
                copy_obs(obs_at(slot.obs, (0, columns)), group.obs)
                slot.core_state[:, columns].copy_(group.core_state)
            else:
                group.step.begin(group.last_action)
            slot.starts[0, columns] = group.starts
            slot.last_action[columns] = group.last_action
            slot.last_reward[columns] = group.last_reward
            slot.task[columns] = torch.from_numpy(group.envs.tasks())
        slot.version.fill_(version)
        if self._own_pace is not None:
            for t, episode in self._own_pace.collect(self._groups):
                self._on_episode(replace(episode, env_steps=self._moment(slot, t)))
        else:
            self._collect_in_step(slot)
        for group in self._groups:
            # The slot goes to the learner and comes back overwritten; the next trajectory begins with copies.
            if group.step is None:
                last = obs_at(slot.obs, (self._unroll_length, group.columns))
                group.obs = map_obs(torch.clone, last)
            group.starts = slot.starts[self._unroll_length, group.columns].clone()
            group.last_action = slot.action[-1, group.columns].clone()
            group.last_reward = slot.reward[-1, group.columns].clone()
        given.env_steps = int(slot.valid.sum())
        self.env_steps += given.env_steps
        if slot is not given:
            self._hand_over(slot, given)

    def _collect_in_step(self, slot: Trajectory) -> None:
        """Take every step in all environments of a group at once."""
        each = [
            (
                group,
                Rows.of(slot, group.columns),
                None if group.step is not None else ActedRows.of(slot, group.columns),
            )
            for group in self._groups
        ]
        for t in range(self._unroll_length):
            if self._stop is not None and self._stop.stopped:
                self._leave(in_flight=t > 0)
            for group, rows, acted in each:
                if t > 0:
                    self._receive(group, slot, rows, acted, t - 1)
                self._act(group, slot, rows, acted, t)
        for group, rows, acted in each:
            self._receive(group, slot, rows, acted, self._unroll_length - 1)

    def _hand_over(self, written: Trajectory, slot: Trajectory) -> None:
        """Copy a trajectory to its slot on the GPU: what the host has written, and what has stayed there; wait for it."""
        for name in WRITTEN_BY_HOST:
            getattr(slot, name).copy_(getattr(written, name), non_blocking=True)
        for group in self._groups:
            assert group.step is not None
            group.step.finish(slot, group.columns)
        devices.wait(self._device)

    def _env_steps_at(self, slot: Trajectory, t: int) -> int:
        return self.env_steps + int(slot.valid[: t + 1].sum())  # every group has acted at row t

    def _leave(self, *, in_flight: bool) -> NoReturn:
        for group in self._groups if in_flight else ():
            group.envs.recv()  # simulators are closed only when they are through
        raise Stopped

    def _act(
        self, group: Group, slot: Trajectory, rows: Rows, acted: ActedRows | None, t: int
    ) -> None:
        began = time.perf_counter()
        if acted is not None:
            self._infer_and_sample(group, slot, acted, t)
            chosen = acted.action[t]
        else:
            assert group.step is not None
            columns = group.columns
            last_reward = slot.reward[t - 1, columns] if t else slot.last_reward[columns]
            chosen = group.step(last_reward, slot.starts[t, columns])
            slot.action[t, columns] = chosen
        action = self.policy.env_action(chosen).numpy().copy()
        group.log(action)
        self.seconds["inference"] += time.perf_counter() - began
        group.envs.send(action)
        np.logical_not(group.ended, out=rows.valid[t])

    def _infer_and_sample(self, group: Group, slot: Trajectory, acted: ActedRows, t: int) -> None:
        last_action = last_reward = None
        if self.policy.looks_back:
            columns, before = group.columns, slice(t - 1, t)
            last_action = slot.action[before, columns] if t else slot.last_action[None, columns]
            last_reward = slot.reward[before, columns] if t else slot.last_reward[None, columns]
        out = self._infer(acted.obs[t], acted.starts[t], group.core_state, last_action, last_reward)
        params = out.action_params[0]
        acted.action[t].copy_(self.policy.sample(params, group.generator, group.noise))
        group.core_state = out.core_state
        acted.behavior[t].copy_(params)
        acted.value[t].copy_(out.value[0])

    def _receive(
        self, group: Group, slot: Trajectory, rows: Rows, acted: ActedRows | None, t: int
    ) -> None:
        began = time.perf_counter()
        result = group.envs.recv()
        if acted is not None:
            acted.write_obs(t + 1, result.obs)
        else:
            assert group.step is not None
            group.step.take(result.obs)
        rows.reward[t] = result.reward
        rows.terminated[t] = result.terminated
        rows.truncated[t] = result.truncated
        rows.starts[t + 1] = group.ended
        for i in np.flatnonzero(group.ended).tolist():
            group.begin_episode(i, group.oldest + len(group.sent))
        group.episode_return += result.reward
        group.length += ~group.ended
        group.ended = result.ended.copy()
        if group.ended.any():
            moment, tasks = self._moment(slot, t), group.envs.tasks()
            for i in np.flatnonzero(group.ended).tolist():
                episode = group.end_episode(
                    i, truncated=bool(result.truncated[i]), task=int(tasks[i])
                )
                self._on_episode(replace(episode, env_steps=moment))
        self.seconds["env"] += time.perf_counter() - began

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue exactly, between two trajectories."""
        state: dict[str, Any] = {"env_steps": self.env_steps}
        for k, group in enumerate(self._groups):
            logs = group.logs()
            state |= {
                generator_name(k): group.generator.get_state(),
                f"{k}.episodes": torch.from_numpy(group.episodes.copy()),
                f"{k}.ended": torch.from_numpy(group.ended.copy()),
                f"{k}.starts": group.starts.clone(),
                f"{k}.episode_return": torch.from_numpy(group.episode_return.copy()),
                f"{k}.length": torch.from_numpy(group.length.copy()),
                f"{k}.core_state": group.core_state.cpu().clone(),
                f"{k}.last_action": group.last_action.clone(),
                f"{k}.last_reward": group.last_reward.clone(),
                **{
                    f"{k}.{leaf_field('obs', leaf)}": x.contiguous().clone()
                    for leaf, x in leaves_of(group.obs).items()
                },
                **({} if group.noise is None else {f"{k}.noise": group.noise.cpu().clone()}),
                f"{k}.log_lengths": torch.tensor([len(log) for log in logs]),
                f"{k}.logs": torch.from_numpy(np.concatenate(logs)),
            }
        return state

    def load_state_dict(self, state: dict[str, Any], *, exact: bool) -> bool:
        """Continue from `state_dict`; environments that cannot come back start new episodes.

        Args:
            state: as saved.
            exact: bring the environments back to where they were; if that fails, all of them start anew.

        Returns:
            Whether every environment is back.
        """
        self.env_steps = state["env_steps"]
        for k, group in self._numbered:
            if generator_name(k) in state:  # groups of an older run drew from one stream
                _go_on_drawing(group.generator, state[generator_name(k)])
        if exact and all(self._bring_back(group, f"{k}.", state) for k, group in self._numbered):
            return True
        for k, group in self._numbered:
            episodes = state[f"{k}.episodes"].numpy() + 1
            obs = group.envs.start(episodes)
            self._groups[k] = self._group(group.envs, group.first, obs, group.generator)
            self._groups[k].episodes = episodes
        return False

    @property
    def _numbered(self) -> list[tuple[int, Group]]:
        return list(enumerate(self._groups))

    def _bring_back(self, group: Group, prefix: str, state: dict[str, Any]) -> bool:
        """Play a group's episodes again; return whether it came to where it was."""
        held = without_prefix(state, prefix)
        group.episodes = held["episodes"].numpy().copy()
        logs = [x.numpy() for x in held["logs"].split(held["log_lengths"].tolist())]
        try:
            obs = map_obs(torch.from_numpy, group.envs.restore(group.episodes, logs))
        except RunFailed:  # an episode that took another course may be stepped past its end
            return False
        leaves = leaves_of(obs).items()
        if not all(torch.equal(x, held[leaf_field("obs", leaf)]) for leaf, x in leaves):
            return False
        if group.step is None:
            group.obs = map_obs(torch.clone, obs)
        else:
            group.step.take(map_obs(Tensor.numpy, obs))
        group.ended = held["ended"].numpy().copy()
        group.starts = held["starts"].clone()
        group.episode_return = held["episode_return"].numpy().copy()
        group.length = held["length"].numpy().copy()
        group.core_state.copy_(held["core_state"])
        if (
            group.noise is not None and "noise" in held
        ):  # neither begun nor ended by a changed setting
            group.noise.copy_(held["noise"])
        group.last_action = held["last_action"].clone()
        group.last_reward = held["last_reward"].clone()
        group.relog(logs)
        return True

    @property
    def thread_ids(self) -> list[int]:
        """Native ids of the threads that compute actions beside the caller's."""
        return self._infer.thread_ids

    def close(self) -> None:
        """Free the environments."""
        with ExitStack() as closing:
            closing.callback(self._infer.close)
            for group in self._groups:
                closing.callback(group.envs.close)
            for locked in self._locked.values():
                closing.callback(locked.close)


def generator_name(group: int) -> str:
    """Return what a group's stream of actions is called in an actor's state."""
    return f"{group}.generator" if group else "generator"


def _go_on_drawing(generator: torch.Generator, held: Tensor) -> None:
    """Continue a stream of actions; after one on another kind of device comes one of its own."""
    if held.shape == generator.get_state().shape:
        generator.set_state(held)
    else:
        seed = np.random.SeedSequence(held.tolist()).generate_state(1)[0]
        generator.manual_seed(int(seed))
