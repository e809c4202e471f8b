"""What a batch is made of: columns of the queue, and shares of them from replays beside it.

Storage (`ring`), choice (`selectors`) and what is overwritten (`store`) are parts of a replay; this is the
mix, which fills the next batches while one is learnt.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gossamer.links import Stopped
from gossamer.machine import use_threads
from gossamer.types import ConfigError, RunFailed, Trajectory, online_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from gossamer.links import StopSignal, TrajectoryQueue
    from gossamer.replay.recent import RecentPolicy
    from gossamer.replay.store import Replay
    from gossamer.types import Batch

T = TypeVar("T")


LOOK_SECONDS = 0.5
"""Between two looks at whether the run is to stop."""
Picked = dict[str, float]
"""Metrics of what was picked for a batch."""


class Share(NamedTuple):
    """A replay and how many columns of each batch are its."""

    replay: Replay
    num_columns: int


class ReplayMix:
    """Batches of online trajectories and, once there is enough of them, of replayed columns beside those.

    What replays do happens in one order, whoever does it: batch k + `prefetch` is picked after trajectory k
    has been stored. So a run is the same with a thread of its own for it as without, and from seed to seed.

    Args:
        queue: of online trajectories.
        shares: replays, and how many columns of a batch are theirs.
        buffers: batches of all columns, one more than may be ready ahead; none without shares.
        policy: for replays that measure features; None: no replay does.
        burn_in: rows at the start of replayed columns that only warm up their recurrent state.
        saved: what replays hold is part of the state.
        threaded: pick and store on a thread beside the learner.
        stop: ends every wait.
        timeout_seconds: longest wait for that thread.
    """

    def __init__(
        self,
        queue: TrajectoryQueue,
        shares: Sequence[Share] = (),
        buffers: Sequence[Batch] = (),
        *,
        policy: RecentPolicy | None = None,
        burn_in: int = 0,
        saved: bool = True,
        threaded: bool = False,
        stop: StopSignal | None = None,
        timeout_seconds: float = 300.0,
    ):
        self._queue = queue
        self._shares = tuple(shares)
        self._policy, self._saved, self._burn_in = policy, saved, burn_in
        self._timeout_seconds, self._stop = timeout_seconds, stop
        # Storing and picking, wherever that is; the learner's time on what is beside its queue.
        self.seconds = {"work": 0.0, "wait": 0.0}
        # Since the last metrics: columns online and replayed, batches that had some, their ages.
        self._counts = [0, 0, 0, 0.0]
        self._picked: Picked = {}
        self._free = deque(buffers)
        self._coming: deque[tuple[Batch, Future[Picked | None]]] = deque()
        self._stored: deque[Future[None]] = deque()
        self._batch: Batch | None = None
        self._held: Trajectory | None = None
        self._pool: ThreadPoolExecutor | None = None
        if threaded and self._shares:
            self._pool = ThreadPoolExecutor(1, "replay", use_threads, (1,))

    @property
    def replays(self) -> bool:
        """Whether batches may hold replayed columns."""
        return bool(self._shares)

    def sample(self) -> Batch:
        """Wait for the next batch; it is the learner's until `release`."""
        assert self._held is None, "release the previous batch first"
        assert self._batch is None, "release the previous batch first"
        online = self._queue.get()
        if not self._shares:
            self._held = online
            return online_batch(online)
        began = time.perf_counter()
        if not self._coming:
            self._pick_next(self._version())
        self._batch, coming = self._coming.popleft()
        picked = self._wait(coming)
        whole = picked is not None
        self._picked = picked or self._picked
        self._count(self._batch, online, whole=whole)
        columns = self._batch.columns(0, online.num_columns)
        for field in fields(Trajectory):
            getattr(columns, field.name).copy_(getattr(online, field.name))
        columns.replayed.fill_(False)
        columns.entry.fill_(-1)
        if columns.burn_in is not None:
            columns.burn_in.fill_(0)
        while self._stored and self._stored[0].done():
            self._stored.popleft().result()  # an error there is one here
        version = self._version()
        self._stored.append(self._do(self._store, online, version))
        while self._free:
            self._pick_next(version)
        self.seconds["wait"] += time.perf_counter() - began
        return self._batch if whole else replace(columns, burn_in=None)

    def release(self) -> None:
        """Give back what the batch was held in."""
        if self._held is not None:
            self._queue.release(self._held)
            self._held = None
        if self._batch is not None:
            self._free.append(self._batch)
            self._batch = None

    def state_dict(self) -> dict[str, Any]:
        """Return what replays hold, and the batches that are ready, so that nothing is picked anew."""
        state: dict[str, Any] = {}
        if not self._saved:
            return state
        for i, (batch, coming) in enumerate(self._coming):
            state[f"coming.{i}.whole"] = self._wait(coming) is not None
            for name, x in self._replayed_part(batch):
                state[f"coming.{i}.{name}"] = x
        for stored in self._stored:
            self._wait(stored)
        for i, (replay, _) in enumerate(self._shares):
            state |= {f"{i}.{name}": x for name, x in replay.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; without what replays held, they begin anew."""
        if not state:
            return
        for i, (replay, _) in enumerate(self._shares):
            held = _part(state, f"{i}.")
            self._refuse(fits=replay.fits(held), what=f"replay {i + 1} has")
            replay.load_state_dict(held)
        while held := _part(state, f"coming.{len(self._coming)}."):
            self._refuse(fits=bool(self._free), what="--prefetch-batches")
            batch = self._free.popleft()
            for name, x in self._replayed_part(batch):
                self._refuse(fits=x.shape == held[name].shape, what="the fractions")
                x.copy_(held[name])
            whole: Future[Picked | None] = Future()
            whole.set_result({} if held["whole"] else None)
            self._coming.append((batch, whole))

    @staticmethod
    def _refuse(*, fits: bool, what: str) -> None:
        if not fits:
            raise ConfigError(
                f"it holds what was kept under other settings than {what} now; resume with those of then, or "
                "start a new run from its policy: --init-from RUN"
            )

    def _replayed_part(self, batch: Batch) -> list[tuple[str, Tensor]]:
        num = sum(n for _, n in self._shares)
        part = batch.columns(batch.num_columns - num, batch.num_columns)
        held = [(field.name, getattr(part, field.name)) for field in fields(part)]
        return [(name, x) for name, x in held if x is not None]

    def close(self) -> None:
        """End the thread; raise what went wrong there last."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for stored in self._stored:
            if not stored.cancelled():
                stored.result()
        self._stored.clear()

    def _version(self) -> int:
        return -1 if self._policy is None else self._policy.take()

    def _features(self, version: int) -> Callable[[Trajectory], Tensor]:
        if self._policy is None:
            return _no_features
        self._policy.use(version)
        return self._policy.features

    def _pick_next(self, version: int) -> None:
        batch = self._free.popleft()
        self._coming.append((batch, self._do(self._pick, batch, version)))

    def _pick(self, batch: Batch, version: int) -> Picked | None:
        """Fill all replayed columns of a batch and return metrics, if every replay has enough; else None."""
        if not all(replay.ready(n) for replay, n in self._shares):
            return None
        features = self._features(version)
        last = batch.num_columns
        for replay, n in reversed(self._shares):
            columns = batch.columns(last - n, last)
            replay.sample(columns, features)
            if self._burn_in:
                assert columns.burn_in is not None
                columns.burn_in.fill_(self._burn_in)
                columns.valid[: self._burn_in] = False
            last -= n
        found: Picked = {}
        for replay, _ in self._shares:
            for name, x in replay.take_metrics().items():
                # Of two replays of a kind: all their columns, the distances of the last.
                found[name] = x + (found.get(name, 0.0) if name.endswith("_columns") else 0.0)
        return found

    def _store(self, online: Trajectory, version: int) -> None:
        try:
            for replay, _ in self._shares:
                replay.add(online, self._features(version))
        finally:
            self._queue.release(online)

    def _do(self, work: Callable[..., T], *args: Any) -> Future[T]:
        """Do something after all that was asked for before."""
        if self._pool is not None:
            return self._pool.submit(self._timed, work, *args)
        done: Future[T] = Future()
        done.set_result(self._timed(work, *args))
        return done

    def _timed(self, work: Callable[..., T], *args: Any) -> T:
        began = time.perf_counter()
        try:
            return work(*args)
        finally:
            self.seconds["work"] += time.perf_counter() - began

    def _count(self, batch: Batch, online: Trajectory, *, whole: bool) -> None:
        self._counts[0] += online.num_columns
        if whole:
            older = batch.version[online.num_columns :].float().mean()
            self._counts[1] += batch.num_columns - online.num_columns
            self._counts[2] += 1
            self._counts[3] += float(online.version.float().mean() - older)

    def take_metrics(self) -> dict[str, float]:
        """Return what was replayed since the last call."""
        if not self._counts[0]:
            return {}
        (online, replayed, batches, age), self._counts = self._counts, [0, 0, 0, 0.0]
        metrics = {"replay/ratio": replayed / online}
        if batches:
            metrics["replay/age_versions"] = age / batches
        picked, self._picked = self._picked, {}
        return metrics | picked

    def _wait(self, coming: Future[T]) -> T:
        for _ in range(math.ceil(self._timeout_seconds / LOOK_SECONDS)):
            with contextlib.suppress(FutureTimeout):
                return coming.result(LOOK_SECONDS)
            if self._stop is not None and self._stop.stopped:
                raise Stopped
        raise RunFailed(
            f"waited {self._timeout_seconds:.0f} s for the replay to fill a batch; giving up"
        )


def _part(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): x for k, x in state.items() if k.startswith(prefix)}


def _no_features(trajectory: Trajectory) -> Tensor:
    raise AssertionError("no replay measures features")
