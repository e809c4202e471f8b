import atexit
import errno
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess

import counting_envs
import numpy as np
import psutil
import pytest
from waiting import PATIENCE_SECONDS, wait_for

from gossamer.envs.registry import make_vec_env
from gossamer.envs.settings import EnvConfig
from gossamer.envs.workers import EnvWorkerDied
from gossamer.errors import ConfigError, RunFailed
from gossamer.system.ignored_signals import STOP_SIGNALS


@pytest.fixture
def envs():
    made = make_vec_env("counting_envs:Sleeping", num_envs=4, seed=1, settings=EnvConfig(workers=2))
    yield made
    made.close()


@pytest.mark.parametrize("when", ["between steps", "during a step", "before the start"])
def test_a_killed_worker_is_an_error_not_a_hang(envs, when):
    action = np.zeros(4, np.int64)
    victim = envs.processes[1]
    if when != "before the start":
        envs.start(np.zeros(4, np.int64))
    if when == "during a step":
        envs.send(action)
    os.kill(victim.pid, signal.SIGKILL)
    if when != "during a step":
        victim.join()
    with pytest.raises(EnvWorkerDied, match=rf"worker 1 \(pid {victim.pid}, exit code -9\) died"):
        run_on(envs, when, action)
    assert issubclass(EnvWorkerDied, RunFailed)
    envs.close()
    assert not any(process.is_alive() for process in envs.processes)


def run_on(envs, when, action):
    if when == "before the start":
        envs.start(np.zeros(4, np.int64))
    if when == "during a step":
        envs.recv()
    while True:
        envs.send(action)
        envs.recv()


def test_a_start_that_fails_leaves_no_process(tmp_path, monkeypatch):
    """Not even where the error is kept, as a notebook does."""
    monkeypatch.setenv("FIRST_PROCESS", str(tmp_path / "first"))
    before = set(multiprocessing.active_children())
    with pytest.raises(EnvWorkerDied, match="died at its start") as kept:
        make_vec_env(
            "counting_envs:FirstProcess", num_envs=3, seed=1, settings=EnvConfig(workers=3)
        )
    assert set(multiprocessing.active_children()) <= before, kept


def test_a_process_that_cannot_be_started_is_told_in_one_line(monkeypatch):
    before = set(multiprocessing.active_children())
    start, starts = SpawnProcess.start, itertools.count()

    def refused(process):
        if next(starts) == 1:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", refused)
    with pytest.raises(
        ConfigError, match=r"4 worker processes cannot be started .*--env.workers 2"
    ):
        make_vec_env("CartPole-v1", num_envs=4, seed=1, settings=EnvConfig(workers=4))
    assert set(multiprocessing.active_children()) <= before


def test_no_room_for_shared_memory_is_told_in_one_line(monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SpawnContext, "RawArray", full)
    with pytest.raises(ConfigError, match=r"No space left on device.*--env.workers 0"):
        make_vec_env("CartPole-v1", num_envs=4, seed=1, settings=EnvConfig(workers=2))


def test_closing_ends_all_processes_even_in_mid_step(envs):
    envs.start(np.zeros(4, np.int64))
    envs.send(np.zeros(4, np.int64))
    envs.close()
    assert not any(process.is_alive() for process in envs.processes)


def test_a_thread_that_closes_while_the_process_ends_closes_no_descriptor_twice(monkeypatch):
    """By then it may be another file's."""
    at_exit = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    settings = EnvConfig(workers=2)
    envs = make_vec_env("counting_envs:Sleeping", num_envs=4, seed=1, settings=settings)
    closed, close = [], Connection.close

    def slowly(pipe):
        closed.append(pipe)
        time.sleep(0.05)
        close(pipe)

    monkeypatch.setattr(Connection, "close", slowly)
    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(end) for end in (envs.close, *at_exit)]:
            done.result(PATIENCE_SECONDS)
    assert len(closed) == len(set(closed))
    assert len(closed) >= 3  # to each worker, and from all


