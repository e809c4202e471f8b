"""Runs side by side, with fakes for processes: never more than there are slots, resumed when killed, stopped together."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gossamer.errors import RunFailed
from gossamer.sweep import pool as pool_module
from gossamer.sweep.pool import Outcome, Pool
from gossamer.sweep.processes import LocalPlace, Run
from gossamer.system import signals


class FakeHandle:
    """A process that ends after some polls."""

    def __init__(self, place: FakePlace, run: Run, codes: list[int], polls: int):
        self.place, self.run, self.codes, self.left = place, run, codes, polls
        self.stopped = False

    def poll(self) -> int | None:
        self.left -= 1
        if self.left > 0 and not self.stopped:
            return None
        self.place.alive.discard(self.run.name)
        if self.stopped:
            return 0
        code = self.codes.pop(0) if self.codes else 0
        if code == 0:
            self.run.folder.mkdir(parents=True, exist_ok=True)
            reason = {"exit_reason": "done: total_env_steps reached"}
            (self.run.folder / "summary.json").write_text(json.dumps(reason))
        return code

    def stop(self) -> None:
        self.stopped = True

    def kill(self) -> None:
        self.place.killed.append(self.run.name)


class FakePlace:
    """Slots in which nothing is computed."""

    def __init__(self, jobs: int, codes: dict[str, list[int]] | None = None, polls: int = 2):
        self.jobs, self.codes, self.polls = jobs, codes or {}, polls
        self.alive: set[str] = set()
        self.most = 0
        self.started: list[tuple[str, int]] = []
        self.killed: list[str] = []

    def start(self, run: Run, slot: int) -> FakeHandle:
        assert run.name not in self.alive, "trained twice at a time"
        self.alive.add(run.name)
        self.most = max(self.most, len(self.alive))
        self.started.append((run.name, slot))
        return FakeHandle(self, run, self.codes.setdefault(run.name, []), self.polls)

    def adopt(self, run: Run) -> FakeHandle | None:
        return None

    def slot_of(self, run: Run) -> int | None:
        return None

    def close(self) -> None:
        pass


class ListOf:
    """A source of given runs."""

    def __init__(self, folder: Path, count: int):
        self.pending = [Run(f"r{i}", folder / f"r{i}", ()) for i in range(count)]
        self.outcomes: dict[str, Outcome] = {}
        self.unwanted: list[str] = []

    def next(self) -> Run | None:
        return self.pending.pop(0) if self.pending else None

    def ended(self, run: Run, outcome: Outcome) -> None:
        assert run.name not in self.outcomes
        self.outcomes[run.name] = outcome

    def look(self, running: Sequence[Run]) -> Sequence[Run]:
        return [x for x in running if x.name in self.unwanted]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(pool_module, "LOOK_SECONDS", 0.0)


def make_pool(place: FakePlace, lines: list[str] | None = None) -> Pool:
    say = (lines if lines is not None else []).append
    return Pool(place, stop_seconds=1.0, say=say, draw=lambda _: None)


def test_as_many_as_there_are_slots(tmp_path: Path) -> None:
    place, source = FakePlace(3), ListOf(tmp_path, 10)
    assert make_pool(place).run(source)
    assert place.most == 3
    assert {slot for _, slot in place.started} == {0, 1, 2}
    assert len(place.started) == 10
    assert {x.state for x in source.outcomes.values()} == {"done"}


def test_what_was_killed_goes_on_in_its_slot(tmp_path: Path) -> None:
    place, source = FakePlace(2, {"r0": [-9, 137], "r1": [-9] * 10}), ListOf(tmp_path, 3)
    lines: list[str] = []
    assert make_pool(place, lines).run(source)
    assert source.outcomes["r0"].state == "done"
    assert source.outcomes["r1"] == Outcome(
        "failed", "it was killed 4 times, as by a system short of memory"
    )
    assert [x for x, _ in place.started].count("r1") == 4
    assert sum("was killed; it goes on" in x for x in lines) == 5


def test_a_refusal_is_told_in_its_own_words(tmp_path: Path) -> None:
    place, source = FakePlace(1, {"r0": [2]}), ListOf(tmp_path, 1)
    (tmp_path / "r0.txt").write_text("16 envs\ngossamer: no such thing\n")
    assert make_pool(place).run(source)
    assert source.outcomes["r0"] == Outcome("failed", "no such thing")


def test_what_is_unwanted_is_stopped_and_the_others_go_on(tmp_path: Path) -> None:
    place, source = FakePlace(2, polls=20), ListOf(tmp_path, 4)
    source.unwanted = ["r1"]
    assert make_pool(place).run(source)
    assert source.outcomes.pop("r1").state == "stopped"
    assert {x.state for x in source.outcomes.values()} == {"done"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_and_begins_none(number: int, tmp_path: Path) -> None:
    place, source = FakePlace(2, polls=10**9), ListOf(tmp_path, 5)
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
    before = signal.getsignal(number)
    assert not make_pool(place).run(source)
    assert signal.getsignal(number) == before
    assert {x: y.state for x, y in source.outcomes.items()} == {"r0": "stopped", "r1": "stopped"}
    assert len(place.started) == 2
    assert not place.killed


def test_the_second_signal_ends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)
    monkeypatch.setattr(FakeHandle, "stop", lambda _: None)  # a run that does not listen
    place, source = FakePlace(1, polls=10**9), ListOf(tmp_path, 1)
    for delay in (0.1, 0.2):
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert not make_pool(place).run(source)
    assert place.killed == ["r0"]


def test_a_run_that_does_not_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        pool_module, "KILL_SECONDS", -1.0
    )  # with the second of `stop_seconds`: at once
    place, source = FakePlace(1, polls=10**9), ListOf(tmp_path, 1)
    deaf = FakeHandle.kill
    monkeypatch.setattr(FakeHandle, "stop", lambda _: None)

    def kill(handle: FakeHandle) -> None:
        deaf(handle)
        handle.stopped = True

    monkeypatch.setattr(FakeHandle, "kill", kill)
    source.unwanted = ["r0"]
    assert make_pool(place).run(source)
    assert place.killed == ["r0"]
    assert source.outcomes["r0"].state == "stopped"


def test_a_source_that_gives_up_stops_the_others(tmp_path: Path) -> None:
    class GivesUp(ListOf):
        def next(self) -> Run | None:
            if len(self.pending) == 1:
                raise RunFailed("nothing works")
            return super().next()

    place, source = FakePlace(3, polls=10**9), GivesUp(tmp_path, 3)
    with pytest.raises(RunFailed, match="nothing works"):
        make_pool(place).run(source)
    assert {x.state for x in source.outcomes.values()} == {"stopped"}
    assert not place.alive


def test_a_full_disk_stops_the_others_and_is_one_line(tmp_path: Path) -> None:
    class Full(ListOf):
        def next(self) -> Run | None:
            if len(self.pending) == 1:
                raise OSError(28, "No space left on device")
            return super().next()

    place, source = FakePlace(3, polls=10**9), Full(tmp_path, 3)
    with pytest.raises(RunFailed, match=r"cannot write down what was done: .*No space left"):
        make_pool(place).run(source)
    assert {x.state for x in source.outcomes.values()} == {"stopped"}
    assert not place.alive
    assert not place.killed


def test_a_run_that_still_trains_keeps_its_slot(tmp_path: Path) -> None:
    class Begun(FakePlace):
        def adopt(self, run: Run) -> FakeHandle | None:
            return FakeHandle(self, run, [], 50) if run.name in ("r1", "r2") else None

        def slot_of(self, run: Run) -> int | None:
            return {"r1": 2, "r2": 2}[run.name]

    place, source = Begun(3), ListOf(tmp_path, 4)
    pool = make_pool(place)
    adopted = pool.adopt(list(source.pending))
    source.pending = [x for x in source.pending if x not in adopted]
    assert pool.run(source)
    assert place.started[0] == ("r0", 1), "2 is taken, and the other that says so has 0"


@pytest.mark.parametrize("jobs", [1, 2, 3, 5, 9])
def test_slots_share_all_cores(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3, 11)))
    place = LocalPlace(jobs, device="cpu")
    shares = [place.cores(slot) for slot in range(jobs)]
    assert {x for share in shares for x in share} == set(range(3, 11))
    assert min(map(len, shares)) >= 1
    if jobs <= 8:
        assert sum(map(len, shares)) == 8
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_run_is_kept_to_its_cores(tmp_path: Path) -> None:
    """The process begins on them, and this one is where it was."""
    cores = sorted(os.sched_getaffinity(0))
    place = LocalPlace(len(cores), device="cpu")
    run = Run("x", tmp_path / "x", ("--no-such-flag", "1"))
    handle = place.start(run, len(cores) - 1)
    assert place.slot_of(run) == len(cores) - 1
    assert sorted(os.sched_getaffinity(0)) == cores
    give_up = time.monotonic() + 60
    while handle.poll() is None and time.monotonic() < give_up:
        time.sleep(0.02)
    assert handle.poll() == 2
    assert "--no-such-flag is not a setting" in run.last_words()
