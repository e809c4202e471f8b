"""Runs of a sweep side by side: closed terminals, a GPU for each slot, runs that another command has begun."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossamer.config import make_config
from gossamer.config.cores import MACHINE, PLAIN
from gossamer.record.exits import Exit
from gossamer.sweep import local_site
from gossamer.sweep import pool as pool_module
from gossamer.sweep.live_table import Board
from gossamer.sweep.local_site import LocalSite
from gossamer.sweep.pool import PlannedRun, Pool, RunQueue
from gossamer.system import signals


def planned(folder: Path, name: str) -> PlannedRun:
    return PlannedRun(name, folder / name, 1)


class SlowToStop:
    """A run that takes some looks to save a checkpoint after it has been asked to stop."""

    def __init__(self, looks: int, on_poll: Any = lambda _: None):
        self.polls, self.stops, self.kills = 0, 0, 0
        self.left, self.on_poll = looks, on_poll

    def poll(self) -> int | None:
        self.polls += 1
        self.on_poll(self.polls)
        self.left -= bool(self.stops)
        return None if self.left > 0 else 0

    def stop(self) -> None:
        self.stops += 1

    def kill(self) -> None:
        self.kills += 1


class OneRun:
    """A site with one slot and a run that a test has made."""

    jobs = 1

    def __init__(self, training: SlowToStop):
        self.training = training

    def start(self, run: PlannedRun, slot: int) -> SlowToStop:
        return self.training

    def adopt(self, run: PlannedRun) -> None:
        return None

    def close(self) -> None:
        pass


class Watched(RunQueue):
    """A queue that remembers how runs ended."""

    def __init__(self, folder: Path):
        super().__init__([planned(folder, "r0")])
        self.outcomes: list[Exit] = []

    def ended(self, run: PlannedRun, how: Exit) -> None:
        self.outcomes.append(how)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(pool_module, "LOOK_SECONDS", 0.0)


def make_pool(site: OneRun) -> Pool:
    board = Board("", head=str, stream=io.StringIO())
    return Pool(site, stop_seconds=60.0, board=board)


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGINT])
def test_a_terminal_that_is_closed_lets_runs_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """The system says so more than once; after Ctrl-C too it is no second Ctrl-C."""
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)
    told = {5: first, 10: signal.SIGHUP, 15: signal.SIGHUP}

    def tell(polls: int) -> None:
        if polls in told:
            os.kill(os.getpid(), told[polls])

    training, queue = SlowToStop(20, tell), Watched(tmp_path)
    assert not make_pool(OneRun(training)).run(queue)
    assert training.polls > 20
    assert (training.stops, training.kills) == (1, 0)
    assert queue.outcomes == [Exit("stopped", "request")]


def test_runs_are_stopped_while_settings_are_chosen(tmp_path: Path) -> None:
    """That may take seconds, and runs that a system has told to end as well would take a later signal for a second one."""
    training, asked = SlowToStop(3), list[int]()

    class Chooses(Watched):
        def next(self) -> PlannedRun | None:
            if not self.pending:
                os.kill(os.getpid(), signal.SIGTERM)
                asked.append(training.stops)
            return super().next()

    site = OneRun(training)
    site.jobs = 2
    queue = Chooses(tmp_path)
    assert not make_pool(site).run(queue)
    assert asked == [1]
    assert (training.stops, training.kills) == (1, 0)
    assert queue.outcomes == [Exit("stopped", "request")]


def test_each_slot_has_a_gpu_and_no_run_what_was_tuned_for_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that are compared would otherwise share a GPU, or have settings that no file names."""
    begun: list[dict[str, str]] = []

    def begin(words: list[str], *, env: dict[str, str], **_: Any) -> SimpleNamespace:
        begun.append(env)
        return SimpleNamespace(pid=1, poll=lambda: 0)

    monkeypatch.setattr(local_site, "visible_gpus", lambda: ["2", "5"])
    monkeypatch.setattr(local_site, "num_cores", lambda: 8)
    monkeypatch.setattr(subprocess, "Popen", begin)
    monkeypatch.delenv(MACHINE, raising=False)
    site = LocalSite(make_config("CartPole-v1", {"placement": "inline"}))
    assert site.jobs == 2, "one for each GPU, though there are cores for more"
    for slot in (0, 1):
        site.start(planned(tmp_path, f"r{slot}"), slot)
    assert [env["CUDA_VISIBLE_DEVICES"] for env in begun] == ["2", "5"]
    assert [env[MACHINE] for env in begun] == [PLAIN, PLAIN]


HOLDS = """
import fcntl, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
files = [open(name, "a+") for name in sys.argv[1:]]
for file in files:
    fcntl.flock(file, fcntl.LOCK_EX)
files[0].write(f"{os.getpid()}\\n")
files[0].flush()
print("ready", flush=True)
signal.pause()
"""
"""A run that holds its folder and the lock of the sweep that has begun it."""


def test_a_run_whose_sweep_was_killed_as_it_began_it_can_be_stopped(tmp_path: Path) -> None:
    """That sweep has not written down which process it is; the run's own folder tells."""
    run = planned(tmp_path, "r0")
    run.folder.mkdir()
    words = [sys.executable, "-c", HOLDS, str(run.folder / ".lock"), str(run.lock)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            adopted = LocalSite(make_config("CartPole-v1", {"device": "cpu"}), jobs=1).adopt(run)
            assert adopted is not None
            training, slot = adopted
            assert (training.poll(), slot) == (None, None)
            training.stop()
            assert process.wait(timeout=30) == -signal.SIGINT
            assert training.poll() == 0
        finally:
            process.kill()