def test_the_failure_of_a_step_that_nobody_received_is_not_told_of_a_later_one():
    """An evaluation that a deadline has ended in a step begins other episodes in the same environments."""
    settings = EnvConfig(workers=1)
    envs = make_vec_env("counting_envs:Failing", num_envs=1, seed=1, settings=settings)
    try:
        for episode in (0, 5):
            envs.start(np.array([episode]))
            for _ in range(2):
                envs.send(np.zeros(1, np.int64))
                envs.recv()
            envs.send(np.zeros(1, np.int64))
        with pytest.raises(RunFailed, match=r"environment 0 failed in episode 5"):
            envs.recv()
    finally:
        envs.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_closing_closes_every_environment(tmp_path, monkeypatch, workers):
    """A simulator may be a process, and hold ports and files."""
    monkeypatch.setenv("SIMULATORS", str(tmp_path))
    settings = EnvConfig(workers=workers)
    envs = make_vec_env("counting_envs:OfItsOwn", num_envs=4, seed=1, settings=settings)
    envs.start(np.zeros(4, np.int64))
    envs.send(np.zeros(4, np.int64))
    assert len(list(tmp_path.glob("*.lives"))) == 4
    envs.close()
    assert not list(tmp_path.glob("*.lives"))


@pytest.mark.parametrize("workers", [0, 2])
def test_those_that_were_made_are_closed_where_one_cannot_be(tmp_path, monkeypatch, workers):
    monkeypatch.setenv("SIMULATORS", str(tmp_path))
    monkeypatch.setenv("SPOILT", "4")
    settings = EnvConfig(workers=workers)
    with pytest.raises((ConfigError, RunFailed), match="no port is free"):
        make_vec_env("counting_envs:OfItsOwn", num_envs=6, seed=1, settings=settings)
    assert not list(tmp_path.glob("*.lives"))


def test_those_that_were_made_are_closed_where_ctrl_c_comes_before_the_last(tmp_path, monkeypatch):
    """As in an evaluation, whose simulators are processes that take long to start."""
    monkeypatch.setenv("SIMULATORS", str(tmp_path))
    monkeypatch.setenv("SPOILT", "4")
    monkeypatch.setattr(counting_envs, "RuntimeError", KeyboardInterrupt, raising=False)
    with pytest.raises(KeyboardInterrupt):
        make_vec_env("counting_envs:OfItsOwn", num_envs=6, seed=1, settings=EnvConfig())
    assert not list(tmp_path.glob("*.lives"))


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_workers_ignore_what_a_terminal_or_a_cluster_sends_to_all(envs, number):
    envs.start(np.zeros(4, np.int64))
    for process in envs.processes:
        os.kill(process.pid, number)
    for _ in range(3):
        envs.send(np.zeros(4, np.int64))
        envs.recv()


def test_programs_of_an_environment_in_a_worker_do_as_they_are_asked():
    settings = EnvConfig(workers=1)
    envs = make_vec_env("broken_envs:StartsPrograms", num_envs=2, seed=1, settings=settings)
    envs.start(np.zeros(2, np.int64))
    programs = psutil.Process(envs.processes[0].pid).children()
    assert len(programs) == 2
    for program in programs:  # which a terminal sends to all, while the run saves
        program.send_signal(signal.SIGINT)
    for _ in range(10):
        envs.send(np.zeros(2, np.int64))
        envs.recv()
    assert all(x.is_running() and x.status() != psutil.STATUS_ZOMBIE for x in programs)
    for _ in range(50):  # two episodes
        envs.send(np.zeros(2, np.int64))
        envs.recv()
    envs.close()


LEFT = """
import numpy as np
from gossamer.envs.registry import make_vec_env
from gossamer.envs.settings import EnvConfig

if __name__ == "__main__":
    envs = make_vec_env("CartPole-v1", num_envs=2, seed=1, settings=EnvConfig(workers=2))
    envs.start(np.zeros(2, np.int64))
    print(*(x.pid for x in envs.processes))
"""


