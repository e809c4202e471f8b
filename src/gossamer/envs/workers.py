"""Environments stepped by worker processes, as a `VecEnv`: slow Python ones, and simulators that are made faster side by side.

Gymnasium's AsyncVectorEnv runs the processes. Each of its "environments" is a whole share of ours,
so that N workers can hold any multiple of N environments.
"""

from __future__ import annotations

import math
import mmap
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from gossamer.envs.episodes import Episodes
from gossamer.envs.gym import check_logs, gym_spec, refuse_of_others
from gossamer.envs.making import close_env, make_gym_env
from gossamer.envs.seeding import ONE_TASK
from gossamer.envs.spaces import check_actions
from gossamer.errors import ConfigError, RunFailed
from gossamer.machine import STOP_SIGNALS, in_thread
from gossamer.spec import leaves_of
from gossamer.system.importing import RAISED, failed, readable, refuse_unguarded_main
from gossamer.system.signs import CLOSE, CONSTRUCTOR, Sign
from gossamer.types import StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess

    from numpy.typing import NDArray

    from gossamer.envs.seeding import SeedStream, Tasks
    from gossamer.envs.settings import EnvConfig
    from gossamer.spec import EnvSpec, Leaf, Obs
    from gossamer.types import VecEnv

LOOK_SECONDS = 0.5
"""Pause between two looks at whether the parent lives."""
_LOST = (EOFError, OSError)
_OF_ALL = [number for number in STOP_SIGNALS if number != signal.SIGTERM]
"""Signals that a terminal or a cluster sends to all processes of a job; the supervisor decides when workers end."""
_DOINGS = ("", CONSTRUCTOR, "reset", "step", CLOSE)
_WORDS = 3
"""Words of a worker's sign in shared memory: its beats, which environment is at something, and at what."""


class EnvWorkerDied(RunFailed):
    """A worker process is gone; the states of its environments are lost."""


class _Words:
    """Whole numbers that a process shares with those that it starts, by the name of a file."""

    def __init__(self, name: str):
        self.name = name
        with open(name, "r+b") as file:  # noqa: PTH123 - a name, not a path to work with
            self.held = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    def __reduce__(self) -> tuple[Any, ...]:
        return _Words, (self.name,)


def _word(index: int) -> Any:
    """Return an attribute that is a word of a worker's."""

    def get(sign: _SharedSign) -> int:
        return sign.memory[sign.first + index]

    def put(sign: _SharedSign, value: int) -> None:
        sign.memory[sign.first + index] = value

    return property(get, put)


class _SharedSign(Sign):
    """A worker's sign, which its parent looks at: attributes are words of shared memory."""

    def __init__(self, whose: str, words: _Words, worker: int):
        self.memory, self.first = words.held, _WORDS * worker
        super().__init__(whose)

    beats = _word(0)
    env = _word(1)

    @property
    def doing(self) -> str:
        return _DOINGS[self.memory[self.first + 2]]

    @doing.setter
    def doing(self, what: str) -> None:
        self.memory[self.first + 2] = _DOINGS.index(what)


class Stepped(Protocol):
    """A worker's share of the environments."""

    @property
    def tells(self) -> bool:
        """Whether an environment tells anything about its episodes."""
        ...

    @property
    def task(self) -> NDArray[np.int64]:
        """[N] number of the task that each environment plays."""
        ...

    def begin(
        self, episodes: NDArray[np.int64], logs: Sequence[NDArray[Any]] | None = None
    ) -> Obs[NDArray[Any]]:
        """Begin the given episodes, replay the actions logged since, return the observations."""
        ...

    def step(self, actions: NDArray[Any]) -> StepResult:
        """Step every environment; begin the next episode in those whose last one is over."""
        ...

    def info(self, i: int) -> dict[str, float]:
        """Return what environment i tells of its present episode."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


class _Simulated:
    """A share of a simulator's environments, which its threads step."""

    tells = False

    def __init__(self, make: Callable[[], VecEnv], sign: Sign):
        sign.doing = CONSTRUCTOR
        try:
            self._envs: Any = make()
        finally:
            sign.doing = ""
        self._envs.sign = sign

    @property
    def task(self) -> NDArray[np.int64]:
        return self._envs.tasks()

    def begin(
        self, episodes: NDArray[np.int64], logs: Sequence[NDArray[Any]] | None = None
    ) -> Obs[NDArray[Any]]:
        return self._envs.start(episodes) if logs is None else self._envs.restore(episodes, logs)

    def step(self, actions: NDArray[Any]) -> StepResult:
        self._envs.send(actions)
        return self._envs.recv()

    def info(self, i: int) -> dict[str, float]:
        return self._envs.episode_info(i)

    def close(self) -> None:
        self._envs.close()


