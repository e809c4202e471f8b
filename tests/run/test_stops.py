"""A stop that was asked for comes within the bound that is said, whatever the run is at."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import broken_envs
import psutil
import pytest
from runs import pids_of, rows_of
from sessions import QUICK, Session, checkpoints, run_session, slow, summary_of, wait_for
from slow_algorithms import UPDATE_SECONDS
from waiting import PATIENCE_SECONDS

from gossamer import cli
from gossamer.record.readers import FolderReader, newest_row
from gossamer.run import slow_calls, stopping
from gossamer.run.recorder import Recorder
from gossamer.run.slow_calls import SlowCalls
from gossamer.system.signs_of_life import Sign

WITHIN = ["--stop-within-seconds", "1"]
ENDLESS = [*QUICK, *WITHIN, "--algorithm.passes", "1e12"]
"""A version is never learnt."""


def stop(
    session: Session,
    folder: Path,
    number: signal.Signals = signal.SIGINT,
    *,
    hang: int = 0,
) -> str:
    """Ask a run that has begun to stop; return what it said, if it ended well, and in time.

    Args:
        session: of the run.
        folder: of the run.
        number: of the signal.
        hang: environments that are waited for until they hang; the trial's is the first.
    """
    session.wait_for_line("run folder", folder)
    session.wait_for(
        lambda: not hang or (session.stuck.exists() and session.stuck.stat().st_size >= hang),
        "environments that hang",
    )
    session.let_run(1.5)
    session.signal(number)
    err = session.ends()
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_a_batch_without_end_is_left(tmp_path: Path, placement: str) -> None:
    folder = tmp_path / "run"
    words = ["CartPole-v1", "--run-folder", "run", "--placement", placement, *ENDLESS]
    with Session(words, tmp_path) as session:
        err = stop(session, folder)
    assert "Saving a checkpoint, then stopping, within 1 s." in err
    assert "present batch was abandoned: nothing after env step 0 is saved" in err
    assert summary_of(folder)["exit_reason"] == "stopped by SIGINT"
    assert checkpoints(folder) == [0], "what the run began with"
    with Session(["--resume", "run"], tmp_path) as session:
        session.wait_for_line("resumed exactly", folder)
        err = stop(session, folder)
    assert "nothing after env step 0 is saved" in err, "nor more than before"
    again = ["--resume", "run", "--algorithm.passes", "1", "--total-env-steps", "64"]
    err = run_session(again, tmp_path)
    assert "resumed exactly at 0 env steps" in err
    assert "are lost" not in err, "nothing was learnt"


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_time_is_kept_in_the_midst_of_a_batch(tmp_path: Path, placement: str) -> None:
    words = ["CartPole-v1", "--run-folder", "run", "--placement", placement, *ENDLESS]
    err = run_session([*words, "--stop-after-seconds", "1"], tmp_path)
    summary = summary_of(tmp_path / "run")
    assert "Traceback" not in err
    assert summary["exit_reason"] == "done: stop_after_seconds reached"
    assert summary["seconds"] >= 1


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("broken_envs:Stuck --placement inline", signal.SIGINT),
        slow("broken_envs:Stuck --placement inline", signal.SIGTERM),
        slow("broken_envs:Stuck --placement inline", signal.SIGHUP),
        slow("broken_envs:Stuck --placement local", signal.SIGINT),
        ("broken_envs:Stuck --env.workers 2", signal.SIGINT),
        slow("broken_envs:Spins --placement inline", signal.SIGINT),
        ("broken_envs:Stuck --num-learners 2 topology:gossip", signal.SIGINT),
        slow(
            "broken_envs:StuckInEvaluation --evaluation.every-seconds 0.1 --placement inline",
            signal.SIGINT,
        ),
        ("broken_envs:StuckInEvaluation --evaluation.every-seconds 0.1", signal.SIGINT),
    ],
)
def test_an_environment_that_never_returns_holds_up_no_stop(
    tmp_path: Path, line: str, number: signal.Signals
) -> None:
    words, folder = line.split(), tmp_path / "run"
    evaluates = "broken_envs:StuckInEvaluation" in words
    # what has been learnt is saved within the time, however busy the machine is
    within = ["--stop-within-seconds", "6"] if evaluates else WITHIN
    with Session(
        [words[0], "algorithm:vtrace", "--run-folder", "run", *QUICK, *within, *words[1:]], tmp_path
    ) as session:
        err = stop(session, folder, number, hang=1 if evaluates else 2)
    assert summary_of(folder)["exit_reason"] == f"stopped by {number.name}"
    if evaluates:  # a batch is whole
        assert checkpoints(folder)[-1] == summary_of(folder)["updates"] > 0
        assert "is left" not in err
    elif "--num-learners" in words and checkpoints(folder) == [0]:
        # The trial was what hung, and the learners were asked to end before they had learnt anything.
        assert summary_of(folder)["env_steps"] == 0
    else:
        assert re.search(r"nothing (after env step \d+|at all) is saved", err)
        if "--num-learners" not in words:
            assert "is in step)" in err


def test_a_slow_environment_is_left_between_two_steps(tmp_path: Path) -> None:
    words = ["broken_envs:Slow", "--run-folder", "run", *QUICK, *WITHIN, "--unroll-length", "4096"]
    with Session(words, tmp_path) as session:
        err = stop(session, tmp_path / "run")
    assert "nothing at all is saved" in err or "nothing after env step 0 is saved" in err


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_a_constructor_that_never_returns_holds_up_no_stop(tmp_path: Path, workers: str) -> None:
    kind = "broken_envs:StuckAtStart" if workers == "0" else "broken_envs:StuckInWorkers"
    words = [kind, "--run-folder", "run", *QUICK, "--env.workers", workers]
    with Session([*words, *WITHIN, "--stop-after-seconds", "8"], tmp_path) as session:
        code, out, err = session.end()
    assert code == 1
    assert all(line.startswith("making 4 environments") for line in out.splitlines())
    assert "stopped before training began: --stop-after-seconds 8 have passed" in err
    if workers == "0":  # with workers it may be the trial's
        assert "; environment 0 is in its constructor" in err
    assert len(err.splitlines()) <= 2
    assert not (tmp_path / "run").exists()
    with Session([*words, *WITHIN], tmp_path) as session:
        session.wait_for(session.stuck.exists, "an environment that hangs")
        session.signal(signal.SIGINT)
        code, _, err = session.end()
    assert code == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("command", "number"),
    [("train", signal.SIGTERM), slow("train", signal.SIGINT), ("eval", signal.SIGHUP)],
)
def test_a_signal_while_environments_are_made_closes_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, number: signal.Signals
) -> None:
    """And whoever has sent it sees that it has ended the command."""
    monkeypatch.setenv("SIMULATORS", str(tmp_path))
    monkeypatch.setenv("BEGUN_SECONDS", "0")
    words = ["counting_envs:Begun", "--run-folder", str(tmp_path / "run"), *QUICK]
    if command == "eval":
        assert cli.main(["train", *words, "--total-env-steps", "1"]) == 0
        words = [str(tmp_path / "run")]
    monkeypatch.setenv("BEGUN_SECONDS", "0.2")

    def living() -> list[Path]:
        return [path for path in tmp_path.iterdir() if path.name.isdigit()]

    with Session(
        [*words, *["--num-envs=40"] * (command == "train")], tmp_path, command=command
    ) as session:
        session.wait_for(lambda: len(living()) >= 3, "three simulators")  # a trial has two at most
        session.signal(number)
        code, _, err = session.end()
    assert code == (130 if number == signal.SIGINT else -number)
    assert err.splitlines()[-1] == "gossamer: interrupted"
    assert not living()


@pytest.mark.parametrize(
    ("layout", "batch"),
    [
        (["--num-learners", "2", "--actors-per-learner", "1"], ["--num-envs=30"]),
        (["--actors-per-learner", "1"], ["--unroll-length=100_000"]),
        slow(["--num-learners", "2"], ["--num-envs=30"]),
        slow(["--num-learners", "2"], ["--unroll-length=100_000"]),
    ],
    ids=["making", "playing", "making, learners alone", "playing, learners alone"],
)
def test_processes_close_their_simulators_where_a_stop_has_no_time_for_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: list[str], batch: list[str]
) -> None:
    monkeypatch.setenv("SIMULATORS", str(tmp_path))
    monkeypatch.setenv("BEGUN_SECONDS", "0.2" if "--num-envs=30" in batch else "0")
    words = ["counting_envs:Begun", "--run-folder", "run", *QUICK, *WITHIN, *layout, *batch]

    def living() -> list[Path]:
        return [path for path in tmp_path.iterdir() if path.name.isdigit()]

    with Session(words, tmp_path) as session:
        session.wait_for_line("run folder", tmp_path / "run")
        session.wait_for(lambda: len(living()) >= 3, "three simulators")
        session.let_run(0.5)
        session.signal(signal.SIGINT)
        session.ends()
    assert not living()


def test_libraries_do_not_complain_of_what_ctrl_c_has_left_half_made(tmp_path: Path) -> None:
    words = ["broken_envs:Interrupts", "--run-folder", "run", *QUICK]
    err = run_session(words, tmp_path, code=130, forked=False)
    assert err.splitlines()[-1] == "gossamer: interrupted"


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_an_evaluation_in_which_an_environment_never_returns(tmp_path: Path, workers: str) -> None:
    kind = "broken_envs:StuckInEvaluation" if workers == "0" else "broken_envs:Stuck"
    words = [kind, "--run-folder", "run", *QUICK, "--env.workers", workers]
    run_session([*words, "--lag", "0", "--total-env-steps", "32"], tmp_path)
    with Session(["run", "--episodes", "16"], tmp_path, command="eval") as session:
        session.wait_for(session.stuck.exists, "an environment that hangs")
        session.signal(signal.SIGINT)
        code, _, err = session.end()
    assert code == 130
    assert "evaluation's environment" in err
    assert err.splitlines()[-1] == "gossamer: interrupted"
    assert "Traceback" not in err


def test_an_evaluation_gives_up_a_stuck_environment(tmp_path: Path) -> None:
    words = ["broken_envs:StuckInEvaluation", "--run-folder", "run", *QUICK, "--lag", "0"]
    run_session([*words, "--total-env-steps", "32"], tmp_path)
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps({**settings, "patience_seconds": 5.0}))
    with Session(["run", "--episodes", "4"], tmp_path, command="eval") as session:
        err = session.ends(code=1)
    assert re.fullmatch(
        r"gossamer: evaluation's environment \d has shown no sign of life for \d+ s: it is in step\n",
        err,
    )


@pytest.mark.parametrize("layout", [["--learners-per-process", "2"], []])
def test_a_learner_whose_environment_is_stuck_ends_the_run(
    tmp_path: Path, layout: list[str]
) -> None:
    words = ["broken_envs:StuckOnce", "--run-folder", "run", *QUICK, "--patience-seconds", "2"]
    several = ["--num-learners", "4" if layout else "2", "topology:gossip", *layout]
    err = run_session([*words, *several], tmp_path, code=1)
    assert re.search(
        r"environment 0 .*(is in step|has shown no sign of life)", err.splitlines()[-1]
    )
    assert summary_of(tmp_path / "run")["exit_reason"].startswith("failed")


def test_slow_calls_are_named_after_30_seconds_and_then_ever_more_rarely() -> None:
    hung = Sign("of an earlier run that was given up")
    hung.doing = "step"
    slow = SlowCalls(patience_seconds=0.0)
    sign = Sign("environment")
    sign.env, sign.doing = 3, "reset"
    said = [(second, line) for second in range(1, 200) for line in slow.look(1.0)[0]
            if line.startswith("environment 3 ")]  # fmt: skip
    assert [second for second, _ in said] == [30, 60, 120]
    assert said[0][1] == "environment 3 has been in reset for 30 s"
    assert not any("earlier run" in line for line in slow.look(1e6)[0])
    sign.beats += 1  # the next one
    assert not any("environment 3 " in line for _ in range(29) for line in slow.look(1.0)[0])
    del sign, hung


def test_a_slow_environment_is_named_where_the_run_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slow_calls, "SLOW_SECONDS", 0.6)
    folder = tmp_path / "run"
    broken_envs.RELEASED.clear()

    def release() -> None:
        try:
            log = folder / "log.txt"
            wait_for(lambda: log.exists() and "been in step for" in log.read_text(), "a line")
        finally:
            broken_envs.RELEASED.set()

    releasing = threading.Thread(target=release)
    releasing.start()
    words = ["broken_envs:Stuck", "--run-folder", str(folder), "--total-env-steps", "128"]
    assert cli.main(["train", *words, *QUICK]) == 0
    releasing.join()
    assert re.search(r"environment 0 has been in step for \d s\n", capsys.readouterr().err)


def test_a_supervisor_killed_in_its_first_moments_leaves_nobody(tmp_path: Path) -> None:
    words = ["CartPole-v1", "--run-folder", "run", "--num-learners", "3", "topology:gossip", *QUICK]
    with Session(words, tmp_path, forked=False) as session:
        supervisor = psutil.Process(session.process.pid)

        def learners() -> list[psutil.Process]:
            with suppress(psutil.NoSuchProcess):  # others come and go
                found = supervisor.children(recursive=True)
                return [x for x in found if any("gossamer.run." in y for y in x.cmdline())]
            return []

        session.wait_for(learners, "the first process")
        children = learners()
        session.signal(signal.SIGKILL)
        session.process.wait(PATIENCE_SECONDS)
        gone, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert gone
    assert not alive


def test_a_supervisor_that_is_killed_leaves_nobody_whatever_an_environment_has_forked(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    words = ["held_envs:HeldAndHelped", "--run-folder", "run", "--num-learners", "2", *QUICK]
    words += ["topology:gossip", "--evaluation.every-seconds", "0.1", "--evaluation.episodes", "1"]
    with Session(words, tmp_path) as session:
        # An evaluation's environment, and what it forks, is of the supervisor's process.
        told = folder / "evaluation.jsonl"
        session.wait_for(lambda: told.exists() and told.stat().st_size, "an evaluation")
        learners = [psutil.Process(x) for x in pids_of(folder)]
        assert len(learners) == 2
        session.signal(signal.SIGKILL)
        session.process.wait(PATIENCE_SECONDS)
        _, alive = psutil.wait_procs(learners, timeout=20)
        assert not alive
        session.release()


def test_a_process_whose_supervisor_has_gone_imports_nothing() -> None:
    words = ["-X", "importtime", "-m", "gossamer.run.placements.fork_server", "0"]
    words += [str(os.getpid() + 1), "learner"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "torch" not in done.stderr
    assert "numpy" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--placement", "inline"], marks=pytest.mark.slow),
        ["--placement", "local"],
        pytest.param(["--env.workers", "2"], marks=pytest.mark.slow),
        ["--num-learners", "2", "topology:gossip", "--topology.max-staleness", "0"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_what_is_slow_but_lives_is_waited_for(tmp_path: Path, words: list[str]) -> None:
    """A trajectory takes twice as long as anybody is waited for who shows no sign of life."""
    steps = ["--unroll-length", "40", "--total-env-steps", "160", "--patience-seconds", "3"]
    steps += ["--run-folder", "run"]
    run_session(["broken_envs:Slow", *QUICK, *steps, *words], tmp_path)
    summary = summary_of(tmp_path / "run")
    assert summary["exit_reason"] == "done: total_env_steps reached"
    assert (summary["restarts"], summary["env_steps"] >= 160) == (0, True)
    assert summary["seconds"] > 3.0, "longer than anyone's patience"


def test_a_version_that_takes_long_to_learn_is_waited_for(tmp_path: Path) -> None:
    """Every update is a sign of life, however long all of them take."""
    words = ["CartPole-v1", "algorithm:slow_algorithms:SlowPPO", *QUICK, "--lag", "0"]
    words += ["--total-env-steps", "32", "--patience-seconds", "3", "--run-folder", "run"]
    updates = round(2 * 3.0 / UPDATE_SECONDS)
    run_session([*words, "--algorithm.passes", str(updates)], tmp_path)
    assert summary_of(tmp_path / "run")["updates"] >= updates
    assert summary_of(tmp_path / "run")["seconds"] > 3.0, "longer than anyone's patience"


@pytest.mark.parametrize(
    "words",
    [
        ["--placement", "inline"],
        slow(["--placement", "local"]),
        ["--num-learners", "2", "topology:gossip"],
    ],
    ids=lambda words: words[1],
)
def test_a_last_evaluation_that_never_ends_is_left_out(tmp_path: Path, words: list[str]) -> None:
    folder = tmp_path / "run"
    given = [*QUICK, *WITHIN, "--evaluation.every-seconds", "1000", "--stop-at-return", "5"]
    kind = "broken_envs:StuckInEvaluation"
    err = run_session([kind, "--run-folder", "run", *given, *words], tmp_path)
    assert "Traceback" not in err
    assert "The final evaluation was skipped: it takes longer than 1 s" in err
    assert summary_of(folder)["exit_reason"] == "done: stop_at_return reached"
    assert checkpoints(folder)[-1] == summary_of(folder)["updates"]


def test_an_evaluation_that_a_stop_has_no_time_for_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["broken_envs:SlowInEvaluation", "--run-folder", "run", *QUICK]
    words += ["--evaluation.every-seconds", "5", "--stop-within-seconds", "8"]
    words += ["--total-env-steps", "100_000_000"]
    with Session(words, tmp_path) as session:
        session.wait_for(
            lambda: newest_row(FolderReader(folder)).get("time_s", 0.0) > 6.0, "six seconds"
        )
        session.signal(signal.SIGINT)
        err = session.ends()
    first, then = re.findall(r"Saved\. Evaluating the last policy|not evaluated: that takes", err)
    assert first.startswith("Saved")
    assert then.startswith("not evaluated")


def test_how_long_the_last_evaluation_may_take_is_said(tmp_path: Path) -> None:
    often = ["--evaluation.every-seconds", "0.1", "--evaluation.max-time-fraction", "1"]
    words = [*QUICK, *often, "--evaluation.episodes", "2", "--num-envs", "1"]
    words += ["--stop-after-seconds", "12"]
    err = run_session(["broken_envs:Slow", "--run-folder", "run", *words], tmp_path)
    said = re.search(r"evaluating the last policy, for at most (\d+) s \(Ctrl-C skips this\)", err)
    assert said, err
    assert 12.0 < rows_of(tmp_path / "run", "evaluation")[-1]["time_s"] < 12.0 + 5.0 + int(said[1])


@pytest.mark.parametrize(
    "more",
    [
        ["--placement", "inline"],
        ["algorithm:vtrace", "--actors-per-learner", "1"],
        slow(["--num-learners", "2"]),
    ],
    ids=["inline", "an actor's process", "learners' processes"],
)
def test_a_simulator_that_ends_processes_of_its_own_stops_no_run(
    tmp_path: Path, more: list[str]
) -> None:
    words = ["broken_envs:ForksHelpers", "--run-folder", "run", *QUICK, *more]
    err = run_session([*words, "--total-env-steps", "256"], tmp_path)
    assert summary_of(tmp_path / "run")["exit_reason"] == "done: total_env_steps reached"
    assert "stopping" not in err


def test_what_no_signal_interrupts_ends_with_the_code_of_a_stop(tmp_path: Path) -> None:
    words = ["broken_envs:HangsInNativeCode", "--run-folder", "run", *QUICK, *WITHIN]
    with Session([*words, "--placement", "inline"], tmp_path) as session:
        err = stop(session, tmp_path / "run", hang=1)
    assert "ended from within" not in err
    assert summary_of(tmp_path / "run")["exit_reason"] == "stopped by SIGINT"


@pytest.mark.parametrize("placement", ["inline", slow("local")])
def test_a_last_checkpoint_that_is_written_slowly_is_written(
    tmp_path: Path, placement: str
) -> None:
    words = ["broken_envs:SlowDisk", "--run-folder", "run", *QUICK, "--stop-within-seconds", "0.5"]
    words += ["--placement", placement, "--checkpoint-every-seconds", "0"]
    with Session(words, tmp_path) as session:
        session.wait_for(session.stuck.exists, "the disk to slow down")
        session.signal(signal.SIGINT)
        err = session.ends()
    assert "The last checkpoint is still being written" in err
    assert checkpoints(tmp_path / "run")[-1] == summary_of(tmp_path / "run")["updates"]


def test_a_disk_that_is_dead_holds_up_no_stop(tmp_path: Path) -> None:
    words = ["broken_envs:DeadDisk", "--run-folder", "run", *QUICK, *WITHIN]
    words += ["--placement", "inline", "--checkpoint-every-seconds", "0"]
    with Session(words, tmp_path) as session:
        session.wait_for(session.stuck.exists, "the disk to die")
        session.signal(signal.SIGINT)
        err = session.ends()
    assert checkpoints(tmp_path / "run") == [0]
    assert "nothing after env step 0 is saved" in err


def test_a_terminal_that_says_twice_that_it_is_closed_is_heard_once(tmp_path: Path) -> None:
    words = ["CartPole-v1", "--run-folder", "run", "--placement", "inline", *ENDLESS]
    with Session(words, tmp_path) as session:
        session.wait_for_line("run folder", tmp_path / "run")
        for _ in range(3):
            session.signal(signal.SIGHUP)
            session.let_run(0.6)
        session.ends()
    assert summary_of(tmp_path / "run")["exit_reason"] == "stopped by SIGHUP"


def test_a_line_that_nobody_reads_fails_no_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a terminal that Ctrl-S holds: the batch is abandoned, and telling so takes long."""
    say = Recorder.say

    def held(recorder: Recorder, text: str) -> None:
        say(recorder, text)
        if "run folder" in text:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        if "was abandoned" in text:
            time.sleep(60.0)

    monkeypatch.setattr(Recorder, "say", held)
    monkeypatch.setattr(stopping, "RAISE_SECONDS", 1.0)
    words = ["broken_envs:Slow", "--run-folder", str(tmp_path / "run"), *QUICK]
    words += ["--placement", "inline", "--unroll-length", "4096", "--stop-within-seconds", "0.1"]
    assert cli.main(["train", *words]) == 0
    assert "Traceback" not in capsys.readouterr().err
    assert summary_of(tmp_path / "run")["exit_reason"] == "stopped by SIGINT"
    assert checkpoints(tmp_path / "run") == [0], "what the run began with"
