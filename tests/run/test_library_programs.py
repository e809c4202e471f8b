"""What programs around gossamer do: define parts in notebooks, train again and again, hand numbers and streams of their own."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from waiting import PATIENCE_SECONDS

import gossamer
from gossamer.algorithms.a2c import A2C
from gossamer.config import make_config
from gossamer.envs.render import without_screen
from gossamer.errors import ConfigError, RunFailed
from gossamer.machine import MissingExtra
from gossamer.replay.ring import Ring
from gossamer.run.stopping import hand_over
from gossamer.system.devices import kept_algorithms, use_deterministic_algorithms

SHORT: dict[str, Any] = {
    "algorithm": "a2c",
    "placement": "inline",
    "evaluation.every_seconds": 0,
    "num_envs": 2,
    "unroll_length": 8,
    "total_env_steps": 64,
}


def defined_anew(entropy: float) -> type[A2C]:
    """What running a notebook's cell again makes: another class of the same name."""

    @dataclass(frozen=True)
    class Mine(A2C):
        name = "mine"
        sharpness: float = entropy

    Mine.__module__, Mine.__qualname__ = "__main__", "MineOfACell"
    return Mine


def test_a_class_that_is_defined_again_is_the_one_that_trains() -> None:
    for entropy in (0.25, 0.5):
        config = make_config("CartPole-v1", {"algorithm": defined_anew(entropy)})
        assert getattr(config.algorithm, "sharpness") == entropy  # noqa: B009 - of that class


OWN = """
import sys
from dataclasses import dataclass
import gossamer
from gossamer.algorithms.a2c import A2C

@dataclass(frozen=True)
class Mine(A2C):
    name = "mine"

short = {short}
if sys.argv[1] == "train":
    gossamer.train("CartPole-v1", **{{**short, "algorithm": Mine}}, run_folder="run", quiet=True)
else:
    print(gossamer.evaluate("run", episodes=1).mean)
    print(gossamer.train(resume="run", total_env_steps=128, quiet=True).summary["env_steps"])
    print(gossamer.train(resume="run", algorithm=Mine, total_env_steps=192, quiet=True).summary["env_steps"])
"""


