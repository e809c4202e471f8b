"""Environments stepped by worker processes, as a `VecEnv`: slow Python ones, and simulators that are made faster side by side.

Each worker holds an equal share of them (`worker.py`).
"""

from __future__ import annotations

import atexit
import itertools
import math
import multiprocessing
import os
import select
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from gossamer.envs.episodes import Episodes, with_mask
from gossamer.envs.gym import check_logs, gym_spec, refuse_of_others
from gossamer.envs.making import close_env, make_gym_env
from gossamer.envs.spaces import check_actions
from gossamer.envs.worker import (
    STEP,
    TOLD_BYTES,
    Share,
    SharedArrays,
    SharedSign,
    Simulated,
    serve,
)
from gossamer.errors import ConfigError, RunFailed
from gossamer.links.stopping import Stopped
from gossamer.machine import in_thread
from gossamer.system.ignored_signals import STOP_SIGNALS
from gossamer.system.importing import refuse_unguarded_main
from gossamer.system.signs_of_life import CONSTRUCTOR, Sign
from gossamer.types import StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess

    from numpy.typing import NDArray

    from gossamer.envs.seeding import Part, SeedStream
    from gossamer.envs.settings import EnvConfig
    from gossamer.envs.worker import Stepped
    from gossamer.spec import EnvSpec, Obs
    from gossamer.types import VecEnv

_LOST = (EOFError, OSError)
CLOSING_SECONDS = 5.0
"""Longest time that worker processes have to close their environments."""
MAKING_SECONDS = 15.0
"""The same where one of them may still be made, as far as it has come."""
LOOK_MILLISECONDS = 200
"""Longest time between two looks at whether environments are still wanted."""


class EnvWorkerDied(RunFailed):
    """A worker process is gone; the states of its environments are lost."""


class Crew:
    """Worker processes, each of which has a share of every group of environments, so that none waits while a group acts.

    Args:
        groups: of environments.
        arrays: memory that each group shares with them.

    Raises:
        OSError: a process cannot be started; none is left.
    """

    def __init__(self, groups: Sequence[Group], arrays: Sequence[SharedArrays]):
        # spawn: forking a process that has threads can leave a child with locks held for ever
        context = multiprocessing.get_context("spawn")
        self.processes: list[BaseProcess] = []
        self.requests: list[list[Any]] = [[] for _ in groups]
        """Of each group, a pipe to each worker."""
        told = [context.Pipe(duplex=False) for _ in groups]
        self.done = [heard for heard, _ in told]
        """Of each group, where workers say that they are done."""
        self._left = len(groups)
        self._ending = threading.Lock()
        self._ended = False
        # At its exit multiprocessing asks processes to end, which these leave to us, and waits for them.
        atexit.register(self.end)
        try:
            for i in range(len(groups[0].made)):
                pipes = [context.Pipe() for _ in groups]
                for requests, (ours, _) in zip(self.requests, pipes, strict=True):
                    requests.append(ours)
                shares = [
                    group.share(i, held, theirs, tell)
                    for group, held, (_, theirs), (_, tell) in zip(
                        groups, arrays, pipes, told, strict=True
                    )
                ]
                process = context.Process(
                    target=serve, args=(shares,), name=f"env worker {i}", daemon=True
                )
                process.start()
                self.processes.append(process)
                for _, theirs in pipes:
                    theirs.close()
        except BaseException:
            self.end()
            raise
        finally:
            for _, tell in told:
                tell.close()

    def leave(self) -> None:
        """Take a group away; the processes end with the last one."""
        self._left -= 1
        if self._left <= 0:
            self.close()

    def close(self, seconds: float = CLOSING_SECONDS) -> None:
        """Let the processes close their environments, and end them."""
        try:
            # Those that still make environments look into the pipe of the group that they are at.
            for pipe in itertools.chain(*self.requests):
                with suppress(*_LOST):
                    pipe.send(("close",))
            patient_until = time.monotonic() + seconds
            for process in self.processes:
                process.join(max(patient_until - time.monotonic(), 0.0))
        finally:
            self.end()

    def end(self) -> None:
        """End the processes, whatever they are at.

        A thread whose environment hung may come here while this process ends: a descriptor that both close may be
        another file's by then.
        """
        atexit.unregister(self.end)
        with self._ending:
            if self._ended:
                return
            for process in self.processes:
                process.kill()  # they do nothing where they are asked to end
            for process in self.processes:
                process.join()
            self._ended = True
            for pipe in (*itertools.chain(*self.requests), *self.done):
                pipe.close()


