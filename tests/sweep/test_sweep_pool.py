"""Runs side by side, with fakes for processes: never more than there are slots, resumed when killed, stopped together."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from waiting import wait_for

from gossamer.config import make_config
from gossamer.errors import RunFailed
from gossamer.record.exits import Exit
from gossamer.sweep import pool as pool_module
from gossamer.sweep.live_table import Board
from gossamer.sweep.local_site import LocalSite
from gossamer.sweep.pool import PlannedRun, Pool, RunQueue, exit_of_run
from gossamer.system import signals


def write_done(folder: Path) -> None:
    ended = {"exit": {"kind": "done", "cause": "total_env_steps"}}
    (folder / "summary.json").write_text(json.dumps(ended))


class FakeRun:
    """A process that ends after some polls."""

    def __init__(self, site: FakeSite, run: PlannedRun, codes: list[int], polls: int):
        self.site, self.run, self.codes, self.left = site, run, codes, polls
        self.stopped = False

    def poll(self) -> int | None:
        self.left -= 1
        if self.left > 0 and not self.stopped:
            return None
        self.site.alive.discard(self.run.name)
        if self.stopped:
            return 0
        code = self.codes.pop(0) if self.codes else 0
        if code == 0:
            self.run.folder.mkdir(parents=True, exist_ok=True)
            write_done(self.run.folder)
        return code

    def stop(self) -> None:
        self.stopped = True

    def kill(self) -> None:
        self.site.killed.append(self.run.name)


@pytest.mark.parametrize(
    ("cause", "adopted", "want"),
    [
        ("SIGINT", True, None),
        ("SIGINT", False, Exit("failed", "it was stopped by SIGINT, from outside")),
        ("request", True, Exit("failed", "it was stopped by request, from outside")),
    ],
)
def test_what_an_earlier_command_has_stopped_goes_on(
    tmp_path: Path, cause: str, adopted: bool, want: Exit | None
) -> None:
    """It was asked to save by a sweep that was killed before it had ended."""
    run = PlannedRun("seed 1", tmp_path, 1)
    told = {"exit": {"kind": "stopped", "cause": cause}}
    (tmp_path / "summary.json").write_text(json.dumps(told))
    assert exit_of_run(run, 0, was_asked=False, adopted=adopted) == want


class FakeSite:
    """Slots in which nothing is computed."""

    def __init__(self, jobs: int, codes: dict[str, list[int]] | None = None, polls: int = 2):
        self.jobs, self.codes, self.polls = jobs, codes or {}, polls
        self.alive: set[str] = set()
        self.most = 0
        self.started: list[tuple[str, int]] = []
        self.killed: list[str] = []

    def start(self, run: PlannedRun, slot: int) -> FakeRun:
        assert run.name not in self.alive, "trained twice at a time"
        self.alive.add(run.name)
        self.most = max(self.most, len(self.alive))
        self.started.append((run.name, slot))
        return FakeRun(self, run, self.codes.setdefault(run.name, []), self.polls)

    def adopt(self, run: PlannedRun) -> tuple[FakeRun, int | None] | None:
        return None

    def close(self) -> None:
        pass


class ListOf(RunQueue):
    """Given runs."""

    def __init__(self, folder: Path, count: int):
        super().__init__([planned(folder, f"r{i}") for i in range(count)])
        self.outcomes: dict[str, Exit] = {}
        self.stopped: list[str] = []

    def ended(self, run: PlannedRun, how: Exit) -> None:
        assert run.name not in self.outcomes
        self.outcomes[run.name] = how

    def unwanted(self, running: Sequence[PlannedRun]) -> Sequence[PlannedRun]:
        return [x for x in running if x.name in self.stopped]


def planned(folder: Path, name: str) -> PlannedRun:
    return PlannedRun(name, folder / name, 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(pool_module, "LOOK_SECONDS", 0.0)


def make_pool(site: FakeSite, said: io.StringIO | None = None) -> Pool:
    board = Board("", head=str, stream=said or io.StringIO())
    return Pool(site, stop_seconds=1.0, board=board)


def test_it_is_shown_how_many_run_and_how_many_are_to_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "LOOK_SECONDS", 0.0)
    seen: list[tuple[int, int, int]] = []

    class Counts(Board):
        def draw(self, running: Sequence[PlannedRun], *, to_begin: int = 0, jobs: int = 1) -> None:
            seen.append((len(running), to_begin, jobs))

    with closing(Counts("", head=str, stream=io.StringIO())) as board:
        assert Pool(FakeSite(2), stop_seconds=1.0, board=board).run(ListOf(tmp_path, 3))
    assert list(dict.fromkeys(seen)) == [(2, 1, 2), (1, 0, 2)]


def test_as_many_as_there_are_slots(tmp_path: Path) -> None:
    site, queue = FakeSite(3), ListOf(tmp_path, 10)
    assert make_pool(site).run(queue)
    assert site.most == 3
    assert {slot for _, slot in site.started} == {0, 1, 2}
    assert len(site.started) == 10
    assert {x.kind for x in queue.outcomes.values()} == {"done"}


def test_what_was_killed_goes_on_in_its_slot(tmp_path: Path) -> None:
    site, queue = FakeSite(2, {"r0": [-9, 137], "r1": [-9] * 10}), ListOf(tmp_path, 3)
    said = io.StringIO()
    assert make_pool(site, said).run(queue)
    assert queue.outcomes["r0"].kind == "done"
    assert queue.outcomes["r1"] == Exit(
        "failed", "it was killed 4 times, as by a system short of memory"
    )
    assert [x for x, _ in site.started].count("r1") == 4
    assert said.getvalue().count("was killed; it goes on") == 5


def test_a_refusal_is_told_in_its_own_words(tmp_path: Path) -> None:
    site, queue = FakeSite(1, {"r0": [2]}), ListOf(tmp_path, 1)
    (tmp_path / "r0.txt").write_text("16 envs\ngossamer: no such thing\n")
    assert make_pool(site).run(queue)
    assert queue.outcomes["r0"] == Exit("failed", "no such thing")


def test_what_is_unwanted_is_stopped_and_the_others_go_on(tmp_path: Path) -> None:
    site, queue = FakeSite(2, polls=20), ListOf(tmp_path, 4)
    queue.stopped = ["r1"]
    assert make_pool(site).run(queue)
    assert queue.outcomes.pop("r1").kind == "stopped"
    assert {x.kind for x in queue.outcomes.values()} == {"done"}


@pytest.mark.parametrize(
    ("code", "want"),
    [
        (0, Exit("stopped", "request")),
        (130, Exit("stopped", "request")),
        (-signal.SIGKILL, Exit("stopped", "request")),
        (1, Exit("failed", "cannot write checkpoint: No space left on device")),
    ],
)
def test_a_run_that_fails_as_it_is_stopped_is_no_run_that_has_saved(
    code: int, want: Exit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has pressed Ctrl-C learns that what was trained since the last checkpoint is lost."""
    polls = FakeRun.poll
    monkeypatch.setattr(FakeRun, "poll", lambda run: code if run.stopped else polls(run))
    (tmp_path / "r0.txt").write_text("gossamer: cannot write checkpoint: No space left on device\n")
    site, queue = FakeSite(1, polls=10**9), ListOf(tmp_path, 1)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert not make_pool(site).run(queue)
    assert queue.outcomes == {"r0": want}


