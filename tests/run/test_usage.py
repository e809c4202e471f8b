"""What a run is told to use: its own process, those that it watches, and all that these have started."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from gossamer.run import usage
from gossamer.run.usage import Usage

MIB = 1 << 20
HOLDS = (
    "import sys\nheld = bytearray(b'x') * (80 << 20)\nprint('there', flush=True)\nsys.stdin.read()"
)
BURNS = "import sys\nprint('there', flush=True)\nwhile True: pass"
FORKS = "import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', sys.argv[1]]).pid, flush=True)\nsys.stdin.read()"
ORPHANS = "import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], start_new_session=True).pid, flush=True)"

Start = Callable[..., tuple["subprocess.Popen[str]", list[int]]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python with a program and its arguments; return it, and the numbers that it tells until a line says "there"."""
    made: list[subprocess.Popen[str]] = []
    told: list[int] = []

    def start(*words: str) -> tuple[subprocess.Popen[str], list[int]]:
        made.append(
            subprocess.Popen(
                [sys.executable, "-c", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert made[-1].stdout is not None
        own: list[int] = []
        for line in made[-1].stdout:
            if line == "there\n":
                break
            own.append(int(line))
        told.extend(own)
        return made[-1], own

    yield start
    for pid in told:
        try:
            psutil.Process(pid).kill()
        except psutil.NoSuchProcess:
            continue
    for process in made:
        process.kill()
        process.communicate()


def test_workers_of_processes_count(start: Start) -> None:
    """As simulators in processes of their own do, which actors and learners have started."""
    measured = Usage(look_every_seconds=0.0)
    before = measured.measure()["memory_bytes"]
    process, _ = start(FORKS, HOLDS)
    assert measured.measure()["memory_bytes"] > before + 80 * MIB
    process.kill()
    process.communicate()


def test_time_of_workers_is_not_that_of_others(start: Start) -> None:
    measured = Usage(look_every_seconds=0.0)
    _, (pid,) = start(FORKS, BURNS)
    measured.measure()
    began, worker = time.monotonic(), psutil.Process(pid)
    used = worker.cpu_times().user
    while worker.cpu_times().user < used + 0.3:
        time.sleep(0.02)
    seconds = time.monotonic() - began
    assert measured.measure()["cpu_percent"] * seconds > 20.0, "a fifth of a second at least"


def test_what_a_watched_process_has_started_counts_while_it_is_there(start: Start) -> None:
    """Learners of another process than this one, as those of an agent are."""
    _, pids = start(ORPHANS, FORKS, HOLDS)
    orphan, worker = (psutil.Process(pid) for pid in pids)
    measured = Usage(look_every_seconds=0.0)
    before = measured.measure()["memory_bytes"]
    measured.watch([orphan.pid])
    assert measured.measure()["memory_bytes"] > before + 80 * MIB
    worker.kill()
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert measured.measure()["memory_bytes"] < before + 60 * MIB, "it is gone"
    orphan.kill()
    measured.measure()


def test_processes_are_not_looked_for_with_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def found(pid: int) -> list[int]:
        looked.append(pid)
        return []

    monkeypatch.setattr(usage, "descendants", found)
    measured = Usage(look_every_seconds=60.0)
    for _ in range(5):
        measured.measure()
    assert len(looked) == 1
    measured.watch([1 << 30])
    for _ in range(5):
        measured.measure()
    assert len(looked) == 3, "of both, once"


@pytest.mark.parametrize("told_by_kernel", [True, False])
def test_descendants_are_children_and_theirs(
    start: Start, monkeypatch: pytest.MonkeyPatch, told_by_kernel: bool
) -> None:
    if not told_by_kernel:
        monkeypatch.setattr(usage, "has_children_files", lambda: False)
    process, (child,) = start(FORKS, HOLDS)
    assert usage.descendants(process.pid) == {child}
    assert {process.pid, child} <= usage.descendants(psutil.Process().pid)
    assert usage.descendants(1 << 30) == set()
