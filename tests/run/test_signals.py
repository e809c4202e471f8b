"""One signal ends a run cleanly, two at once; resuming goes on; what a pipe sees meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import psutil
import pytest
from sessions import QUICK, Session, checkpoints, env_steps_logged, slow, summary_of, wait_for
from waiting import PATIENCE_SECONDS

from gossamer import cli

TOTAL = 10_000_000  # never reached


@dataclass
class Ended:
    """How one session ended."""

    code: int
    out: str
    err: str
    summary: dict[str, Any]
    checkpoints: list[int]


# One process has them all: what they look at takes ten seconds to make.
pytestmark = pytest.mark.xdist_group("signals")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("signals") / "run"


@pytest.fixture(scope="module")
def sessions(folder: Path) -> list[Ended]:
    """A run stopped by SIGINT, resumed with another setting, stopped by SIGTERM."""
    ended: list[Ended] = []
    first = ["CartPole-v1", "--run-folder", str(folder), f"--total-env-steps={TOTAL}", *QUICK]
    second = ["--resume", str(folder), "--keep-checkpoints", "2"]
    for words, number in ((first, signal.SIGINT), (second, signal.SIGTERM)):
        before = env_steps_logged(folder)
        with Session(words, folder.parent) as session:
            session.wait_for(lambda b=before: env_steps_logged(folder) > b, "a row of metrics")
            session.signal(number)
            code, out, err = session.end()
        ended.append(Ended(code, out, err, summary_of(folder), checkpoints(folder)))
    return ended


@pytest.mark.parametrize(("which", "name"), [(0, "SIGINT"), (1, "SIGTERM")])
def test_one_signal_saves_and_exits_0(sessions: list[Ended], which: int, name: str) -> None:
    ended = sessions[which]
    assert ended.code == 0
    assert ended.summary["exit_reason"] == f"stopped by {name}"
    assert ended.checkpoints[-1] == ended.summary["updates"], "the last state is on disk"
    assert "Traceback" not in ended.err
    assert "next: gossamer train --resume" in ended.err.splitlines()[-1]


def test_resuming_goes_on_where_it_stopped(sessions: list[Ended], folder: Path) -> None:
    first, second = (ended.summary for ended in sessions)
    assert second["updates"] > first["updates"]
    assert second["seconds"] > first["seconds"], "over all sessions"
    assert f"resumed exactly at {first['env_steps']:,} env steps" in sessions[1].err
    assert "changed: keep_checkpoints 3 -> 2" in sessions[1].err
    assert sessions[1].err.count("changed: ") == 1
    assert f"resumed exactly at {first['env_steps']:,}" in (folder / "log.txt").read_text()


def test_a_pipe_sees_plain_lines(sessions: list[Ended]) -> None:
    for ended in sessions:
        # On a busy machine it may say what takes so long before its first line.
        assert all(x.startswith(("making ", "bringing ")) for x in ended.out.splitlines())
        assert "\033" not in ended.err
        lines = [line for line in ended.err.splitlines() if line.startswith("steps ")]
        assert lines
        assert f"/{TOTAL:,}" in lines[0]


def test_resuming_a_finished_run_makes_nothing(
    sessions: list[Ended],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gymnasium, "make", None)  # cannot be called
    steps = sessions[1].summary["env_steps"]
    before = (folder / "config.json").read_bytes()
    (folder / "summary.json").unlink()  # as if killed between the checkpoint and the summary
    for _ in range(2):
        assert cli.main(["train", "--resume", str(folder), f"--total-env-steps={steps}"]) == 0
        assert "is finished (done: total_env_steps reached)" in capsys.readouterr().out
    assert summary_of(folder)["env_steps"] == steps
    told = summary_of(folder)  # as if the last evaluation had failed
    failed = {"exit": {"kind": "failed", "cause": "no memory"}, "exit_reason": "failed: no memory"}
    (folder / "summary.json").write_text(json.dumps(told | failed))
    assert cli.main(["train", "--resume", str(folder), f"--total-env-steps={steps}"]) == 0
    assert "is finished (done: total_env_steps reached)" in capsys.readouterr().out
    assert summary_of(folder)["exit"] == told["exit"]
    assert cli.main(["train", "--resume", str(folder), "--total-env-steps=1"]) == 0
    assert f"--total-env-steps {2 * steps:_}" in capsys.readouterr().out
    assert (folder / "config.json").read_bytes() == before
    half = summary_of(folder)["seconds"] / 2
    assert cli.main(["train", "--resume", str(folder), f"--stop-after-seconds={half:.4f}"]) == 0
    said = capsys.readouterr().out
    reached = re.search(r"stop_after_seconds reached by its ([\d.]+) s over all sessions", said)
    further = re.search(r"--stop-after-seconds ([\d.]+)$", said)
    assert reached
    assert further
    assert float(further[1]) > float(reached[1]), "what is advised would be finished too"


@pytest.mark.parametrize(
    ("first", "second"), [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM)]
)
def test_two_signals_end_a_stuck_run_at_once(
    tmp_path: Path, first: signal.Signals, second: signal.Signals
) -> None:
    workers = ["--env.workers", "2"] if first is signal.SIGTERM else []
    words = ["broken_envs:Stuck", "algorithm:vtrace", "--run-folder", "run", *QUICK, *workers]
    with Session(words, tmp_path) as session:
        session.wait_for_line("run folder", tmp_path / "run")
        session.let_run(1.5)  # until the environment hangs: the file that says so is the trial's
        children = psutil.Process(session.process.pid).children(recursive=True)
        session.signal(first)
        with pytest.raises(Exception, match="timed out"):
            session.process.wait(1.0)  # the update cannot be finished: an environment is stuck
        session.signal(second)
        code, _, err = session.end()
    assert code == 128 + second
    assert "Traceback" not in err
    assert re.search(
        r"gossamer: Saving a checkpoint, then stopping, within \d\d s. Press Ctrl-C again", err
    )
    assert "\ngossamer: Ended without saving. The run can be resumed" in err
    assert len(children) >= len(workers)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    for process in alive:
        process.kill()
    assert not alive, "workers end with their run"


@pytest.mark.parametrize("workers", [slow("0"), "2"])
def test_a_closed_terminal_saves_and_ends_the_run(tmp_path: Path, workers: str) -> None:
    folder = tmp_path / "run"
    words = ["CartPole-v1", "--run-folder", str(folder), *QUICK, "--env.workers", workers]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer", "train", *words, f"--total-env-steps={TOTAL}"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    reading = threading.Thread(target=drain, args=(ours,), daemon=True)
    reading.start()
    try:
        wait_for(lambda: env_steps_logged(folder) > 0 or process.poll() is not None, "training")
        assert process.poll() is None
        children = psutil.Process(process.pid).children(recursive=True)
        os.close(ours)  # as a terminal does that is closed: everyone in it gets SIGHUP
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
    summary = summary_of(folder)
    assert summary["exit_reason"] == "stopped by SIGHUP"
    assert checkpoints(folder)[-1] == summary["updates"]
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert not alive


def drain(descriptor: int) -> None:
    """Read what a terminal shows until it is closed."""
    with suppress(OSError):
        while os.read(descriptor, 4096):
            pass


def test_nohup_is_heard(tmp_path: Path) -> None:
    words = ["CartPole-v1", "--run-folder", "run", f"--total-env-steps={TOTAL}", *QUICK]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # children begin with what is ignored
    try:
        with Session(words, tmp_path, forked=False) as session:  # which ignores what this does
            folder = tmp_path / "run"
            session.wait_for(lambda: env_steps_logged(folder), "a row of metrics")
            session.signal(signal.SIGHUP)
            seen = env_steps_logged(folder)
            session.wait_for(lambda: env_steps_logged(folder) > seen, "another row")
    finally:
        signal.signal(signal.SIGHUP, before)