def test_a_run_of_an_earlier_command_that_fails_as_it_is_stopped_has_not_saved(
    tmp_path: Path,
) -> None:
    """Nobody knows its exit code."""
    run = planned(tmp_path, "r0")
    run.folder.mkdir()
    ended = {"exit": {"kind": "failed", "cause": "OSError: No space left on device"}}
    (run.folder / "summary.json").write_text(json.dumps(ended))
    (tmp_path / "r0.txt").write_text("gossamer: No space left on device\n")
    found = exit_of_run(run, 0, was_asked=True, adopted=True)
    assert found == Exit("failed", "No space left on device")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_and_begins_none(number: int, tmp_path: Path) -> None:
    site, queue = FakeSite(2, polls=10**9), ListOf(tmp_path, 5)
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
    before = signal.getsignal(number)
    assert not make_pool(site).run(queue)
    assert signal.getsignal(number) == before
    assert {x: y.kind for x, y in queue.outcomes.items()} == {"r0": "stopped", "r1": "stopped"}
    assert len(site.started) == 2
    assert not site.killed


def test_the_second_signal_ends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)
    monkeypatch.setattr(FakeRun, "stop", lambda _: None)  # a run that does not listen
    site, queue = FakeSite(1, polls=10**9), ListOf(tmp_path, 1)
    for delay in (0.1, 0.2):
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert not make_pool(site).run(queue)
    assert site.killed == ["r0"]


