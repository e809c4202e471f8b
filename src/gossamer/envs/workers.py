"""Environments stepped by worker processes, as a `VecEnv`: slow Python ones, and simulators that are made faster side by side.

Each worker holds an equal share of them (`worker.py`).
"""

from __future__ import annotations

import math
import multiprocessing
import os
import select
import signal
from functools import partial
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from gossamer.envs.episodes import Episodes
from gossamer.envs.gym import check_logs, gym_spec, refuse_of_others
from gossamer.envs.making import close_env, make_gym_env
from gossamer.envs.seeding import ONE_TASK
from gossamer.envs.spaces import check_actions
from gossamer.envs.worker import STEP, Share, SharedArrays, SharedSign, Simulated, serve
from gossamer.errors import ConfigError, RunFailed
from gossamer.machine import STOP_SIGNALS, in_thread
from gossamer.system.importing import refuse_unguarded_main
from gossamer.system.signs import CONSTRUCTOR, Sign
from gossamer.types import StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess

    from numpy.typing import NDArray

    from gossamer.envs.seeding import SeedStream, Tasks
    from gossamer.envs.settings import EnvConfig
    from gossamer.envs.worker import Stepped
    from gossamer.spec import EnvSpec, Obs
    from gossamer.types import VecEnv

_LOST = (EOFError, OSError)
_OF_ALL = [number for number in STOP_SIGNALS if number != signal.SIGTERM]
"""Signals that a terminal or a cluster sends to all processes of a job; the supervisor decides when workers end."""


class EnvWorkerDied(RunFailed):
    """A worker process is gone; the states of its environments are lost."""


