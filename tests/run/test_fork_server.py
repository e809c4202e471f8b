"""Learners that begin as copies of a process that has imported everything."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from runs import SMALL, assert_same, pids_of, processes_of, rows_of
from sessions import QUICK, Session, summary_of
from waiting import PATIENCE_SECONDS, wait_for

from gossamer.config import make_config
from gossamer.run.placements.fork_server import fork_server, ready
from gossamer.run.train import train

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are made on Linux alone")

GOSSIP = {"name": "gossip", "max_staleness": 0}


def run(folder: Path, env_id: str = "CartPole-v1", **settings: Any) -> None:
    given = {**SMALL, "num_learners": 2, "topology": GOSSIP, "placement": "local", **settings}
    made = make_config(env_id, {"total_env_steps": 256, "run_folder": str(folder), **given})
    train(made, quiet=True)


def parents_of(folder: Path) -> set[int]:
    return {psutil.Process(pid).ppid() for pid in pids_of(folder)}


def test_who_has_closed_its_socket_is_left_out_of_a_wait() -> None:
    """As a process that has closed its end of a channel, and whose end the system has yet to tell."""
    gone = socket.socket()
    gone.close()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        assert ready([gone.fileno(), ours.fileno()], 10.0) == {ours.fileno()}
    assert ready([gone.fileno()], 0.01) == set()


def test_a_copy_computes_what_a_process_of_its_own_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "copies")
    monkeypatch.setattr(sys, "platform", "another")
    run(tmp_path / "own")
    assert_same(tmp_path / "copies", tmp_path / "own", ordered=False)


def test_copies_begin_with_what_holds_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever held when the fork server began: variables, folder, and draws that no other copy has."""
    made = fork_server()
    assert made is not None
    monkeypatch.setenv("WHERE", str(tmp_path))
    draws: list[float] = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setenv("TOLD", name)
        run(tmp_path / "runs" / name, "fork_server_envs:Tells")
        learners = pids_of(tmp_path / "runs" / name)
        assert len(set(learners)) == 2
        for pid in learners:
            told = json.loads((tmp_path / f"{pid}.json").read_text())
            assert (told["value"], told["folder"]) == (name, str(tmp_path / name))
            assert told["session"] == pid, "a terminal's Ctrl-C is for the supervisor"
            draws += told["draws"]
            # What libraries do at the end is done; a quarter of a second to clear what ends anyway is not spent.
            assert (tmp_path / f"{pid}.ended").exists()
            assert not (tmp_path / f"{pid}.apart").exists()
    assert len(set(draws)) == 8
    assert fork_server() is made, "one for all"


def test_other_variables_for_the_start_need_another_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = fork_server()
    assert before is not None
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    other = fork_server()
    assert other is not None
    assert other is not before
    assert before.closed


def test_a_killed_fork_server_takes_its_copies_along_and_the_run_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["held_envs:HeldCartPole", *QUICK, "--num-learners", "2", "topology:gossip"]
    words += ["--run-folder", str(folder)]
    with Session(words, tmp_path, forked=False) as session:
        session.wait_for(lambda: len(set(pids_of(folder))) == 2, "two processes")
        before = pids_of(folder)
        (parent,) = parents_of(folder)
        assert parent != session.process.pid
        session.wait_for(lambda: rows_of(folder), "progress")
        os.kill(parent, signal.SIGKILL)
        session.wait_for(lambda: not {*pids_of(folder)} & {*before}, "new processes")
        session.release()
        session.signal(signal.SIGTERM)
        err = session.ends()
    assert err.count("died (signal 9) and was restarted") == 2
    assert summary_of(folder)["restarts"] == 2


def test_actors_are_copies_of_the_same_process_as_learners_and_end_with_their_own(
    tmp_path: Path,
) -> None:
    """Though what an actor computes holds the interpreter's lock, so that no thread of its own could end it."""
    folder = tmp_path / "run"
    words = ["broken_envs:HoldsTheLock", "algorithm:vtrace", *QUICK, "--num-learners", "2"]
    words += ["topology:gossip", "--actors-per-learner", "2", "--run-folder", str(folder)]
    with Session(words, tmp_path, forked=False) as session:
        session.wait_for(lambda: len(pids_of(folder, "actor")) == 4, "four actors")
        session.wait_for(session.stuck.exists, "a simulator that holds the lock")
        everyone = [*pids_of(folder), *pids_of(folder, "actor")]
        (server,) = {psutil.Process(pid).ppid() for pid in everyone}
        victim = pids_of(folder)[0]
        theirs = [row["pid"] for row in processes_of(folder, "actor") if row["rank"] == 0]
        assert len(theirs) == 2
        os.kill(victim, signal.SIGKILL)
        session.wait_for(lambda: not any(map(psutil.pid_exists, theirs)), "the end of its actors")
        others = [pid for pid in everyone if pid not in (victim, *theirs)]
        assert all(psutil.Process(pid).ppid() == server for pid in others), "nobody else ended"
        session.wait_for(lambda: len({*pids_of(folder, "actor")} - {*everyone}) == 2, "new ones")
        assert parents_of(folder) == {server}
        session.signal(signal.SIGKILL)
        session.end()
        left = [*others, *pids_of(folder, "actor"), server]
        wait_for(lambda: not any(map(psutil.pid_exists, left)), "the end of everyone")


def test_nothing_is_left_of_a_program_that_has_ended(tmp_path: Path) -> None:
    words = ["held_envs:HeldCartPole", *QUICK, "--num-learners", "2", "topology:gossip"]
    words += ["--run-folder", str(tmp_path / "run")]
    with Session(words, tmp_path) as session:
        session.wait_for(lambda: len(set(pids_of(tmp_path / "run"))) == 2, "two processes")
        everyone = psutil.Process(session.process.pid).children(recursive=True)
        session.release()
        session.signal(signal.SIGTERM)
        session.ends()
    assert len(everyone) >= 3
    _, alive = psutil.wait_procs(everyone, timeout=PATIENCE_SECONDS)
    assert not alive


@pytest.mark.parametrize("plugin", [False, True])
def test_what_is_imported_ahead_begins_no_thread_and_no_plugin(
    tmp_path: Path, plugin: bool
) -> None:
    """A copy has the fork server's first thread alone, and what a plugin does at its import is for each process."""
    (tmp_path / "plug.py").write_text("def register():\n    pass\n")
    told = tmp_path / "plug-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    group = "gymnasium.envs" if plugin else "others"
    (told / "entry_points.txt").write_text(f"[{group}]\nplug = plug:register\n")
    code = """
import json, os, sys
import gossamer.run.placements.child
from gossamer.run.placements.fork_server import import_ahead
import_ahead()
print(json.dumps([len(os.listdir("/proc/self/task")), list(sys.modules)]))
"""
    path = os.pathsep.join([str(tmp_path), *sys.path])
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    threads, modules = json.loads(done.stdout)
    assert threads == 1
    assert ("gymnasium.envs.classic_control.cartpole" in modules) is not plugin
    assert "gossamer.algorithms.laser" in modules
    assert not {"plug", "ale_py", "mujoco", "pygame", "matplotlib"} & {*modules}
