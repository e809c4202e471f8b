"""`gossamer bench` ends in its time, makes no more environments than it needs, and tells what it had no time for."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

from gossamer.config import make_config
from gossamer.envs.registry import make_vec_env
from gossamer.errors import RunFailed
from gossamer.roles.learner import Learner
from gossamer.tools import bench


class Counted:
    """Makes environments, slowly, and counts them."""

    def __init__(self, seconds: float = 0.0):
        self.count = 0
        self.seconds = seconds

    def __call__(self, env_id: str, *, num_envs: int, **more: Any) -> Any:
        self.count += num_envs
        time.sleep(self.seconds * num_envs)
        return make_vec_env(env_id, num_envs=num_envs, **more)


def measured(
    monkeypatch: pytest.MonkeyPatch, cores: int, made: Counted, seconds: float
) -> tuple[dict[str, Any], list[str]]:
    monkeypatch.setattr(bench, "num_cores", lambda: cores)
    monkeypatch.setattr(bench, "make_vec_env", made)
    monkeypatch.setattr(bench, "trained_rate", lambda config, **_: 100.0)
    said: list[str] = []
    config = make_config("CartPole-v1", {"num_envs": 4, "unroll_length": 2})
    report = bench.measure(config, seconds=seconds, say=said.append)
    return report, said


@pytest.mark.parametrize(("cores", "envs"), [(1, 16), (2, 32), (4, 64), (96, 64)])
def test_environments_are_as_few_on_any_machine(
    monkeypatch: pytest.MonkeyPatch, cores: int, envs: int
) -> None:
    made = Counted()
    report, said = measured(monkeypatch, cores, made, 4.0)
    assert made.count == envs
    assert f"making {envs} environments" in said
    assert report["env_steps_per_second"] > 0
    assert report["train_steps_per_second"] == 100.0


def test_on_a_slow_machine_fewer_are_made_and_the_rest_is_reckoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Counted(0.1)
    report, said = measured(monkeypatch, 16, made, 6.0)
    assert 1 <= made.count <= 0.25 * 6.0 / 0.1 + 1, "a quarter of the time at most"
    assert report["env_steps_per_second"] > 0
    (line,) = [x for x in said if x.startswith("stepping ")]
    assert "copies at once on 16 cores, for which the rate is scaled up" in line


def test_what_there_is_no_time_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    report, said = measured(monkeypatch, 2, Counted(0.1), 1.0)
    assert report["inference_steps_per_second"] is None
    assert report["limit_steps_per_second"] is None
    assert report["fraction_of_limit"] is None
    assert [x for x in said if x.startswith("inference  not measured: ")]


def test_training_that_did_not_begin_is_no_failure() -> None:
    said: list[str] = []
    config = make_config("CartPole-v1")
    assert bench.trained_rate(config, seconds=1.0, say=said.append) is None
    assert said == ["training    not measured: 1 s were too short for it; --seconds gives more"]


class Failing:
    """Makes environments of which one's simulator fails at some step."""

    def __init__(self, at: int):
        self.left = at

    def __call__(self, env_id: str, **more: Any) -> Any:
        envs = make_vec_env(env_id, **more)
        receives = envs.recv

        def recv() -> Any:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("the simulator broke")
            return receives()

        envs.recv = recv
        return envs


@pytest.mark.parametrize("step", [1, 20])
def test_what_fails_while_it_is_measured_is_no_rate(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Neither of the copy that has failed nor of those beside it, which would be taken for the machine's."""
    with pytest.raises(RuntimeError, match="the simulator broke"):
        measured(monkeypatch, 2, Failing(step), 4.0)


def test_what_does_not_fit_a_gpu_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest batches that are tried need more memory than small ones have."""
    made: list[Learner] = []

    class LittleMemory(Learner):
        def __init__(self, *given: Any, **named: Any):
            super().__init__(*given, **named)
            made.append(self)

        def learn_version(self) -> Any:
            if self is not made[0]:
                raise RunFailed("the GPU's memory is too small to learn 272 rows at a time")
            return super().learn_version()

    monkeypatch.setattr(bench, "Learner", LittleMemory)
    report, _ = measured(monkeypatch, 1, Counted(), 4.0)
    assert report["learner_steps_per_second"] > 0
    assert len(made) == 2, "still larger ones are not tried"


def test_ctrl_c_ends_what_is_being_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cores would be busy for minutes after it, where as many were asked for."""
    before = set(threading.enumerate())
    stepping = threading.Event()

    class Steps(Failing):
        def __call__(self, env_id: str, **more: Any) -> Any:
            envs = super().__call__(env_id, **more)
            sends = envs.send
            envs.send = lambda *actions: (stepping.set(), sends(*actions))
            return envs

    def press() -> None:
        stepping.wait(30.0)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        measured(monkeypatch, 2, Steps(at=0), 600.0)
    wait_for(lambda: set(threading.enumerate()) <= before, "the end of the threads", seconds=30.0)


def test_ctrl_c_as_the_copies_start_ends_those_that_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would wait for the others for a minute, and a command that is stopped waits for its threads."""
    before = set(threading.enumerate())
    starts = threading.Thread.start
    copies: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        copies.append(thread)
        if len(copies) == 2:
            raise KeyboardInterrupt
        starts(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        measured(monkeypatch, 2, Counted(), 600.0)
    wait_for(lambda: set(threading.enumerate()) <= before, "the end of the threads", seconds=30.0)


def test_a_signal_leaves_no_training_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `kill` sends it to this process alone: the run that it has started would go on, and its folder stay."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    folders: list[Path] = []
    started: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def note(command: list[str], **options: Any) -> Any:
        folders.append(Path(command[-1]).parent)
        started.append(start(command, **options))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", note)
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.trained_rate(make_config("CartPole-v1"), seconds=5.0, say=print)
    finally:
        signal.signal(signal.SIGTERM, before)
    wait_for(lambda: started[0].poll() is not None, "the end of the run")
    assert not folders[0].exists()
