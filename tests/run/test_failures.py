"""Runs that cannot go on: they end soon, with exit code 1, one line last, and keep what they had."""

from __future__ import annotations

import errno
import os
import re
import resource
import shlex
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import broken_envs
import psutil
import pytest
from runs import rows_of, state_of
from sessions import QUICK, checkpoints, summary_of, wait_for

import gossamer.envs.repeats
import gossamer.run.placements.loop_overlapped
from gossamer import cli
from gossamer.record.checkpoint import CheckpointStore
from gossamer.record.metrics import MetricLog


def train(env_id: str, folder: Path, *words: str, steps: int = 100_000) -> int:
    common = ["--run-folder", str(folder), "--total-env-steps", str(steps)]
    return cli.main(["train", env_id, *common, *QUICK, *words])


def env_workers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def failed(folder: Path, capsys: Any) -> list[str]:
    """Check what every failed run leaves; return the lines of standard error."""
    summary = summary_of(folder)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert summary["exit_reason"].startswith("failed: ")
    assert all(x.startswith("making ") for x in out.splitlines()), "as on a busy machine"
    assert lines[-1].startswith("gossamer: ")
    why, *then = re.split(
        "; (?:next|once this is repaired or caught): ", lines[-1].removeprefix("gossamer: ")
    )
    assert why in summary["exit_reason"] or "write" in why
    words = ["gossamer", "train", "--resume", str(folder)] if checkpoints(folder) else []
    assert shlex.split("".join(then)) == words, "what can be typed again, with a space too"
    (ended,) = [line for line in lines if line.startswith("failed")]
    assert re.match(r"failed: [\d,]+ env steps, \d+ s", ended), (
        "the reason is said once, at the end"
    )
    assert "Traceback" in (folder / "log.txt").read_text()
    return lines


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_an_env_that_raises(tmp_path: Path, placement: str, capsys: Any) -> None:
    assert train("broken_envs:Raises", tmp_path / "a run", "--placement", placement) == 1
    lines = failed(tmp_path / "a run", capsys)
    assert lines[-2] == "ValueError: the motor is on fire", "its traceback is the last thing"
    assert any("_ignite_motor" in line for line in lines)
    assert lines[-1].startswith("gossamer: environment ")
    assert "failed in episode 0: ValueError: the motor is on fire" in lines[-1]


def test_an_env_that_raises_in_a_worker(tmp_path: Path, capsys: Any) -> None:
    assert train("broken_envs:Raises", tmp_path / "a run", "--env.workers", "2") == 1
    lines = failed(tmp_path / "a run", capsys)
    assert lines[-2] == "ValueError: the motor is on fire"
    assert not env_workers(), "the other one has ended"


def test_a_killed_worker(tmp_path: Path, capsys: Any) -> None:
    def kill_one() -> None:
        wait_for(lambda: rows_of(tmp_path / "a run"), "training")
        env_workers()[-1].kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    code = train("CartPole-v1", tmp_path / "a run", "--env.workers", "2", steps=10_000_000)
    killer.join()
    assert code == 1
    assert "exit code -9) died" in failed(tmp_path / "a run", capsys)[-1]


@pytest.mark.parametrize("placement", ["inline", "local"])
@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        ("broken_envs:NanReward", "the environment's rewards are not finite"),
        ("broken_envs:NanObs", "entry 0 of its observation is nan; it must be a finite number"),
    ],
)
def test_numbers_that_are_not_finite_end_the_run(
    tmp_path: Path, env_id: str, said: str, placement: str, capsys: Any
) -> None:
    assert train(env_id, tmp_path / "a run", "--placement", placement) == 1
    assert said in failed(tmp_path / "a run", capsys)[-1]


