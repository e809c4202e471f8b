"""Runs under conditions that are none of theirs: how Python was started, a umask, being suspended, a clock that jumps."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from programs import gossamer as gossamer_command
from sessions import env_steps_logged, slow, summary_of
from waiting import PATIENCE_SECONDS, wait_for

import gossamer

TINY = ["--num-envs=2", "--unroll-length=8", "--evaluation.every-seconds=0", "--algorithm=a2c"]

REPLAYS = ["--replay-ratio=1", "--algorithm=laser"]


def start(folder: Path, flags: list[str], *words: str, **how: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *flags, "-m", "gossamer", "train", "CartPole-v1", *TINY, *words,
         "--run-folder=run"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        slow(["-O"], ["--placement=inline", *REPLAYS]),
        slow(["-OO"], ["--num-learners=2", "topology:gossip"]),
        slow(["-OO", "-W", "error"], ["--env.workers=2", "--placement=inline"]),
        (
            ["-OO", "-W", "error"],
            ["--num-learners=2", "topology:allreduce", "--env.workers=2", *REPLAYS],
        ),
    ],
)
def test_however_python_was_started(tmp_path: Path, flags: list[str], words: list[str]) -> None:
    words = [*words, "--total-env-steps=256"]
    process = start(tmp_path, flags, *words)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, out + err
    assert "Warning" not in err
    assert "done: total_env_steps reached" in err


def test_a_umask_holds_and_does_no_harm(tmp_path: Path) -> None:
    words = ["--placement=local", "--num-learners=2", "topology:gossip", "--total-env-steps=256"]
    process = start(tmp_path, [], *words, umask=0o077)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, out + err
    for path in (tmp_path / "run").rglob("*"):
        assert not stat.S_IMODE(path.lstat().st_mode) & 0o077, path
    again = gossamer_command("train", "--resume=run", "--total-env-steps=512", cwd=tmp_path)
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("words", [slow([]), ["--num-learners=2", "topology:gossip"]])
def test_a_run_that_is_suspended_goes_on(tmp_path: Path, words: list[str]) -> None:
    """As by Ctrl-Z, or by a laptop's lid: all its processes stand still for longer than it has patience."""
    process = start(tmp_path, [], *words, "--total-env-steps=1e9", "--patience-seconds=3",
                    start_new_session=True)  # fmt: skip
    folder = tmp_path / "run"

    def wait_for_more_than(count: int) -> None:
        wait_for(lambda: env_steps_logged(folder) > count or process.poll() is not None, "steps")
        assert process.poll() is None, process.communicate()

    wait_for_more_than(0)
    leader = psutil.Process(process.pid)
    family = [leader, *leader.children(recursive=True)]
    for member in family:
        member.suspend()
    time.sleep(6)
    before = env_steps_logged(folder)
    for member in reversed(family):
        member.resume()
    wait_for_more_than(before)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, out + err
    assert summary_of(folder)["exit_reason"] == "stopped by SIGTERM"
    assert summary_of(folder)["restarts"] == 0


def test_a_clock_that_jumps_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set back by an hour, and on by a day, while it trains: only times of day are told by it."""
    real, ticks = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() + (-3600, 0, 86_400)[next(ticks) % 3])
    result = gossamer.train(
        "CartPole-v1",
        algorithm="a2c",
        num_envs=2,
        unroll_length=8,
        total_env_steps=256,
        run_folder=str(tmp_path / "run"),
        quiet=True,
    )
    assert result.summary["exit_reason"] == "done: total_env_steps reached"


def test_numpy_of_a_simulator_has_one_thread_unless_the_user_says(tmp_path: Path) -> None:
    (tmp_path / "told_envs.py").write_text(
        "import os, gymnasium\n"
        "def make():\n"
        "    print('threads', os.environ['OPENBLAS_NUM_THREADS'], flush=True)\n"
        "    return gymnasium.make('CartPole-v1')\n"
    )
    words = ["train", "told_envs:make", "--total-env-steps=16", "--placement=inline", *TINY]
    environment = {k: x for k, x in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    for said in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "gossamer", *words, f"--run-folder=run{said}"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
            check=True,
        )  # fmt: skip
        assert f"threads {said}" in done.stdout + done.stderr
        environment["OPENBLAS_NUM_THREADS"] = "2"
