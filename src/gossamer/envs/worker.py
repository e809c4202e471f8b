"""A worker process: it steps its share of each group of environments, for a parent that shares memory with it.

Actions, observations, rewards and ends lie in memory that both see; messages only say that something is to be done, or
is done.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import multiprocessing
import os
import pickle
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gossamer.errors import ConfigError, RunFailed
from gossamer.spec import leaf_field, leaves_of
from gossamer.system.ignored_signals import ignore_stops
from gossamer.system.importing import RAISED, failed, readable
from gossamer.system.signs_of_life import CLOSE, CONSTRUCTOR, Sign

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    from gossamer.spec import EnvSpec, Obs
    from gossamer.types import StepResult, VecEnv

LOOK_SECONDS = 0.5
"""Pause between two looks at whether the parent lives."""
STEP = b"s"
"""Asks for a step; every other message is a pickled request."""
TOLD_BYTES = 2
"""Bytes of a worker's index, which it writes when a request is done or has failed. A write this short is never split."""
_DOINGS = ("", CONSTRUCTOR, "reset", "step", CLOSE)
_WORDS = 3
"""Words of a worker's sign in shared memory: its beats, which environment is at something, and at what."""
_ALIGNMENT = 64


class SharedArrays:
    """What a parent and its workers share: actions, what steps return, and signs of life.

    Args:
        spec: of the environments.
        num_envs: N.
        num_workers: P.
        memory: of an object with the same numbers, in another process; None: it is made.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, num_workers: int, memory: Any = None):
        self._made_of = (spec, num_envs, num_workers)
        action, n = spec.action, num_envs
        fields: dict[str, tuple[tuple[int, ...], str]] = {
            "action": ((n, *action.shape), action.dtype),
            "reward": ((n,), "float64"),
            "terminated": ((n,), "bool"),
            "truncated": ((n,), "bool"),
            "ended": ((n,), "bool"),
            "signs": ((num_workers, _WORDS), "int64"),
            "failed": ((num_workers,), "bool"),
            **{leaf_field("obs", x.name): ((n, *x.shape), x.dtype) for x in spec.leaves},
        }
        places: dict[str, int] = {}
        nbytes = 0
        for name, (shape, dtype) in fields.items():
            places[name] = nbytes
            size = math.prod(shape) * np.dtype(dtype).itemsize
            nbytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        page = mmap.PAGESIZE
        nbytes = -(-nbytes // page) * page
        self._memory: Any = memory
        if memory is None:
            self._memory = multiprocessing.get_context("spawn").RawArray("b", nbytes + page)
        whole = np.frombuffer(self._memory, np.uint8)
        # Processes map it at other addresses, but at the same place of a page.
        first = -whole.ctypes.data % page
        self.pages = whole[first : first + nbytes]
        """Whole pages that hold everything else, and nothing of other objects."""
        held: dict[str, NDArray[Any]] = {
            name: np.ndarray(shape, dtype, buffer=self.pages.data, offset=places[name])
            for name, (shape, dtype) in fields.items()
        }
        self.action = held["action"]
        """[N, *action_shape] for the next step."""
        self.reward, self.ended = held["reward"], held["ended"]
        self.terminated, self.truncated = held["terminated"], held["truncated"]
        """[N] of the last step, as `StepResult` has them."""
        self.obs = {x.name: held[leaf_field("obs", x.name)] for x in spec.leaves}
        """[N, *shape] last observations of each leaf."""
        self.failed = held["failed"]
        """[P] whether what a worker was asked for last has failed; its message says why."""
        self.signs = held["signs"]
        """[P, 3] the workers' signs of life."""

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedArrays, (*self._made_of, self._memory)


def _word(index: int) -> Any:
    """Return an attribute that is a word of a worker's."""

    def get(sign: SharedSign) -> int:
        return int(sign.words_held[index])

    def put(sign: SharedSign, value: int) -> None:
        sign.words_held[index] = value

    return property(get, put)


class SharedSign(Sign):
    """A worker's sign, which its parent looks at: attributes are words of shared memory."""

    def __init__(self, whose: str, arrays: SharedArrays, worker: int):
        self.words_held = memoryview(arrays.signs[worker])
        super().__init__(whose)

    beats = _word(0)
    env = _word(1)

    @property
    def doing(self) -> str:
        return _DOINGS[self.words_held[2]]

    @doing.setter
    def doing(self, what: str) -> None:
        self.words_held[2] = _DOINGS.index(what)


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


class Simulated(Stepped):
    """A share of a simulator's environments, which its threads step."""

    def __init__(self, make: Callable[[], VecEnv], sign: Sign):
        sign.doing = CONSTRUCTOR
        try:
            self._envs: Any = make()
        finally:
            sign.doing = ""
        self._envs.sign = sign

    @property
    def tells(self) -> bool:
        return False

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