def test_a_run_that_does_not_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With the second of `stop_seconds`: at once.
    monkeypatch.setattr(pool_module, "KILL_SECONDS", -1.0)
    site, queue = FakeSite(1, polls=10**9), ListOf(tmp_path, 1)
    deaf = FakeRun.kill
    monkeypatch.setattr(FakeRun, "stop", lambda _: None)

    def kill(run: FakeRun) -> None:
        deaf(run)
        run.stopped = True

    monkeypatch.setattr(FakeRun, "kill", kill)
    queue.stopped = ["r0"]
    assert make_pool(site).run(queue)
    assert site.killed == ["r0"]
    assert queue.outcomes["r0"].kind == "stopped"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RunFailed("nothing works"), "nothing works"),
        (
            OSError(28, "No space left on device"),
            "cannot write down what was done: .*No space left",
        ),
    ],
)
def test_a_source_that_gives_up_stops_the_others(
    error: Exception, told: str, tmp_path: Path
) -> None:
    class GivesUp(ListOf):
        def next(self) -> PlannedRun | None:
            if len(self.pending) == 1:
                raise error
            return super().next()

    site, queue = FakeSite(3, polls=10**9), GivesUp(tmp_path, 3)
    with pytest.raises(RunFailed, match=told):
        make_pool(site).run(queue)
    assert {x.kind for x in queue.outcomes.values()} == {"stopped"}
    assert not site.alive
    assert not site.killed


def test_a_run_that_still_trains_keeps_its_slot(tmp_path: Path) -> None:
    class Begun(FakeSite):
        def adopt(self, run: PlannedRun) -> tuple[FakeRun, int | None] | None:
            return (FakeRun(self, run, [], 50), 2) if run.name in ("r1", "r2") else None

    site, queue, said = Begun(3), ListOf(tmp_path, 4), io.StringIO()
    assert make_pool(site, said).run(queue)
    assert site.started[0] == ("r0", 1), "2 is taken, and the other that says so has 0"
    assert [x for x, _ in site.started] == ["r0", "r3"]
    assert said.getvalue().count("still trains; waiting for it") == 2


def test_a_run_that_is_done_is_not_trained(tmp_path: Path) -> None:
    (tmp_path / "r1").mkdir()
    write_done(tmp_path / "r1")
    site, queue = FakeSite(3), ListOf(tmp_path, 3)
    assert make_pool(site).run(queue)
    assert [x for x, _ in site.started] == ["r0", "r2"]


@pytest.mark.parametrize("jobs", [1, 2, 3, 5, 9])
def test_slots_share_all_cores(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3, 11)))
    site = LocalSite(make_config("CartPole-v1", {"device": "cpu"}), jobs=jobs)
    shares = [site.cores(slot) for slot in range(jobs)]
    assert {x for share in shares for x in share} == set(range(3, 11))
    assert min(map(len, shares)) >= 1
    if jobs <= 8:
        assert sum(map(len, shares)) == 8
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_run_is_kept_to_its_cores(tmp_path: Path) -> None:
    """The process begins on them, and this one is where it was; another that looks finds it by its lock, while it is there."""
    cores = sorted(os.sched_getaffinity(0))
    site = LocalSite(make_config("CartPole-v1", {"device": "cpu"}), jobs=len(cores))
    run = planned(tmp_path, "x")
    run.settings.write_text("no_such_setting = 1")
    assert site.adopt(run) is None
    training = site.start(run, len(cores) - 1)
    adopted = site.adopt(run)
    assert adopted is not None
    assert adopted[1] == len(cores) - 1
    assert sorted(os.sched_getaffinity(0)) == cores
    wait_for(lambda: training.poll() is not None, "its end")
    assert training.poll() == 2
    assert adopted[0].poll() == 0, "nobody knows its code"
    assert "no_such_setting is not a setting" in run.last_words()


