"""What a batch is made of: columns of the queue, and shares of them from replays beside it.

Storage (`ring`), choice (`selectors`) and what is overwritten are parts of a replay (`replay`); this is the
mix, which fills the next batches while one is learnt.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from gossamer.links.stopping import LOOK_SECONDS, Stopped
from gossamer.machine import use_threads
from gossamer.replay.replay import Picked, Share, Tally
from gossamer.replay.shards import Form
from gossamer.system import devices
from gossamer.system.devices import SideStream
from gossamer.system.prefixes import without_prefix
from gossamer.system.signs_of_life import PATIENCE_SECONDS, Patience, Sign
from gossamer.types import as_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from gossamer.links.protocols import TrajectoryQueue
    from gossamer.links.stopping import StopSignal
    from gossamer.replay.recent import RecentPolicy
    from gossamer.types import Batch, Trajectory

T = TypeVar("T")
CPU = torch.device("cpu")


class BatchSource:
    """Batches of online trajectories and, once there is enough of them, of replayed columns beside those.

    What replays do happens in one order, whoever does it: batch k + `prefetch` is picked after trajectory k
    has been stored. So a run is the same with a thread of its own for it as without, and two runs with one seed are the same.

    Replays that begin empty in the midst of a run would have their first columns learnt over and over. Until
    the emptiest of them holds again what it held, as great a share of the batches has replayed columns as it
    is full: every column is replayed about as often as it would have been.

    Args:
        queue: of online trajectories.
        shares: replays, and how many columns of a batch are theirs.
        buffers: batches of all columns, one more than may be ready ahead; none without shares.
        policy: for replays that measure features; None: no replay does.
        burn_in: rows at the start of replayed columns that only warm up their recurrent state.
        saved: what replays hold is part of the state.
        threaded: pick and store on a thread beside the learner.
        stop: ends waits for batches that are being made; the queue has its own.
        patience_seconds: longest silence of that thread, as `Patience` takes it.
        device: where the buffers are; on a GPU replays work on a stream of their own, beside learning.
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
        patience_seconds: float = PATIENCE_SECONDS,
        device: torch.device = CPU,
    ):
        self._queue = queue
        self.shares = tuple(shares)
        self.kept_policy = policy
        """Keeps the policies that measured columns; None: nothing is measured."""
        self._saved, self._burn_in = saved, burn_in
        self.sign = Sign("the replay")
        self._patience, self._stop = Patience.with_sign(self.sign, patience_seconds), stop
        # Storing and picking, wherever that is; the learner's time on what is beside its queue.
        self.seconds = {"work": 0.0, "wait": 0.0}
        self._tally = Tally(self.shares)
        self._free = deque(buffers)
        self._device = device
        self._beside = SideStream(device)
        devices.wait(device)  # for what the side stream is going to write over
        self._coming: deque[_Coming] = deque()
        self._stored: deque[Future[None]] = deque()
        self._batch: Batch | None = None
        self._held: Trajectory | None = None
        self._due = 0.0  # batches with replayed columns, while replays fill again
        self._pool: ThreadPoolExecutor | None = None
        if threaded and self.shares:
            self._pool = ThreadPoolExecutor(1, "replay", use_threads, (1,))

    @property
    def replays(self) -> bool:
        """Whether batches may hold replayed columns."""
        return bool(self.shares)

    def sample(self) -> Batch:
        """Wait for the next batch; it is the learner's until `release`."""
        assert self._held is None, "release the previous batch first"
        assert self._batch is None, "release the previous batch first"
        online = self._queue.get()
        if not self.shares:
            self._held = online
            return as_batch(online)
        began = time.perf_counter()
        if not self._coming:
            self._pick_next(self._version())
        coming = self._coming.popleft()
        self._batch = coming.batch
        picked = self._wait(coming.picked)
        self._tally.count(self._batch, online, picked)
        columns = self._batch.columns(0, online.num_columns)
        for name, x, _ in online.each():
            target = columns.tensor(name)
            # As it lies in memory; columns among others are filled on the GPU.
            target.copy_(devices.send(x, target.device))
        columns.replayed.fill_(False)
        columns.entry.fill_(-1)
        while self._stored and self._stored[0].done():
            self._stored.popleft().result()  # an error there is one here
        version, env_steps = self._version(), online.env_steps
        devices.wait(self._device)  # the slot is given back as soon as it is stored
        self._stored.append(self._do(self._store, online, version))
        while self._free:
            self._pick_next(version)
        self.seconds["wait"] += time.perf_counter() - began
        batch = columns if picked is None else self._batch
        burn_in = 0 if picked is None else self._batch.burn_in
        return replace(batch, burn_in=burn_in, env_steps=env_steps)

    def release(self) -> None:
        """Give back what the batch was held in."""
        if self._held is not None:
            self._queue.release(self._held)
            self._held = None
        if self._batch is not None:
            self._free.append(self._batch)
            self._batch = None

    def fill_first(self) -> None:
        """Begin empty with a policy that has learnt something: replay the less, the emptier the replays are."""
        for replay, _ in self.shares:
            replay.fill_first()

    def take_over(self, *, inserted: int, draws: int) -> None:
        """Go on with what a learner that has died has left; arguments as in `Replay.take_over`."""
        for replay, _ in self.shares:
            replay.take_over(inserted=inserted, draws=draws)

    def state_dict(self) -> dict[str, Any]:
        """Return the replays' streams and counters; if saved, what they hold and the batches that are ready."""
        state: dict[str, Any] = {}
        before = None  # the next batch was picked
        for i, coming in enumerate(self._coming):
            whole = self._wait(coming.picked) is not None
            before = before or coming.before
            if self._saved:
                part = self._replayed_part(coming.batch) if whole else ()
                state |= {f"coming.{i}.whole": whole, **{f"coming.{i}.{k}": x for k, x in part}}
                state |= {f"coming.{i}.burn_in": self._burn_in} if whole and self._burn_in else {}
        for stored in self._stored:
            self._wait(stored)
        if self.shares:
            state["nonfinite"] = self._tally.nonfinite
        if self._saved and self.shares:
            state["due"] = self._due  # after all those picks
        for i, (replay, _) in enumerate(self.shares):
            held = replay.state_dict(held=self._saved)
            if before:  # batches that are not kept were never drawn
                held |= before[i]
            state |= {f"{i}.{name}": x for name, x in held.items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; without what replays held, or if it is not to be saved, with empty ones.

        Raises:
            ConfigError: it was kept under other settings.
        """
        if self._saved:
            self._form.refuse(state)
            self._due = state.get("due", 0.0)
        self._tally.nonfinite = state.get("nonfinite", 0)
        for i, (replay, _) in enumerate(self.shares):
            if held := without_prefix(state, f"{i}."):
                replay.load_state_dict(held, held=self._saved)
            else:  # a resumed run may be given another
                replay.fill_first()
        while self._saved and (held := without_prefix(state, f"coming.{len(self._coming)}.")):
            batch = self._free.popleft()
            for name, x in self._replayed_part(batch) if held["whole"] else ():
                x.copy_(held[name])
            picked: Future[list[Picked] | None] = Future()
            picked.set_result([] if held["whole"] else None)
            self._coming.append(_Coming(batch, picked, []))

    @property
    def _form(self) -> Form:
        shards = [replay.shards for replay, _ in self.shares]
        return Form(
            tuple(x.layout for x in shards),
            tuple(x.num_places for x in shards),
            num_columns=sum(n for _, n in self.shares),
            num_batches=len(self._free),
            burn_in=self._burn_in > 0,
        )

    def _replayed_part(self, batch: Batch) -> list[tuple[str, Tensor]]:
        num = sum(n for _, n in self.shares)
        part = batch.columns(batch.num_columns - num, batch.num_columns)
        return [(name, x) for name, x, _ in part.each()]

    def close(self) -> None:
        """End the thread and let go of the replays; raise what went wrong in the thread last."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._beside.close()
        # The learner may be there until the garbage collector comes: the next run of this process needs the memory.
        self.shares, self._tally = (), Tally(())
        stored, self._stored = self._stored, deque()
        for done in stored:
            if not done.cancelled():
                done.result()

    def _version(self) -> int:
        """Keep the policy as it is now, if any replay will run it; return its number."""
        if self.kept_policy is None or not any(replay.measures for replay, _ in self.shares):
            return -1
        return self.kept_policy.take()

    def _features(self, version: int) -> Callable[[Trajectory], Tensor]:
        if self.kept_policy is None:
            return _no_features
        features = partial(self.kept_policy.features, version)

        def counted(trajectory: Trajectory) -> Tensor:
            self.sign.beats += 1
            return features(trajectory)

        return counted

    def _pick_next(self, version: int) -> None:
        batch = self._free.popleft()
        before: list[dict[str, Any]] = []
        self._coming.append(_Coming(batch, self._do(self._pick, batch, version, before), before))

    def _pick(
        self, batch: Batch, version: int, before: list[dict[str, Any]]
    ) -> list[Picked] | None:
        """Fill all replayed columns of a batch and return from what, if every replay has enough; else None."""
        if not self._saved:
            before += [replay.stream() for replay, _ in self.shares]
        among, last = [replay.ready(n) for replay, n in self.shares], batch.num_columns
        if any(places is None for places in among):
            return None
        self._due += min(replay.filling for replay, _ in self.shares)
        if self._due < 1.0:
            return None
        self._due -= 1.0
        for (replay, n), places in zip(reversed(self.shares), reversed(among), strict=True):
            columns = batch.columns(last - n, last)
            assert places is not None
            if not replay.sample(columns, places, self._features(version)):
                return None
            if self._burn_in:
                columns.valid[: self._burn_in] = False
            last -= n
        return [replay.count_use() for replay, _ in self.shares]

    def _store(self, online: Trajectory, version: int) -> None:
        try:
            # What is not finite costs an update; replayed it would cost one after the other.
            finite, columns = online.finite(), online
            if not finite.all():
                columns = online.take(finite.nonzero().flatten())
                self._tally.nonfinite += online.num_columns - columns.num_columns
            for replay, _ in self.shares:
                if columns.num_columns:
                    replay.add(columns, self._features(version))
        finally:
            devices.wait(self._device)  # for what a replay there still copies out of the slot
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
        self.sign.beats += 1
        try:
            with self._beside.working():
                return work(*args)
        finally:
            self.seconds["work"] += time.perf_counter() - began

    def take_metrics(self) -> dict[str, float]:
        """Return what was replayed since the last call."""
        return self._tally.take()

    def _wait(self, coming: Future[T]) -> T:
        if not coming.done():
            wait = self._patience.wait("a batch")
            while not futures.wait([coming], LOOK_SECONDS).done:
                if self._stop is not None and self._stop.stopped:
                    raise Stopped
                wait.look()
        return coming.result()


class _Coming(NamedTuple):
    """A batch that is being picked, or is ready."""

    batch: Batch
    picked: Future[list[Picked] | None]
    """None: it has online columns only."""
    before: list[dict[str, Any]]
    """The replays' streams before it was picked; empty: they are as after it, for it is kept with them."""


def _no_features(trajectory: Trajectory) -> Tensor:
    raise AssertionError("no replay measures features")