class _Processes:
    """The worker processes, and the pipes to them.

    Args:
        made: makes each worker's share, given its sign of life.
        arrays: memory that they share with this process.
        env_id: of the environments.
        whose: in words, of whom the signs of life are.

    Raises:
        OSError: a process cannot be started; none is left.
    """

    def __init__(
        self,
        made: Sequence[Callable[[Sign], Stepped]],
        arrays: SharedArrays,
        env_id: str,
        whose: str,
    ):
        # spawn: forking a process that has threads can leave a child with locks held for ever
        context = multiprocessing.get_context("spawn")
        self.started: list[BaseProcess] = []
        self.requests: list[Any] = []
        self.done, told = context.Pipe(duplex=False)
        size = len(arrays.reward) // len(made)
        try:
            for i, make in enumerate(made):
                ours, theirs = context.Pipe()
                self.requests.append(ours)
                share = Share(
                    made=cloudpickle.dumps(make),  # it may be of a script
                    env_id=env_id,
                    first=i * size,
                    num_envs=size,
                    whose=whose,
                    index=i,
                    arrays=arrays,
                    requests=theirs,
                    done=told,
                )
                process = context.Process(
                    target=serve, args=(share,), name=f"env worker {i}", daemon=True
                )
                process.start()
                self.started.append(process)
                theirs.close()
        except BaseException:
            self.end()
            raise
        finally:
            told.close()
        self._poll = select.poll()
        self._poll.register(self.done.fileno(), select.POLLIN)
        for process in self.started:
            self._poll.register(process.sentinel, select.POLLIN)

    def wait(self) -> bool:
        """Wait until all have done what they were asked for; return False as soon as one is gone instead."""
        left, done = len(self.started), self.done.fileno()
        while left:
            for number, _ in self._poll.poll():
                if number != done:
                    return False
                left -= len(os.read(done, left))
        return True

    def end(self) -> None:
        """End the processes, whatever they are at."""
        for process in self.started:
            process.kill()  # below a learner's process they ignore what asks them to end
        for process in self.started:
            process.join()
        for pipe in (*self.requests, self.done):
            pipe.close()


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
            Simulated,
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
        self.spec = spec
        self.num_envs = num_envs
        self._tasks = tasks
        self._share_size = num_envs // len(made)
        self._in_flight = False
        self._tells = True  # until the workers know better
        self._reports: list[Any] | None = None  # of all workers, since the last step
        try:
            self._arrays = SharedArrays(spec, num_envs, len(made))
        except OSError as error:
            raise ConfigError(
                f"there is no room for what worker processes share ({error.strerror or error}): make some in /dev/shm or "
                "the folder TMPDIR, or use --env.workers 0"
            ) from None
        self.sign = Sign(whose, [SharedSign(whose, self._arrays, i) for i in range(len(made))])
        self._obs = spec.obs_of(self._arrays.obs)

        def begin() -> _Processes:
            # A process begins with the signals blocked that the thread has blocked which starts it; the first start of
            # multiprocessing's tracker would allow them again.
            signal.pthread_sigmask(signal.SIG_BLOCK, _OF_ALL)
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, _OF_ALL)
            return _Processes(made, self._arrays, spec.env_id, whose)

        try:
            self._workers = in_thread(begin, "begin workers").result()
        except OSError as error:
            raise ConfigError(
                f"{len(made)} worker processes cannot be started ({error.strerror or error}): "
                f"--env.workers {len(made) // 2}"
            ) from error
        self.sign.doing = CONSTRUCTOR
        try:
            self._wait(ConfigError)
        except BaseException as error:
            self._workers.end()
            if isinstance(error, EnvWorkerDied):
                raise EnvWorkerDied(
                    f"a worker process of {spec.env_id} died at its start; --env.workers 0 does without them"
                ) from error
            raise
        finally:
            self.sign.doing = ""

    @property
    def processes(self) -> Sequence[BaseProcess]:
        """The processes that step the environments."""
        return self._workers.started

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
        for i, first in enumerate(range(0, self.num_envs, size)):
            rows = slice(first, first + size)
            self._request(i, ("begin", episodes[rows], None if logs is None else logs[rows]))
        # Replaying a log takes as long as the episode did, hence no time limit here.
        self._wait(RunFailed)
        self._reports = None
        return self._obs

    def send(self, action: NDArray[Any]) -> None:
        """Begin a step in every worker."""
        check_actions(action, self.num_envs, self.spec)
        self._reports = None
        self._arrays.action[...] = action
        try:
            for pipe in self._workers.requests:
                pipe.send_bytes(STEP)
        except _LOST as error:
            raise self._lost() from error
        self._in_flight = True

    def recv(self) -> StepResult:
        """Wait for the step; EnvWorkerDied when a worker is gone. Observations are good until the next `send`."""
        assert self._in_flight, "recv without send"
        self._in_flight = False
        self._wait(RunFailed)
        held = self._arrays
        return StepResult(
            self._obs,
            held.reward.copy(),
            held.terminated.copy(),
            held.truncated.copy(),
            held.ended.copy(),
        )

    def _request(self, worker: int, message: Any) -> None:
        try:
            self._workers.requests[worker].send(message)
        except _LOST as error:
            raise self._lost() from error

    def _wait(self, failure: type[Exception]) -> None:
        """Wait for all workers; raise what one of them tells that has failed."""
        if not self._workers.wait():
            raise self._lost()
        failed = np.flatnonzero(self._arrays.failed)
        if len(failed):
            self._arrays.failed[:] = False
            try:
                texts = [self._workers.requests[i].recv() for i in failed]
            except _LOST as error:
                raise self._lost() from error
            raise failure(texts[0])

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

    def _ask(self) -> list[Any]:
        if self._reports is None:
            for i in range(len(self._workers.requests)):
                self._request(i, ("report",))
            try:
                self._reports = [pipe.recv() for pipe in self._workers.requests]
            except _LOST as error:
                raise self._lost() from error
        return self._reports

    def _lost(self) -> EnvWorkerDied:
        for process in self._workers.started:
            process.join(timeout=0.2)  # a process killed a moment ago may not have its code yet
        gone = [
            f"worker {i} (pid {process.pid}, exit code {process.exitcode})"
            for i, process in enumerate(self._workers.started)
            if not process.is_alive()
        ]
        what = f"{', '.join(gone)} died" if gone else "a worker closed its connection"
        return EnvWorkerDied(f"environment workers of {self.spec.env_id}: {what}")

    def close(self) -> None:
        """End the worker processes."""
        self._workers.end()