@dataclass(frozen=True)
class Group:
    """Environments that are stepped together, and what makes each worker's share of them."""

    spec: EnvSpec
    part: Part
    whose: str
    """In words, of whom the signs of life are."""
    made: Sequence[Callable[[Sign], Stepped]]
    """Of each worker, given its sign of life."""
    tells: bool = True
    """Whether environments may tell something about their episodes."""

    def share(self, worker: int, arrays: SharedArrays, requests: Any, done: Any) -> Share:
        """Return a worker's share; `requests` and `done` are its ends of pipes."""
        size = self.part.num_envs // len(self.made)
        return Share(
            made=cloudpickle.dumps(self.made[worker]),  # it may be of a script
            env_id=self.spec.env_id,
            first=worker * size,
            num_envs=size,
            whose=self.whose,
            index=worker,
            arrays=arrays,
            requests=requests,
            done=done,
        )


def start_workers(groups: Sequence[Group]) -> list[WorkerEnvs]:
    """Start processes that step groups of environments; return the groups once all environments are made."""
    spec, num_workers = groups[0].spec, len(groups[0].made)
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            f"{num_workers} worker processes cannot be started from a daemonic process, as those of multiprocessing.Pool are: "
            "train in one of concurrent.futures.ProcessPoolExecutor, or use --env.workers 0"
        )
    try:
        arrays = [SharedArrays(group.spec, group.part.num_envs, num_workers) for group in groups]
    except OSError as error:
        raise ConfigError(
            f"there is no room for what worker processes share ({error.strerror or error}): make some in /dev/shm or "
            "the folder TMPDIR, or use --env.workers 0"
        ) from None

    def begin() -> Crew:
        # A process begins with the signals blocked that the thread has blocked which starts it; the first start of
        # multiprocessing's tracker would allow them again. The supervisor decides when workers end.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        return Crew(groups, arrays)

    made = [WorkerEnvs(group, held) for group, held in zip(groups, arrays, strict=True)]
    for envs in made:
        envs.sign.doing = CONSTRUCTOR
    try:
        crew = in_thread(begin, "begin workers").result()
    except OSError as error:
        raise ConfigError(
            f"{num_workers} worker processes cannot be started ({error.strerror or error}): "
            f"--env.workers {num_workers // 2}"
        ) from error
    try:
        for i, envs in enumerate(made):
            envs.join(crew, i)
    except BaseException as error:
        crew.close(MAKING_SECONDS)
        if isinstance(error, EnvWorkerDied):
            raise EnvWorkerDied(
                f"a worker process of {spec.env_id} died at its start; --env.workers 0 does without them"
            ) from error
        raise
    return made


def gym_workers(
    env_id: str,
    parts: Sequence[Part],
    seeds: Sequence[SeedStream],
    *,
    num_workers: int,
    settings: EnvConfig,
    max_episode_steps: int,
) -> list[WorkerEnvs]:
    """Share out groups of Gymnasium environments among worker processes."""
    refuse_unguarded_main(
        f"--env.workers {num_workers}",
        "leave env.workers out, which steps environments in this process",
    )
    sizes = [share_size(part.num_envs, num_workers) for part in parts]
    make_env = partial(make_gym_env, env_id, max_episode_steps)
    settings = refuse_of_others(env_id, settings)
    env = make_env()  # mistakes in the id show here, in words, before any process starts
    try:
        own, _ = with_mask(env_id, env, settings)
        spec = gym_spec(env_id, env, own)
    finally:
        close_env(env_id, env)
    groups: list[Group] = []
    for part, own_seeds, size in zip(parts, seeds, sizes, strict=True):
        made = [
            partial(
                _episodes,
                env_id,
                make_env,
                num_envs=size,
                seeds=own_seeds.part(i * size),
                tasks=part.tasks,
                settings=own,
            )
            for i in range(num_workers)
        ]
        groups.append(Group(spec, part, own_seeds.whose, made))
    return start_workers(groups)


def _episodes(env_id: str, make_env: Callable[[], Any], sign: Sign, **settings: Any) -> Episodes:
    return Episodes(env_id, make_env, sign=sign, **settings)