@dataclass(frozen=True)
class Share:
    """One worker's share of a group of environments, and how it is reached."""

    made: bytes
    """Pickled function that makes them, given their sign of life."""
    env_id: str
    first: int
    """Index of its first environment."""
    num_envs: int
    whose: str
    """In words, of whom the signs of life are."""
    index: int
    """Index of the worker."""
    arrays: SharedArrays
    requests: Connection
    done: Connection


def die_with_parent() -> None:
    """End this process soon after its parent has died, also in the middle of a step.

    The kernel's own signal for that (PR_SET_PDEATHSIG) comes when the parent's *thread* ends, and
    environments are made by one that does. The pipe that multiprocessing has from parent to child, in which nothing is
    sent any more, ends with the parent: the kernel can tell that by a signal too.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox's kernel has no such signals
            fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
            flags = fcntl.fcntl(parent.sentinel, fcntl.F_GETFL)
            fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)

    # Where a process that the parent has forked keeps the pipe open, or the parent was gone before.
    def watch() -> None:
        while os.getppid() == parent.pid:
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def serve(shares: Sequence[Share]) -> None:
    """Do what the parent asks for, group by group, until it ends this process or dies."""
    ignore_stops()
    die_with_parent()
    poll = select.poll()
    held: dict[int, tuple[Share, Stepped | None]] = {}
    with suppress(EOFError, OSError):  # of a parent that is gone
        for share in shares:
            held[share.requests.fileno()] = share, _make(share)
            poll.register(share.requests.fileno(), select.POLLIN)
        while True:
            for number, _ in poll.poll():
                if not _answer(*held[number]):
                    for _, envs in held.values():
                        with suppress(*RAISED):  # the others are closed all the same
                            if envs is not None:
                                envs.close()
                    return


def _make(share: Share) -> Stepped | None:
    """Make a share's environments; None, once the parent has been told, where they cannot be made."""
    make: Callable[[Sign], Stepped] = pickle.loads(share.made)  # noqa: S301 - of the parent
    envs, failure = None, ""
    try:
        sign = SharedSign(share.whose, share.arrays, share.index)
        sign.unwanted = share.requests.poll  # nothing but the end is asked for before they are made
        envs = make(sign)
    except RAISED as error:
        failure = _why_not_made(share.env_id, error)
    _tell(share, failure)
    return envs


def _answer(share: Share, envs: Stepped | None) -> bool:
    """Do the next thing that is asked for; return False if this is to be the end."""
    message = share.requests.recv_bytes()
    name, *given = (STEP,) if message == STEP else pickle.loads(message)  # noqa: S301 - of the parent
    if name == "close":
        return False
    assert envs is not None
    if name in ("task", "info"):
        share.requests.send(envs.task if name == "task" else _told(envs, *given))
        return True
    arrays, failure = share.arrays, ""
    rows = slice(share.first, share.first + share.num_envs)
    try:
        if name == STEP:
            result = envs.step(arrays.action[rows].copy())
            arrays.reward[rows], arrays.ended[rows] = result.reward, result.ended
            arrays.terminated[rows], arrays.truncated[rows] = result.terminated, result.truncated
            obs = result.obs
        else:
            obs = envs.begin(*given)
        for leaf, x in leaves_of(obs).items():
            np.copyto(arrays.obs[leaf][rows], x)
    except RunFailed as error:
        failure = str(error)
    _tell(share, failure)
    return True


def _tell(share: Share, failure: str = "") -> None:
    """Say that what was asked for is done, or why it is not."""
    share.arrays.failed[share.index] = bool(failure)
    os.write(share.done.fileno(), share.index.to_bytes(TOLD_BYTES, "little"))
    if failure:
        share.requests.send(failure)


def _told(envs: Stepped, i: int) -> dict[str, float] | str | None:
    """Return what environment i tells of its episode, None where none ever tells anything, or the text of a failure."""
    try:
        return envs.info(i) if envs.tells else None
    except RunFailed as error:
        return str(error)


def _why_not_made(env_id: str, error: BaseException) -> str:
    """Say in one line why a worker's environments cannot be made."""
    text = " ".join(str(error).split())
    if "daemonic processes are not allowed to have children" in text:
        return f"{env_id} starts processes of its own, which an environment in a worker process cannot: --env.workers 0"
    told = text if isinstance(error, (ConfigError, RunFailed)) else failed(env_id, "fails", error)
    return readable(f"in a worker process {told}; --env.workers 0 does without them")