def test_a_run_that_is_killed_is_gone(tmp_path: Path) -> None:
    """Whoever has started it; it is the process that holds the lock."""
    site = LocalSite(make_config("CartPole-v1", {"device": "cpu"}), jobs=1)
    run = planned(tmp_path, "x")
    run.settings.write_text('env_id = "CartPole-v1"')
    for by_lock in (False, True):
        started = site.start(run, 0)
        adopted = site.adopt(run)
        assert adopted is not None
        training = adopted[0] if by_lock else started
        assert training.poll() is None
        training.kill()
        assert training.poll() is not None
        assert site.adopt(run) is None
        assert started.poll() == -signal.SIGKILL


def test_kills_with_progress_in_between_are_not_counted_together(tmp_path: Path) -> None:
    saved = iter(range(1, 100))

    class Getting(FakeSite):
        def start(self, run: PlannedRun, slot: int) -> FakeRun:
            (run.folder / "checkpoints" / str(next(saved))).mkdir(parents=True)
            return super().start(run, slot)

    runs, kills = ListOf(tmp_path, 1), [-9] * (2 * pool_module.MOST_KILLS)
    site = Getting(1, {"r0": kills})
    make_pool(site).run(runs)
    assert runs.outcomes == {"r0": Exit("done", "total_env_steps")}
    assert len(site.started) == 2 * pool_module.MOST_KILLS + 1


@pytest.mark.parametrize(("stuck_for", "killed"), [(30.0, False), (90.0, True)])
def test_a_run_is_not_killed_while_it_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck_for: float, killed: bool
) -> None:
    now, saves_for = [0.0], 200.0
    monkeypatch.setattr(pool_module.time, "monotonic", lambda: now[0])
    tensors = tmp_path / "r0" / "checkpoints" / "7.partial" / "tensors"
    tensors.parent.mkdir(parents=True)

    class Saving(FakeRun):
        def poll(self) -> int | None:
            now[0] += 1.0
            if now[0] < saves_for:
                with tensors.open("a") as file:
                    file.write("more")
            return super().poll() if now[0] > saves_for + stuck_for else None

    class Site(FakeSite):
        def start(self, run: PlannedRun, slot: int) -> FakeRun:
            return Saving(self, run, [], 10**9)

    site, queue = Site(1), ListOf(tmp_path, 1)
    queue.stopped = ["r0"]
    board = Board("", head=str, stream=io.StringIO())
    Pool(site, stop_seconds=30.0, board=board).run(queue)
    assert bool(site.killed) == killed


def test_a_run_is_not_killed_while_it_saves_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was saving as it was asked to stop, and its last checkpoint begins with no bytes."""
    now = [0.0]
    monkeypatch.setattr(pool_module.time, "monotonic", lambda: now[0])
    checkpoints = tmp_path / "r0" / "checkpoints"

    class Saving(FakeRun):
        def poll(self) -> int | None:
            now[0] += 1.0
            if now[0] >= 200.0:
                return super().poll()
            at_work = checkpoints / ("7.partial" if now[0] < 100.0 else "8.partial")
            if not at_work.exists():
                for before in checkpoints.glob("*.partial"):
                    before.rename(before.with_suffix(""))
                at_work.mkdir(parents=True)
            with (at_work / "tensors").open("a") as file:
                file.write("more")
            return None

    class Site(FakeSite):
        def start(self, run: PlannedRun, slot: int) -> FakeRun:
            return Saving(self, run, [], 10**9)

    site, queue = Site(1), ListOf(tmp_path, 1)
    queue.stopped = ["r0"]
    board = Board("", head=str, stream=io.StringIO())
    Pool(site, stop_seconds=30.0, board=board).run(queue)
    assert not site.killed
