"""gossamer in somebody else's program: settings by name, signals handed over, scripts that are imported again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from counting_envs import Counting
from programs import Program
from runs import rows_of
from waiting import PATIENCE_SECONDS, wait_for

import gossamer
from gossamer.errors import ConfigError, RunFailed
from gossamer.system.signals import REPEAT_SECONDS

SUPPORT = Path(__file__).parents[1] / "support"
SHORT = {
    "algorithm": "a2c",
    "placement": "inline",
    "evaluation.every_seconds": 0,
    "num_envs": 2,
    "unroll_length": 8,
}


def script(folder: Path, text: str) -> subprocess.Popen[str]:
    """Run a script in a Python of its own."""
    (folder / "script.py").write_text(text)
    return subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=folder,
        env=with_support(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def with_support() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}


class Forked(Program):
    """A script that begins at once."""

    def __init__(self, folder: Path, text: str):
        self._out, self._err, file = (folder / x for x in ("out.txt", "err.txt", "script.py"))
        for path, content in ((self._out, ""), (self._err, ""), (file, text)):
            path.write_text(content)
        super().__init__([], folder, with_support(), self._out, self._err, file)

    def communicate(self, timeout: float = PATIENCE_SECONDS) -> tuple[str, str]:
        self.wait(timeout)
        return self._out.read_text(), self._err.read_text()


def test_a_programs_function_is_told_rows_and_stops_the_run(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []

    def on_row(row: dict[str, Any]) -> bool:
        rows.append(row)
        return len(rows) == 2

    folder = tmp_path / "run"
    given = {**SHORT, "total_env_steps": 10**9, "run_folder": str(folder)}
    result = gossamer.train("CartPole-v1", quiet=True, on_row=on_row, **given)
    assert result.summary["exit"] == {"kind": "stopped", "cause": "on_row"}
    assert rows == rows_of(folder), "nothing more and nothing else, the last row included"
    assert result.summary["updates"] == rows[-1]["updates"]
    assert list((folder / "checkpoints").iterdir())

    del rows[:]
    end = result.summary["env_steps"] + 64
    again = gossamer.train(resume=result, total_env_steps=end, quiet=True, on_row=rows.append)
    assert again.summary["exit"]["kind"] == "done"
    assert rows[-1]["env_steps"] >= end, "what returns nothing stops nothing"


def test_a_config_that_is_refused_leaves_no_thread() -> None:
    config = replace(gossamer.make_config("CartPole-v1"), total_env_steps=-1)
    with pytest.raises(ConfigError):
        gossamer.train(config)
    wait_for(
        lambda: "beginning" not in [thread.name for thread in threading.enumerate()], "its end"
    )


def test_a_run_that_a_function_stops_plays_its_last_evaluation(tmp_path: Path) -> None:
    def stopped_after(env_steps: int) -> tuple[dict[str, Any], list[Any]]:
        folder = tmp_path / str(env_steps)
        given = {**SHORT, "total_env_steps": env_steps, "run_folder": str(folder)}
        given |= {"evaluation.every_seconds": 1000.0, "evaluation.episodes": 1}
        result = gossamer.train("CartPole-v1", quiet=True, on_row=lambda _: True, **given)
        return result.summary, [row["updates"] for row in rows_of(folder, "evaluation")]

    summary, evaluated = stopped_after(10**9)
    assert summary["exit"] == {"kind": "stopped", "cause": "on_row"}
    assert evaluated == [summary["updates"]]
    summary, evaluated = stopped_after(16)
    assert summary["exit"]["kind"] == "done", "nobody stops what has ended"
    assert evaluated == [summary["updates"]]


def test_several_learners_tell_one_row_of_the_run(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    given = {**SHORT, "num_learners": 2, "topology": "gossip", "run_folder": str(tmp_path / "run")}
    # A number, such as one of characters written, asks for nothing.
    result = gossamer.train(
        "CartPole-v1",
        quiet=True,
        total_env_steps=640,
        on_row=lambda x: rows.append(x) or 7,
        **given,
    )
    assert result.summary["exit"]["kind"] == "done"
    assert rows[-1]["env_steps"] == result.summary["env_steps"]
    assert {row["learner"] for row in rows} == {0}
    assert "learner/return_of_1" in rows[-1]


@pytest.mark.parametrize("kind", [ValueError, ConnectionError, ConfigError, SystemExit])
def test_an_error_in_a_programs_function_ends_the_run(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    def on_row(row: dict[str, Any]) -> None:
        raise kind(f"no {len(row) > 0}")

    given = {**SHORT, "total_env_steps": 10**9, "run_folder": str(tmp_path / "run")}
    with pytest.raises(RunFailed, match=f"^on_row raised {kind.__name__}: no True"):
        gossamer.train("CartPole-v1", quiet=True, on_row=on_row, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: 0, r'train\("my_module:make_env"\)$'),
        (Counting, r'train\("counting_envs:Counting"\)$'),
        (Counting(), r'module:NAME, as many are made: train\("my_module:make_env"\)$'),
        (gymnasium.make("CartPole-v1"), r'train\("CartPole-v1"\)$'),
        (partial(Counting), r'train\("my_module:make_env"\)$'),
        (7, r"it takes an environment's id, settings by name, or a config"),
    ],
)
def test_an_environment_is_given_by_the_name_of_what_makes_it(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        gossamer.train(given)


def test_a_programs_function_may_play_with_the_run_from_its_first_row_on(tmp_path: Path) -> None:
    means: list[float] = []

    def on_row(row: dict[str, Any]) -> bool:
        means.append(gossamer.evaluate(tmp_path / "run", episodes=1).mean)
        return True

    given = {**SHORT, "total_env_steps": 10**9, "run_folder": str(tmp_path / "run")}
    gossamer.train("CartPole-v1", quiet=True, on_row=on_row, **given)
    assert means[0] >= 1.0


def test_settings_are_given_as_people_do(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    first = gossamer.train("CartPole-v1", run_folder=run, total_env_steps=160, quiet=True, **SHORT)
    assert first.folder == tmp_path / "run"
    again = gossamer.train(resume=run, total_env_steps=320, quiet=True)
    assert again.summary["env_steps"] >= 320
    told = {"env_id": "CartPole-v1", "run_folder": str(tmp_path / "b"), **SHORT}
    found = gossamer.train(told, total_env_steps=160, quiet=True, optimizer={"learning_rate": 1e-3})
    assert found.summary["exit_reason"].startswith("done")
    made = gossamer.make_config("CartPole-v1", {**told, "run_folder": str(tmp_path / "c")})
    with pytest.raises(ConfigError, match="total_env_steps and a config are both given"):
        gossamer.train(made, total_env_steps=160)
    for wrong in (3, None, ["CartPole-v1"]):
        with pytest.raises(
            ConfigError, match="it takes an environment's id, settings by name"
        ) as x:
            gossamer.train(wrong)  # type: ignore[arg-type]
        assert "\n" not in str(x.value)
    with pytest.raises(ConfigError, match="did you mean total_env_steps"):
        gossamer.train("CartPole-v1", total_env_step=100)


LOOP = """\
import signal, sys, gossamer
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has perhaps turned off for what runs behind it
{before}
for seed in range(3):
    print("training", seed, flush=True)
    try:
        gossamer.train("CartPole-v1", seed=seed, run_folder=f"run{{seed}}", quiet=True, **{short})
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise SystemExit(7)
    finally:
        print("left", flush=True)