@dataclass(frozen=True, slots=True)
class _Share:
    """One worker's share of the environments, and where it shows signs of life."""

    make: Callable[[Sign], Stepped]
    spec: EnvSpec
    num_envs: int
    whose: str
    """In words, of whom the signs of life are."""
    words: _Words
    """Shared memory with the signs of all workers."""
    index: int
    """Index of the worker."""


def die_with_parent() -> None:
    """End this process soon after its parent has died, also in the middle of a step.

    The kernel's own signal for that (PR_SET_PDEATHSIG) comes when the parent's *thread* ends, and
    environments are made by one that does.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        while os.getppid() == parent.pid:
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


class _ShareEnv(gymnasium.Env[Any, Any]):
    """One worker's environments, dressed as a single environment with batched everything."""

    def __init__(self, share: _Share):
        self._envs: Stepped | None = None
        self._failure = ""  # of the constructors, told at the first reset
        if multiprocessing.current_process().name.startswith("Worker<"):
            die_with_parent()
            try:
                self._envs = share.make(_SharedSign(share.whose, share.words, share.index))
            except RAISED as error:
                self._failure = _why_not_made(share.spec.env_id, error)
        # Else in the process that starts the workers, where gymnasium looks at the spaces of one.
        self.assignment: tuple[NDArray[np.int64], list[NDArray[Any]] | None] | None = None
        spec = share.spec
        self._boxes = {leaf.name: _batched(leaf, share.num_envs) for leaf in spec.leaves}
        self._obs_of = spec.obs_of
        # With the names in our order, not in that of the alphabet.
        boxes = list(self._boxes.items())
        self.observation_space = self._boxes[""] if spec.is_bare else Dict(boxes)
        action = spec.action
        shape = (share.num_envs, *action.shape)
        self.action_space = (
            Box(-np.inf, np.inf, shape, np.float32)
            if action.kind == "gaussian"
            else Box(0, max(action.sizes), shape, np.int64)
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs[NDArray[Any]], dict[str, Any]]:
        """Begin the assigned episodes."""
        assert self.assignment is not None
        if self._failure:
            return self._no_obs(), {"mistake": self._failure}
        assert self._envs is not None
        try:
            return self._envs.begin(*self.assignment), {}
        except RunFailed as error:
            return self._no_obs(), {"failure": str(error)}

    def step(self, action: NDArray[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the share; a failure travels as text, for tracebacks do not survive pickling.

        The second half of the rewards says which episodes are over: with a life lost, terminated does not.
        """
        assert self._envs is not None
        try:
            obs, reward, terminated, truncated, ended = self._envs.step(action)
        except RunFailed as error:
            nothing = np.zeros(len(action))
            failure = {"failure": str(error)}
            return self._no_obs(), np.zeros(2 * len(action)), nothing, nothing, failure
        return obs, np.concatenate([reward, ended]), terminated, truncated, {}

    def _no_obs(self) -> Obs[NDArray[Any]]:
        return self._obs_of({k: np.zeros(x.shape, x.dtype) for k, x in self._boxes.items()})

    def report(self) -> tuple[NDArray[np.int64], list[dict[str, float]], str]:
        """Return each environment's task, what it tells, if anything, and the text of a failure."""
        envs = self._envs
        assert envs is not None
        try:
            infos = [envs.info(i) for i in range(len(envs.task))] if envs.tells else []
        except RunFailed as error:
            return envs.task, [], str(error)
        return envs.task, infos, ""

    def close(self) -> None:
        """Close the share's environments."""
        if self._envs is not None:
            self._envs.close()


def _batched(leaf: Leaf, num_envs: int) -> Box:
    """Return the space of a leaf of several environments; its bounds mean nothing."""
    shape = (num_envs, *leaf.shape)
    if leaf.kind == "vector":
        return Box(-np.inf, np.inf, shape, np.float32)
    most = {"pixels": 255, "mask": 1}.get(leaf.kind, np.iinfo(np.int64).max)
    return Box(0, most, shape, np.dtype(leaf.dtype).type)


def _why_not_made(env_id: str, error: BaseException) -> str:
    """Say in one line why a worker's environments cannot be made."""
    text = " ".join(str(error).split())
    if "daemonic processes are not allowed to have children" in text:
        return f"{env_id} starts processes of its own, which an environment in a worker process cannot: --env.workers 0"
    told = text if isinstance(error, (ConfigError, RunFailed)) else failed(env_id, "fails", error)
    return readable(f"in a worker process {told}; --env.workers 0 does without them")


class _Workers(AsyncVectorEnv):
    """Ended by `end` alone: its own way waits for answers from processes that may be stuck."""

    def __init__(self, shares: Sequence[_Share]):
        self.processes, self.parent_pipes = [], []  # so that those of a failed start can be ended
        try:
            # spawn: forking a process that has threads can leave a child with locks held for ever;
            # resets are ours (DISABLED): they must carry the next episode's seed
            super().__init__(
                [partial(_ShareEnv, share) for share in shares],
                copy=False,
                context="spawn",
                autoreset_mode=AutoresetMode.DISABLED,
            )
        except BaseException:
            self.end()
            raise

    def __del__(self) -> None:
        pass

    def end(self) -> None:
        """End the processes, whatever they are at."""
        if self.closed:
            return
        self.closed = True
        started = [process for process in self.processes if process.pid is not None]
        for process in started:
            process.kill()  # below a learner's process they ignore what asks them to end
        for process in started:
            process.join()
        for pipe in self.parent_pipes:
            if pipe is not None:  # pyright: ignore[reportUnnecessaryComparison]
                pipe.close()


def _zeroed_file(nbytes: int) -> tempfile._TemporaryFileWrapper[bytes]:
    """Return a temporary file of zeros that has its room on the disk: a hole would be a crash where it is first used."""
    file = None
    try:
        file = tempfile.NamedTemporaryFile(prefix="gossamer-")  # noqa: SIM115 - the caller closes it
        file.write(bytes(nbytes))
        file.flush()
    except OSError as error:
        if file is not None:
            file.close()
        raise ConfigError(
            f"no file can be written in {tempfile.gettempdir()} ({error.strerror}), which worker processes need: "
            "make room there, set TMPDIR to another folder, or use --env.workers 0"
        ) from None
    return file


def gym_workers(
    env_id: str,
    *,
    num_envs: int,
    num_workers: int,
    seeds: SeedStream,
    tasks: Tasks,
    settings: EnvConfig,
    max_episode_steps: int,
) -> WorkerEnvs:
    """Share out N Gymnasium environments among worker processes."""
    refuse_unguarded_main(
        f"--env.workers {num_workers}",
        "leave env.workers out, which steps environments in this process",
    )
    size = share_size(num_envs, num_workers)
    make_env = partial(make_gym_env, env_id, max_episode_steps)
    env = make_env()  # mistakes in the id show here, in words, before any process starts
    spec = gym_spec(env_id, env, settings)
    close_env(env_id, env)
    made = [
        partial(
            _episodes,
            env_id,
            make_env,
            num_envs=size,
            seeds=seeds.part(i * size),
            tasks=tasks.part(i * size),
            settings=refuse_of_others(env_id, settings),
        )
        for i in range(num_workers)
    ]
    return WorkerEnvs(spec, made, num_envs=num_envs, whose=seeds.whose, tasks=tasks)


def _episodes(env_id: str, make_env: Callable[[], Any], sign: Sign, **settings: Any) -> Episodes:
    return Episodes(env_id, make_env, sign=sign, **settings)


def simulator_workers(
    make: Callable[..., VecEnv],
    *,
    num_envs: int,
    num_workers: int,
    num_threads: int,
    seeds: SeedStream,
) -> WorkerEnvs:
    """Share out N environments of a simulator with threads among worker processes.

    Making them holds the interpreter's lock, so that many are made sooner in several processes.

    Args:
        make: returns some of them, for arguments num_envs, num_threads and seeds; a function that can be pickled.
        num_envs: N.
        num_workers: P, a divisor of N.
        num_threads: of all workers together.
        seeds: of the environments.
    """
    refuse_unguarded_main(
        f"--env.workers {num_workers}",
        "leave env.workers out, which steps environments in this process",
    )
    size = share_size(num_envs, num_workers)
    one = make(num_envs=1, num_threads=1, seeds=seeds)
    one.close()
    made = [
        partial(
            _Simulated,
            partial(
                make,
                num_envs=size,
                num_threads=math.ceil(num_threads / num_workers),
                seeds=seeds.part(i * size),
            ),
        )
        for i in range(num_workers)
    ]
    return WorkerEnvs(one.spec, made, num_envs=num_envs, whose=seeds.whose, tasks=ONE_TASK)


def share_size(num_envs: int, num_workers: int) -> int:
    """Return how many environments a worker has; refuse parts of environments."""
    if num_workers < 1 or num_envs % num_workers:
        raise ConfigError(
            f"--env.workers is {num_workers}; allowed is 0, or a divisor of the {num_envs} "
            f"environments stepped together"
        )
    return num_envs // num_workers


class WorkerEnvs:
    """N environments shared out among worker processes, as a `VecEnv`.

    Args:
        spec: of the environments.
        made: makes each worker's share, given its sign of life.
        num_envs: N, a multiple of the number of workers.
        whose: in words, of whom the signs of life are.
        tasks: of a family, which environment plays which.
    """

    def __init__(
        self,
        spec: EnvSpec,
        made: Sequence[Callable[[Sign], Stepped]],
        *,
        num_envs: int,
        whose: str,
        tasks: Tasks,
    ):
        num_workers = len(made)
        size = num_envs // num_workers
        # Gone as soon as all have opened it.
        file = _zeroed_file(8 * _WORDS * num_workers)
        words = _Words(file.name)
        self.sign = Sign(whose, [_SharedSign(whose, words, i) for i in range(num_workers)])
        self.sign.doing = CONSTRUCTOR
        shares = [_Share(make, spec, size, whose, words, i) for i, make in enumerate(made)]
        self.spec = spec
        self.num_envs = num_envs
        self._tasks = tasks
        self._share_size = size
        self._in_flight = False
        self._tells = True  # until the workers know better
        self._reports: tuple[Any, ...] | None = None  # of all workers, since the last step

        def begin() -> _Workers:
            # A process begins with the signals blocked that the thread has blocked which starts it; the first start of
            # multiprocessing's tracker would allow them again.
            signal.pthread_sigmask(signal.SIG_BLOCK, _OF_ALL)
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, _OF_ALL)
            return _Workers(shares)

        try:
            self._workers = in_thread(begin, "begin workers").result()
        except (EOFError, ConnectionError) as error:
            raise EnvWorkerDied(
                f"a worker process of {spec.env_id} died at its start; --env.workers 0 does without them"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"{num_workers} worker processes cannot be started ({error.strerror or error}): "
                f"--env.workers {num_workers // 2}"
            ) from error
        finally:
            self.sign.doing = ""
            file.close()

    @property
    def processes(self) -> Sequence[BaseProcess]:
        """The processes that step the environments."""
        return self._workers.processes

    def start(self, episodes: NDArray[np.int64]) -> Obs[NDArray[Any]]:
        """Begin episode `episodes[i]` in every env i; return first observations."""
        return self._begin(episodes, None)

    def restore(self, episodes: NDArray[np.int64], logs: list[NDArray[Any]]) -> Obs[NDArray[Any]]:
        """Begin episodes, replay each env's action log since, return the observations."""
        check_logs(logs, self.spec)
        return self._begin(episodes, logs)

    def _begin(
        self, episodes: NDArray[np.int64], logs: list[NDArray[Any]] | None
    ) -> Obs[NDArray[Any]]:
        size = self._share_size
        self._reports = None
        assignments = [
            (episodes[i : i + size], None if logs is None else logs[i : i + size])
            for i in range(0, self.num_envs, size)
        ]
        try:
            self._workers.set_attr("assignment", assignments)
            # replaying a log takes as long as the episode did, hence no time limit here; a worker
            # that dies closes its pipe, which ends the wait
            obs, info = self._workers.reset()
        except _LOST as error:
            raise self._lost() from error
        self._check(info)
        return self._batch(obs)

    def send(self, action: NDArray[Any]) -> None:
        """Begin a step in every worker."""
        check_actions(action, self.num_envs, self.spec)
        self._reports = None
        try:
            self._workers.step_async(action.reshape(-1, self._share_size, *self.spec.action.shape))
        except _LOST as error:
            raise self._lost() from error
        self._in_flight = True

    def recv(self) -> StepResult:
        """Wait for the step; EnvWorkerDied when a worker is gone."""
        assert self._in_flight, "recv without send"
        self._in_flight = False
        try:
            obs, reward, terminated, truncated, info = self._workers.step_wait()
        except _LOST as error:
            raise self._lost() from error
        self._check(info)
        rewards = reward.reshape(-1, 2, self._share_size)
        return StepResult(
            self._batch(obs),
            rewards[:, 0].ravel().astype(np.float32),
            terminated.ravel(),
            truncated.ravel(),
            rewards[:, 1].ravel() > 0,
        )

    def tasks(self) -> NDArray[np.int64]:
        """Return the number of the task that each environment plays."""
        if not self.spec.family:
            return np.zeros(self.num_envs, np.int64)
        if not self._tasks.stride:
            return np.array([self._tasks.number(i, 0) for i in range(self.num_envs)])
        return np.concatenate([task for task, _, _ in self._ask()])

    def episode_info(self, env: int) -> dict[str, float]:
        """Return what an environment tells of its present episode."""
        if not self._tells:
            return {}
        _, infos, failure = self._ask()[env // self._share_size]
        if failure:
            raise RunFailed(failure)
        self._tells = bool(infos)
        return infos[env % self._share_size] if infos else {}

    def _ask(self) -> tuple[Any, ...]:
        if self._reports is None:
            try:
                self._workers.call_async("report")
                self._reports = self._workers.call_wait()
            except _LOST as error:
                raise self._lost() from error
        return self._reports

    def _batch(self, obs: Any) -> Obs[NDArray[Any]]:
        # the workers write the next step over this shared memory
        shares = leaves_of(obs)
        return self.spec.obs_of(
            {
                leaf.name: np.array(shares[leaf.name]).reshape(self.num_envs, *leaf.shape)
                for leaf in self.spec.leaves
            }
        )

    def _check(self, info: dict[str, Any]) -> None:
        for mistake in info.get("mistake", ()):
            if mistake is not None:
                raise ConfigError(mistake)
        for failure in info.get("failure", ()):
            if failure is not None:
                raise RunFailed(failure)

    def _lost(self) -> EnvWorkerDied:
        for process in self._workers.processes:
            process.join(timeout=0.2)  # a process killed a moment ago may not have its code yet
        gone = [
            f"worker {i} (pid {process.pid}, exit code {process.exitcode})"
            for i, process in enumerate(self._workers.processes)
            if not process.is_alive()
        ]
        what = f"{', '.join(gone)} died" if gone else "a worker closed its connection"
        return EnvWorkerDied(f"environment workers of {self.spec.env_id}: {what}")

    def close(self) -> None:
        """End the worker processes."""
        self._workers.end()