def simulator_workers(
    make: Callable[..., VecEnv],
    parts: Sequence[Part],
    seeds: Sequence[SeedStream],
    *,
    num_workers: int,
    num_threads: int,
) -> list[WorkerEnvs]:
    """Share out groups of a simulator's environments among worker processes.

    Making them holds the interpreter's lock, so that many are made sooner in several processes.

    Args:
        make: returns some of them, for arguments num_envs, num_threads and seeds; a function that can be pickled.
        parts: what differs between groups, whose numbers of environments are multiples of P.
        seeds: of each group.
        num_workers: P.
        num_threads: that step a group, of all workers together.
    """
    refuse_unguarded_main(
        f"--env.workers {num_workers}",
        "leave env.workers out, which steps environments in this process",
    )
    sizes = [share_size(part.num_envs, num_workers) for part in parts]
    one = make(num_envs=1, num_threads=1, seeds=seeds[0])
    one.close()
    threads = math.ceil(num_threads / num_workers)
    groups: list[Group] = []
    for part, own_seeds, size in zip(parts, seeds, sizes, strict=True):
        made = [
            partial(
                Simulated,
                partial(make, num_envs=size, num_threads=threads, seeds=own_seeds.part(i * size)),
            )
            for i in range(num_workers)
        ]
        groups.append(Group(one.spec, part, own_seeds.whose, made, tells=False))
    return start_workers(groups)


def share_size(num_envs: int, num_workers: int) -> int:
    """Return how many environments a worker has; refuse parts of environments."""
    if num_workers < 1 or num_envs % num_workers:
        raise ConfigError(
            f"--env.workers is {num_workers}; allowed is 0, or a divisor of the {num_envs} "
            f"environments stepped together"
        )
    return num_envs // num_workers