"""


def when_it_learns(process: subprocess.Popen[str] | Forked, folder: Path) -> None:
    wait_for(lambda: rows_of(folder) or process.poll() is not None, "learning")
    assert process.poll() is None, process.communicate()


@pytest.mark.parametrize(
    ("start", "number", "before", "code", "said"),
    [
        (script, signal.SIGINT, "", 7, ["training 0", "interrupted", "left"]),
        (Forked, signal.SIGTERM, "", -signal.SIGTERM, ["training 0"]),
        (Forked, signal.SIGUSR1, "", -signal.SIGUSR1, ["training 0"]),
        (
            Forked,
            signal.SIGTERM,
            "signal.signal(signal.SIGTERM, lambda *_: (print('heard', flush=True), sys.exit(5)))",
            5,
            ["training 0", "heard", "left"],
        ),
    ],
)
def test_a_signal_saves_and_is_then_handed_over(
    tmp_path: Path, start: Any, number: int, before: str, code: int, said: list[str]
) -> None:
    process = start(tmp_path, LOOP.format(before=before, short=SHORT))
    when_it_learns(process, tmp_path / "run0")
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == code, err
    assert out.splitlines() == said
    assert (
        f"stopped by {signal.Signals(number).name}" in (tmp_path / "run0/summary.json").read_text()
    )
    assert [*(tmp_path / "run0" / "checkpoints").glob("[0-9]*")]
    assert not (tmp_path / "run1").exists()


def test_two_interrupts_leave_the_users_process_alive(tmp_path: Path) -> None:
    text = f"""\