def test_a_run_of_a_scripts_own_class_goes_on_in_the_same_script(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN.format(short=SHORT))
    for word in ("train", "on"):
        done = subprocess.run(
            [sys.executable, "own.py", word],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    _, first, second = map(float, done.stdout.split())
    assert 128 <= first < 192 <= second


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_a_finished_run_keeps_no_replays(tmp_path: Path, placement: str) -> None:
    """The next one of this process may need the memory, long before the collector comes."""
    gc.collect()
    before = sum(type(x) is Ring for x in gc.get_objects())
    gc.disable()
    try:
        given = SHORT | {"algorithm": "laser", "replay_ratio": 1, "placement": placement}
        given |= {"replays.1.capacity_steps": 4096, "run_folder": str(tmp_path / "run")}
        gossamer.train("CartPole-v1", **given, quiet=True)
        assert sum(type(x) is Ring for x in gc.get_objects()) == before
    finally:
        gc.enable()


def test_a_resume_that_names_another_folder_is_refused(tmp_path: Path) -> None:
    run = gossamer.train("CartPole-v1", **SHORT, run_folder=tmp_path / "run", quiet=True)
    for name in ("run_folder", "init_from"):
        with pytest.raises(ConfigError, match=f"{name} cannot be given with resume"):
            gossamer.train(resume=run, total_env_steps=128, **{name: tmp_path / "other"})
        with pytest.raises(ConfigError, match=f"{name} cannot be given with resume"):
            gossamer.make_config(settings={name.replace("_", "-"): "other"}, resume=run)
    assert not (tmp_path / "other").exists()
    # A program that begins a run or goes on with it gives both the same folder.
    given = {"run_folder": tmp_path / "run", "init_from": tmp_path / "other"}
    again = gossamer.train(resume=run, total_env_steps=128, **given, quiet=True)
    assert again.summary["env_steps"] >= 128


def test_what_is_no_text_in_the_module_path_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python does, also where processes are given the path."""
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    several = {"placement": "local", "num_learners": 2, "run_folder": tmp_path / "run"}
    run = gossamer.train("CartPole-v1", **SHORT | several, quiet=True)
    assert run.summary["env_steps"] >= 64


def test_numbers_of_numpy_and_paths_are_settings(tmp_path: Path) -> None:
    first = gossamer.train("CartPole-v1", **SHORT, run_folder=tmp_path / "first", quiet=True)
    given = {"seed": np.int64(7), "optimizer.learning_rate": np.geomspace(1e-3, 1e-2, 3)[1]}
    given |= {"policy.hidden_sizes": np.array([64, 64]), "init_from": first}
    config = make_config("CartPole-v1", given)
    assert (config.seed, config.policy.hidden_sizes) == (7, (64, 64))
    assert config.optimizer.learning_rate == pytest.approx((10**-2.5,))
    assert Path(config.init_from) == tmp_path / "first"


def test_a_run_begins_with_the_same_function_as_the_policys_run(tmp_path: Path) -> None:
    """The same parameters compute something else with another activation, or with actions that are scaled."""
    given = {**SHORT, "policy": {"activation": "relu", "normalize_obs": False, "squash": True}}
    first = gossamer.train(
        "Pendulum-v1", **given | {"algorithm": "ppo"}, run_folder=tmp_path / "first", quiet=True
    )
    # Squashed actions are scaled without it.
    begun = {**SHORT, "init_from": first, "total_env_steps": 16, "policy.scale_actions": False}
    second = gossamer.train("Pendulum-v1", **begun, run_folder=tmp_path / "second", quiet=True)

    def earned(run: Any, **which: Any) -> tuple[float, ...]:
        return gossamer.evaluate(run, episodes=2, **which).returns

    assert earned(second, checkpoint=0) == earned(first)
    config = make_config("Pendulum-v1", begun)
    assert config.algorithm.value_norm, "A2C would not normalise the values that PPO has"
    assert "computes something else" not in (tmp_path / "second" / "log.txt").read_text()
    changed = {"policy.activation": "tanh", "algorithm.value_norm": False}
    gossamer.train("Pendulum-v1", **begun, **changed, run_folder=tmp_path / "third", quiet=True)
    told = "computes something else with algorithm.value_norm True -> False, policy.activation relu -> tanh"
    assert told in (tmp_path / "third" / "log.txt").read_text()


def test_values_that_were_not_normalised_stay_so(tmp_path: Path) -> None:
    """Deviations of what comes would scale predictions that are returns already."""
    plain = {**SHORT, "algorithm": "ppo", "algorithm.value_norm": False}
    first = gossamer.train("Pendulum-v1", **plain, run_folder=tmp_path / "first", quiet=True)
    begun = {**SHORT, "algorithm": "ppo", "init_from": first}
    assert make_config("Pendulum-v1", {**begun, "init_from": ""}).algorithm.value_norm
    assert not make_config("Pendulum-v1", begun).algorithm.value_norm
    changed = {**begun, "algorithm.value_norm": True, "total_env_steps": 16}
    gossamer.train("Pendulum-v1", **changed, run_folder=tmp_path / "second", quiet=True)
    told = "computes something else with algorithm.value_norm False -> True"
    assert told in (tmp_path / "second" / "log.txt").read_text()


def test_what_a_policys_run_imports_is_not_imported_by_another(tmp_path: Path) -> None:
    first = gossamer.train("CartPole-v1", **SHORT, run_folder=tmp_path / "first", quiet=True)
    path = first.folder / "config.json"
    path.write_text(path.read_text().replace('"torso": "auto"', '"torso": "os:abort"'))
    assert make_config("CartPole-v1", {"init_from": first}).policy.torso == "auto"
    with pytest.raises(ConfigError, match="no run"):
        make_config("CartPole-v1", {"init_from": tmp_path / "nowhere"})


class OnlyWrites:
    def write(self, text: str) -> None:
        pass

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("stream", [None, OnlyWrites()])
def test_standard_output_may_be_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: Any
) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    run = gossamer.train("CartPole-v1", **SHORT, run_folder=str(tmp_path / "run"), quiet=True)
    assert run.summary["env_steps"] >= 64


def test_an_event_loop_hears_the_signal_that_stopped_a_run() -> None:
    """It is told by the system's handler, through a pipe; what Python calls is none of its."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.signal(signal.SIGUSR1, lambda *_: None), signal.set_wakeup_fd(write)
    try:
        hand_over(signal.SIGUSR1)
        assert os.read(read, 1) == bytes([signal.SIGUSR1])
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.set_wakeup_fd(before[1])
        os.close(read)
        os.close(write)
    hand_over(0)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_a_run_that_a_signal_has_reached_may_fail(tmp_path: Path, number: signal.Signals) -> None:
    """A program's own handler hears of the signal; what else it would do would hide the failure."""
    heard: list[int] = []
    own: Any = lambda number, _: heard.append(number)  # noqa: E731
    others = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = signal.signal(number, others.get(number, own))

    def fail(row: dict[str, Any]) -> bool:
        signal.raise_signal(number)
        raise ValueError("the disk is on fire")

    try:
        with pytest.raises(RunFailed, match="on fire"):
            gossamer.train(
                "CartPole-v1", **SHORT, run_folder=tmp_path / "run", on_row=fail, quiet=True
            )
    finally:
        signal.signal(number, before)
    assert heard == [number] * (number not in others)


def test_an_interrupt_that_is_being_handled_is_none_of_the_run(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    given = SHORT | {"run_folder": tmp_path / "run", "quiet": True}
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        gossamer.train("CartPole-v1", **given, on_row=lambda _: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]


def test_a_missing_extra_comes_back_from_another_process() -> None:
    error = pickle.loads(pickle.dumps(MissingExtra("HalfCheetah-v5 needs mujoco", "mujoco")))
    assert isinstance(error, ConfigError)
    assert str(error).startswith("HalfCheetah-v5 needs mujoco, which is not installed; type: ")


def test_a_programs_function_may_take_longer_than_patience(tmp_path: Path) -> None:
    """The actors wait for the learner, which waits for it."""
    rested = threading.Event()

    def rest(row: dict[str, Any]) -> None:
        if not rested.is_set():
            rested.set()
            threading.Event().wait(13.0)

    given = SHORT | {"placement": "local", "algorithm": "vtrace", "total_env_steps": 512}
    given |= {"run_folder": tmp_path / "run", "patience_seconds": 5.0}
    run = gossamer.train("CartPole-v1", **given, on_row=rest, quiet=True)
    assert rested.is_set()
    assert run.summary["env_steps"] >= 512


@pytest.mark.parametrize(("own", "warns"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("runs", [False, True])
def test_a_run_leaves_a_programs_choice_of_algorithms(own: bool, warns: bool, runs: bool) -> None:
    before = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(own, warn_only=warns)
    try:
        with kept_algorithms():
            use_deterministic_algorithms(runs)
            assert torch.are_deterministic_algorithms_enabled() is runs
        assert torch.are_deterministic_algorithms_enabled() is own
        assert torch.is_deterministic_algorithms_warn_only_enabled() is warns
        assert torch.backends.cudnn.benchmark is before
        assert torch.utils.deterministic.fill_uninitialized_memory is True
    finally:
        torch.use_deterministic_algorithms(False)


def test_videos_leave_a_program_its_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    monkeypatch.setenv("SDL_AUDIODRIVER", "pulse")
    with without_screen():
        assert os.environ["SDL_VIDEODRIVER"] == "dummy"
        assert os.environ["SDL_AUDIODRIVER"] == "pulse"
    assert "SDL_VIDEODRIVER" not in os.environ
    assert os.environ["SDL_AUDIODRIVER"] == "pulse"


def test_threads_that_begin_later_compute_with_the_programs_number(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        gossamer.train("CartPole-v1", **SHORT, run_folder=tmp_path / "run", quiet=True)
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


def test_no_episodes_are_refused(tmp_path: Path) -> None:
    run = gossamer.train("CartPole-v1", **SHORT, run_folder=tmp_path / "run", quiet=True)
    for count in (0, -1):
        with pytest.raises(ConfigError, match=f"episodes is {count}; it must be >= 1"):
            gossamer.evaluate(run, episodes=count)