class WorkerEnvs:
    """N environments shared out among worker processes, as a `VecEnv`; usable once it has joined a crew.

    Args:
        group: the environments.
        arrays: memory shared with the workers.
    """

    def __init__(self, group: Group, arrays: SharedArrays):
        self.spec, self._part, self._arrays = group.spec, group.part, arrays
        self.num_envs = group.part.num_envs
        workers = range(len(group.made))
        self._share_size = self.num_envs // len(workers)
        signs = [SharedSign(group.whose, arrays, i) for i in workers]
        self.sign = Sign(group.whose, signs)
        self._obs = self.spec.obs_of(arrays.obs)
        self.pages = arrays.pages
        size = self._share_size
        self.parts = [slice(i * size, (i + 1) * size) for i in workers]
        self.paced = not group.tells and not self.spec.family
        self._crew: Crew | None = None
        self._asked: set[int] = set()  # workers that have not done yet what they were asked for
        self._tells = group.tells  # until the workers know better

    def join(self, crew: Crew, index: int) -> None:
        """Wait until a crew has made the environments, as its group `index`."""
        self._crew = crew
        self._processes = crew.processes
        self._requests, self._done = crew.requests[index], crew.done[index].fileno()
        self._poll = select.poll()
        self.descriptors = [self._done, *(process.sentinel for process in crew.processes)]
        for number in self.descriptors:
            self._poll.register(number, select.POLLIN)
        self._asked = set(range(len(self._requests)))
        try:
            self._wait(ConfigError, self.sign.unwanted)
        finally:
            self.sign.doing = ""

    @property
    def processes(self) -> Sequence[BaseProcess]:
        """The processes that step the environments."""
        return self._processes

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
        while self._asked:  # a step that nobody received is not the answer to this
            self._look(None)
        with suppress(RunFailed):  # nor is its failure
            self._refuse_failed(RunFailed)
        for i, rows in enumerate(self.parts):
            self._asked.add(i)
            self._request(i, ("begin", episodes[rows], None if logs is None else logs[rows]))
        # Replaying a log takes as long as the episode did, hence no time limit here.
        self._wait(RunFailed, self.sign.unwanted)
        return self._obs

    def send(self, action: NDArray[Any]) -> None:
        """Begin a step in every worker."""
        self.send_parts(range(len(self._requests)), action)

    def send_parts(self, workers: Sequence[int], action: NDArray[Any]) -> None:
        """Begin a step in some workers, with their rows of actions [N, *action_shape]."""
        check_actions(action, self.num_envs, self.spec)
        try:
            for i in workers:
                rows = self.parts[i]
                self._arrays.action[rows] = action[rows]
                self._asked.add(i)
                self._requests[i].send_bytes(STEP)
        except _LOST as error:
            raise self._lost() from error

    def recv(self) -> StepResult:
        """Wait for all steps; EnvWorkerDied when a worker is gone. Observations are good until the next `send`."""
        assert self._asked, "recv without send"
        self._wait(RunFailed)
        held = self._arrays
        return StepResult(
            self._obs,
            held.reward.copy(),
            held.terminated.copy(),
            held.truncated.copy(),
            held.ended.copy(),
        )

    @property
    def results(self) -> StepResult:
        """Newest results, where workers write them: rows of workers that have not been asked since they arrived are good."""
        held = self._arrays
        return StepResult(self._obs, held.reward, held.terminated, held.truncated, held.ended)

    @property
    def in_flight(self) -> bool:
        """Whether a worker has not done yet what it was asked for."""
        return bool(self._asked)

    def arrived(self) -> list[int]:
        """Return the workers that have done their steps since the last call, without waiting for any.

        Raises:
            EnvWorkerDied: a worker is gone.
            RunFailed: what one of them was asked for has failed.
        """
        found = self._look(0)
        self._refuse_failed(RunFailed)
        return found

    def _request(self, worker: int, message: Any) -> None:
        try:
            self._requests[worker].send(message)
        except _LOST as error:
            raise self._lost() from error

    def _wait(self, failure: type[Exception], unwanted: Callable[[], bool] = lambda: False) -> None:
        """Wait for all workers that were asked; raise what one of them tells that has failed, or Stopped if `unwanted`."""
        while self._asked:
            self._look(LOOK_MILLISECONDS)
            if unwanted():
                raise Stopped
        self._refuse_failed(failure)

    def _look(self, milliseconds: int | None) -> list[int]:
        """Return the workers that are done by now, or are the next ones to be; None: wait for these."""
        found: list[int] = []
        for number, _ in self._poll.poll(milliseconds):
            if number != self._done:
                raise self._lost()
            told = os.read(self._done, TOLD_BYTES * len(self._asked))
            found = np.frombuffer(told, "<u2").tolist()
        self._asked.difference_update(found)
        return found

    def _refuse_failed(self, failure: type[Exception]) -> None:
        failed = np.flatnonzero(self._arrays.failed)
        if len(failed):
            self._arrays.failed[failed] = False
            try:
                texts = [self._requests[i].recv() for i in failed]
            except _LOST as error:
                raise self._lost() from error
            raise failure(texts[0])

    def tasks(self) -> NDArray[np.int64]:
        """Return the number of the task that each environment plays."""
        if not self.spec.family:
            return np.zeros(self.num_envs, np.int64)
        if not self._part.tasks.stride:
            first = self._part.first_env
            return np.array([self._part.tasks.number(first + i, 0) for i in range(self.num_envs)])
        return np.concatenate(self._ask(range(len(self._requests)), "task"))

    def episode_info(self, env: int) -> dict[str, float]:
        """Return what an environment tells of its present episode."""
        if not self._tells:
            return {}
        worker, i = divmod(env, self._share_size)
        (told,) = self._ask([worker], "info", i)
        if isinstance(told, str):
            raise RunFailed(told)
        self._tells = told is not None
        return told or {}

    def _ask(self, workers: Sequence[int], *what: Any) -> list[Any]:
        for i in workers:
            self._request(i, what)
        try:
            return [self._requests[i].recv() for i in workers]
        except _LOST as error:
            raise self._lost() from error

    def _lost(self) -> EnvWorkerDied:
        for process in self._processes:
            process.join(timeout=0.2)  # a process killed a moment ago may not have its code yet
        gone = [
            f"worker {i} (pid {process.pid}, exit code {process.exitcode})"
            for i, process in enumerate(self._processes)
            if not process.is_alive()
        ]
        what = f"{', '.join(gone)} died" if gone else "a worker closed its connection"
        return EnvWorkerDied(f"environment workers of {self.spec.env_id}: {what}")

    def close(self) -> None:
        """End the worker processes, if no other group needs them."""
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.leave()