def test_one_number_that_is_not_finite_is_skipped_and_counted(tmp_path: Path) -> None:
    broken_envs.NanOnce.steps_of_all, broken_envs.NanOnce.spoilt = 0, False
    assert train("broken_envs:NanOnce", tmp_path / "a run", steps=640) == 0
    assert broken_envs.NanOnce.spoilt
    assert rows_of(tmp_path / "a run")[-1]["learner/nonfinite_updates"] == 1
    state = state_of(tmp_path / "a run")
    learnt = [x for name, x in state.items() if name.startswith("learner.")]
    assert all(x.isfinite().all() for x in learnt if x.is_floating_point())


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """As a full disk does: writing beyond this size fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with a checkpoint."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    assert train("CartPole-v1", folder, steps=256) == 0
    return folder


def test_a_disk_that_fills_up_keeps_the_last_checkpoint(
    tmp_path: Path, saved: Path, capsys: Any
) -> None:
    shutil.copytree(saved, tmp_path / "a run")
    before = checkpoints(saved)
    words = ["--total-env-steps=1e6", "--checkpoint-every-seconds", "0.05"]
    capsys.readouterr()
    with largest_file(20_000):  # logs fit, a checkpoint does not
        assert cli.main(["train", "--resume", str(tmp_path / "a run"), *words]) == 1
    assert "the last checkpoint is kept" in failed(tmp_path / "a run", capsys)[-1]
    assert checkpoints(tmp_path / "a run") == before
    assert not list((tmp_path / "a run").rglob("*.partial"))
    again = ["train", "--resume", str(tmp_path / "a run"), "--total-env-steps", "512"]
    assert cli.main(again) == 0, "with room it goes on"


def test_a_disk_too_full_for_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Nothing at all can be written any more: still one line and the right exit code."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    from gossamer.record.folder import RunFolder
    from gossamer.record.metrics import MetricLog

    monkeypatch.setattr(MetricLog, "write", full)
    log = RunFolder.log
    monkeypatch.setattr(
        RunFolder, "log", lambda self, text: full() if "Traceback" in text else log(self, text)
    )
    assert train("CartPole-v1", tmp_path / "a run") == 1
    err = capsys.readouterr().err.splitlines()
    assert "No space left on device" in err[-1]
    assert "Traceback" not in "\n".join(err)


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_a_stuck_env_is_given_up(
    tmp_path: Path, placement: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(gossamer.run.placements.loop_overlapped, "JOIN_SECONDS", 0.1)
    monkeypatch.setattr(gossamer.envs.repeats, "TRIAL_SECONDS", 0.1)  # the trial is stuck too
    broken_envs.RELEASED.clear()
    try:
        words = ["--placement", placement, "--patience-seconds", "1"]
        assert train("broken_envs:Stuck", tmp_path / "a run", *words) == 1
    finally:
        broken_envs.RELEASED.set()
    last = failed(tmp_path / "a run", capsys)[-1]
    assert "no sign of life" in last
    assert re.search(r"environment 0 .*is in step; .*--patience-seconds \d", last)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("the evaluator broke"), "RuntimeError: the evaluator broke"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    ],
)
def test_an_error_of_the_evaluator_ends_the_run(
    tmp_path: Path, error: Exception, says: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("gossamer.roles.evaluation.play", broken)
    code = train(
        "CartPole-v1", tmp_path / "a run", "--evaluation.every-seconds", "0.01", steps=10**7
    )
    assert code == 1
    assert says in failed(tmp_path / "a run", capsys)[-1]


def test_an_error_of_the_checkpoint_writer_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise TypeError("cannot be written")

    monkeypatch.setattr(CheckpointStore, "save", broken)
    assert train("CartPole-v1", tmp_path / "a run", steps=64) == 1
    assert "cannot be written" in failed(tmp_path / "a run", capsys)[-1]


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_an_env_that_cannot_come_back_resumes_with_new_episodes(
    tmp_path: Path, placement: str, capsys: Any
) -> None:
    words = ["--placement", placement, "--lag", "1"]
    assert train("broken_envs:Unseeded-v0", tmp_path / "a run", *words, steps=256) == 0
    again = ["train", "--resume", str(tmp_path / "a run"), "--total-env-steps", "512"]
    assert cli.main(again) == 0
    told = "resumed with new episodes (not exactly: it is registered as nondeterministic) at "
    assert told in capsys.readouterr().err
    assert summary_of(tmp_path / "a run")["env_steps"] >= 512


def test_a_disk_that_is_gone_hides_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """As a folder of another machine whose connection has broken: nobody knows whether there are checkpoints."""
    iterdir, write = Path.iterdir, MetricLog.write

    def gone(path: Path, *_: Any) -> Any:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    def breaks(log: MetricLog, row: Any) -> None:
        monkeypatch.setattr(
            Path, "iterdir", lambda path: (gone if path.name == "checkpoints" else iterdir)(path)
        )
        write(log, row)
        gone(tmp_path)

    monkeypatch.setattr(MetricLog, "write", breaks)
    folder = tmp_path / "a run"
    assert train("CartPole-v1", folder, "--checkpoint-every-seconds", "0") == 1
    assert "Transport endpoint is not connected" in capsys.readouterr().err.splitlines()[-1]
    assert summary_of(folder)["exit_reason"].startswith("failed")