def test_a_program_that_closes_nothing_ends_with_its_workers(tmp_path):
    script = tmp_path / "left.py"
    script.write_text(LEFT)
    words = [sys.executable, str(script)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not any(map(psutil.pid_exists, map(int, done.stdout.split())))


KILLED = """
import os, signal
import numpy as np
from gossamer.envs.registry import make_vec_env
from gossamer.envs.settings import EnvConfig

if __name__ == "__main__":
    settings = EnvConfig(workers=2)
    envs = make_vec_env("broken_envs:LocksAtOnce", num_envs=2, seed=1, settings=settings)
    envs.start(np.zeros(2, np.int64))
    envs.send(np.zeros(2, np.int64))
    print(*(x.pid for x in envs.processes), flush=True)
    envs.recv()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux's")
def test_workers_in_native_code_end_with_a_process_that_is_killed(tmp_path):
    """No thread of theirs can see that it is gone, where that code holds the interpreter's lock."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    stuck = tmp_path / "stuck"
    paths = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"STUCK_FILE": str(stuck), "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        workers = list(map(int, process.stdout.readline().split()))
        assert len(workers) == 2
        try:
            wait_for(lambda: stuck.exists() and stuck.stat().st_size == 2, "environments that hang")
            time.sleep(0.5)  # after the mark
            process.kill()
            wait_for(lambda: not any(map(runs, workers)), "workers that end")
        finally:
            process.kill()
            for pid in workers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def runs(pid):
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("workers", [-1, 3, 8])
def test_workers_must_divide_the_environments(workers):
    with pytest.raises(ConfigError, match=f"--env.workers is {workers}"):
        make_vec_env("CartPole-v1", num_envs=4, seed=1, settings=EnvConfig(workers=workers))


def test_the_process_that_starts_workers_makes_one_environment(tmp_path, monkeypatch):
    """To read its spec; gymnasium would make a whole share there, to look at its spaces."""
    made = tmp_path / "made"
    monkeypatch.setenv("MADE_BY", str(made))
    envs = make_vec_env("counting_envs:MadeBy", num_envs=4, seed=1, settings=EnvConfig(workers=2))
    try:
        envs.start(np.zeros(4, np.int64))
        by = [int(line) for line in made.read_text().split()]
        assert by.count(os.getpid()) == 1
        assert len(by) == 5
    finally:
        envs.close()


GROUPS = """
import os, signal, sys

if __name__ == "__main__":  # workers need none of it
    import numpy as np
    from gossamer.build.plan import make_plan
    from gossamer.build.roles import build_env_groups
    from gossamer.config import make_config
    from gossamer.envs.registry import read_spec
    from dataclasses import replace

    config = make_config("PongNoFrameskip-v4", {"num_envs": 8, "env_groups": 2, "env.size": 36})
    spec = read_spec(config.env_id, config.env)
    groups, obs = build_env_groups(config, spec, replace(make_plan(config, spec), env_workers=2))
    for process in [x for envs in groups for x in envs.processes]:
        os.kill(process.pid, signal.SIGINT)
    for envs in groups:
        for _ in range(20):
            envs.send(np.zeros(4, np.int64))
            envs.recv()
        envs.close()
    print("stepped", [len(x) for x in obs])
"""


def test_workers_of_groups_that_start_at_once_ignore_ctrl_c(tmp_path):
    """In a process in which nothing else has started multiprocessing's tracker, whose start unblocks signals."""
    pytest.importorskip("ale_py")
    script = tmp_path / "groups.py"
    script.write_text(GROUPS)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.stdout.strip() == "stepped [4, 4]", done.stderr


def test_a_killed_worker_with_games_is_an_error_not_a_hang():
    pytest.importorskip("ale_py")
    envs = make_vec_env(
        "PongNoFrameskip-v4", num_envs=4, seed=1, settings=EnvConfig(size=36, workers=2)
    )
    try:
        envs.start(np.zeros(4, np.int64))
        os.kill(envs.processes[0].pid, signal.SIGKILL)
        with pytest.raises(EnvWorkerDied, match=r"PongNoFrameskip-v4: worker 0 .*died"):
            run_on(envs, "between steps", np.zeros(4, np.int64))
    finally:
        envs.close()