import pathlib, signal, time, gossamer
signal.signal(signal.SIGINT, signal.default_int_handler)
import gossamer.run.supervisor as supervisor

saves = supervisor.Supervisor.finish_saving
def slow(self):  # saving takes so long that the second one comes meanwhile
    supervisor.Supervisor.finish_saving = saves
    pathlib.Path("saves").touch()
    for _ in range(100):
        time.sleep(0.1)
    saves(self)
try:
    supervisor.Supervisor.finish_saving = slow
    gossamer.train("CartPole-v1", run_folder="run", **{SHORT})
except KeyboardInterrupt:
    print("interrupted", flush=True)
print("goes on", flush=True)
"""
    process = Forked(tmp_path, text)
    when_it_learns(process, tmp_path / "run")
    process.send_signal(signal.SIGINT)
    wait_for((tmp_path / "saves").exists, "saving")
    time.sleep(2 * REPEAT_SECONDS)  # else both are one
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out.splitlines()) == (0, ["interrupted", "goes on"]), err


NO_GUARD = """\
import gossamer
print(gossamer.train("cases_envs:Start", run_folder="run", total_env_steps=100, **{settings}).summary)
"""


@pytest.mark.parametrize("guarded", [False, True])
def test_a_script_that_would_do_everything_again_is_told_of_the_guard(
    tmp_path: Path, guarded: bool
) -> None:
    text = NO_GUARD.format(settings={**SHORT, "env.workers": 2})
    if guarded:
        first, rest = text.split("\n", 1)
        text = f'{first}\nif __name__ == "__main__":\n    {rest}'
    process = script(tmp_path, text)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    if guarded:
        assert process.returncode == 0, err
        assert "total_env_steps reached" in out
        return
    assert process.returncode == 1
    last = err.strip().splitlines()[-1]
    assert 'put what it does below if __name__ == "__main__":' in last
    assert "leave env.workers out" in last
    assert len(err.splitlines()) < 12, "the traceback of one refusal"
    assert not (tmp_path / "run").exists()


OWN_ID = """\
import gymnasium, gossamer, cases_envs
gymnasium.register("Mine-v0", entry_point=cases_envs.Start)
settings = {settings}
if __name__ == "__main__":
    gossamer.train("Mine-v0", run_folder="run", total_env_steps=100, **settings)
"""


def test_ids_of_this_program_alone_are_told_of_before_a_folder_is_made(tmp_path: Path) -> None:
    two = {"num_learners": 2, "topology": "gossip"}
    for whose, more in (("learners", two), ("actors", {"actors_per_learner": 1})):
        settings = {**SHORT, **more, "placement": "local"}
        process = Forked(tmp_path, OWN_ID.format(settings=settings))
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        last = err.strip().splitlines()[-1]
        assert f"Mine-v0 is registered in this program alone, and {whose}" in last
        assert "module:Mine-v0" in last
        assert "placement inline" in last
        assert not (tmp_path / "run").exists()
    process = Forked(tmp_path, OWN_ID.format(settings=SHORT))
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err


def test_a_simulator_with_processes_of_its_own_is_told_of_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODE", "children")
    with pytest.raises(ConfigError, match=r"starts processes of its own.*: --env\.workers 0$"):
        gossamer.train(
            "cases_envs:Habits",
            run_folder=str(tmp_path / "run"),
            total_env_steps=100,
            **{**SHORT, "env.workers": 2},
        )
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_any_other_simulator_that_workers_cannot_make(tmp_path: Path) -> None:
    said = r"in a worker process .* cannot be made: RuntimeError: no display .*--env\.workers 0"
    with pytest.raises(ConfigError, match=said):
        gossamer.train(
            "cases_envs:not_in_workers",
            run_folder=str(tmp_path / "run"),
            total_env_steps=100,
            **{**SHORT, "env.workers": 2},
        )
