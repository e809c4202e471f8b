"""docs/how-it-works.md names the functions of a trajectory, a death and a checkpoint in the order in which they are called."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gossamer import train
from gossamer.run.placements.processes import Processes

ROOT = Path(__file__).parents[2]
SOURCE = str(ROOT / "src" / "gossamer")
ELSEWHERE = {"take_over"}
"""Called in another process than the supervisor's."""
QUICK: dict[str, Any] = {
    "algorithm": {"name": "ppo", "passes": 1, "num_minibatches": 1},
    "num_envs": 4,
    "quiet": True,
    "evaluation": {"every_seconds": 0},
}


def names_in(way: str) -> list[str]:
    """Return the functions that a paragraph names."""
    text = (ROOT / "docs" / "how-it-works.md").read_text()
    found = re.search(rf"^\*\*{way}\.\*\* (.+?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert found
    return re.findall(r"[(,] ?`([\w.]+)`(?=[,)])", found[1])


@contextmanager
def noted_calls(calls: list[str]) -> Generator[None]:
    """Context in which calls of functions of gossamer are noted, of all threads."""

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            calls.append(f".{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}")

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def assert_in_order(way: str, calls: list[str]) -> None:
    names = names_in(way)
    assert len(names) >= 6
    first: dict[str, int | None] = {
        name: next((i for i, call in enumerate(calls) if call.endswith(f".{name}")), None)
        for name in names
        if name not in ELSEWHERE
    }
    assert [name for name, at in first.items() if at is None] == [], "none of these is called"
    assert sorted(first, key=lambda name: first[name] or 0) == list(first)


@pytest.fixture(scope="module")
def calls_of_a_run(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    calls: list[str] = []
    folder = str(tmp_path_factory.mktemp("ways") / "run")
    with noted_calls(calls):
        train(
            "CartPole-v1", placement="inline", total_env_steps=96, unroll_length=8,
            run_folder=folder, **QUICK,
        )  # fmt: skip
    return calls


@pytest.mark.parametrize("way", ["A trajectory", "A checkpoint"])
def test_the_way_of_one_run(way: str, calls_of_a_run: list[str]) -> None:
    assert_in_order(way, calls_of_a_run)


def test_the_way_of_a_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    poll: Callable[[Processes], Any] = Processes.poll
    killed: list[int] = []
    back: list[int] = []

    def kills_one(placement: Processes) -> Any:
        host = placement.hosts[1]
        if not killed and all(host.version > 2 for host in placement.hosts):
            killed.extend((host.pid, host.version))
            os.kill(host.pid, signal.SIGKILL)
            calls.clear()  # what comes now is its way
        elif killed and host.pid != killed[0] and host.version > killed[1] + 2:
            back.append(host.pid)
        return poll(placement)

    monkeypatch.setattr(Processes, "poll", kills_one)
    with noted_calls(calls):
        result = train(
            "CartPole-v1", num_learners=2, topology="gossip", total_env_steps=10_000_000, unroll_length=16,
            run_folder=str(tmp_path / "run"), on_row=lambda _: bool(back), **QUICK,
        )  # fmt: skip
    assert result.summary["restarts"] == 1
    assert_in_order("A death", calls)
    source = (ROOT / "src/gossamer/run/placements/host_learners.py").read_text()
    assert all(f"def {name}(" in source for name in ELSEWHERE)
