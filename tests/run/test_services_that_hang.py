"""Runs whose rows go to a service that does not answer, or fails, as it is begun, told or closed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sessions import QUICK, summary_of

import gossamer
from gossamer import cli
from gossamer.run import stopping

SERVICE = """\
import signal, time

ended = False

class Error(Exception):
    pass

def swallow():
    while not ended:
        try:
            time.sleep(0.05)
        except BaseException:
            pass

def init(**_):
    {begins}
    return Run()

class Run:
    def log(self, *_, **__):
        {logs}

    def finish(self):
        {ends}
"""
HANGS = "signal.raise_signal(signal.SIGINT); time.sleep(60)"
"""Somebody presses Ctrl-C as it takes so long."""


@pytest.fixture
def train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str]]]:
    """Return what trains with a W&B that begins and ends as is said; its exit code and standard error."""
    monkeypatch.setattr(stopping, "RAISE_SECONDS", 0.5)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)

    def train(env_id: str = "CartPole-v1", **how: str) -> tuple[int, str]:
        written = SERVICE.format(**{"begins": "pass", "logs": "pass", "ends": "pass", **how})
        (tmp_path / "wandb.py").write_text(written)
        words = [env_id, "--run-folder", str(tmp_path / "run"), "--total-env-steps", "512"]
        code = cli.main(["train", *words, *QUICK, "--wandb", "--stop-within-seconds", "0.1"])
        return code, capfd.readouterr().err

    yield train
    sys.modules.pop("wandb", None)


def test_a_run_that_is_done_may_be_left_by_a_service_that_hangs(
    tmp_path: Path, train: Callable[..., Any]
) -> None:
    code, err = train(ends=HANGS)
    assert code == 0
    assert "closing was left unfinished" in err
    assert "before training began" not in err
    assert err.splitlines()[-1].startswith("done: total_env_steps reached")
    assert summary_of(tmp_path / "run")["exit_reason"] == "done: total_env_steps reached"


@pytest.mark.parametrize("ends", [HANGS, "raise RuntimeError('the service is gone')"])
def test_what_a_service_does_hides_no_failure(train: Callable[..., Any], ends: str) -> None:
    code, err = train("broken_envs:Raises", ends=ends)
    assert code == 1
    assert "the motor is on fire" in err.splitlines()[-1]


def test_a_service_that_fails_at_the_end_fails_the_run(train: Callable[..., Any]) -> None:
    code, err = train(ends="raise RuntimeError('the service is gone')")
    assert code == 1
    assert "the service is gone" in err.splitlines()[-1]


def test_a_service_that_fails_meanwhile_ends_no_run(
    tmp_path: Path, train: Callable[..., Any]
) -> None:
    """Its process may have been killed: what it is told is in metrics.jsonl too."""
    code, err = train(logs="raise OSError('no\\nconnection')", ends="raise OSError")
    assert code == 0
    told = "no more rows are sent to Weights & Biases in this session: no connection"
    assert err.splitlines().count(told) == 1
    assert summary_of(tmp_path / "run")["exit_reason"] == "done: total_env_steps reached"
    assert told in (tmp_path / "run" / "log.txt").read_text()


def test_who_has_stopped_a_run_before_it_began_is_told(
    tmp_path: Path, train: Callable[..., Any]
) -> None:
    code, err = train(begins=HANGS)
    assert code == 1
    assert err.splitlines()[-1] == "gossamer: stopped before training began by SIGINT"
    assert not (tmp_path / "run").exists()
    given = {"run_folder": str(tmp_path / "run"), "wandb": True, "stop_within_seconds": 0.1}
    with pytest.raises(KeyboardInterrupt):
        gossamer.train("CartPole-v1", quiet=True, **given)


def test_a_failed_run_that_has_to_be_ended_has_failed(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was at, in code that nothing interrupts."""
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        sys.modules["wandb"].ended = True  # type: ignore[attr-defined]

    monkeypatch.setattr(stopping, "end_at_once", end)
    monkeypatch.setattr(stopping, "LAST_RESORT_SECONDS", 1.0)
    _, err = train("broken_envs:Raises", ends="signal.raise_signal(signal.SIGINT); swallow()")
    assert codes[0] == 1
    told, _, _ = err.partition("Traceback")
    assert "\ngossamer: environment " in told, "before the process ends"
