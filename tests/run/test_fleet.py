"""Learners in processes of their own: what they compute, what a checkpoint holds, who may die."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from fleets import TOPOLOGIES, config
from held_envs import steps_for
from runs import assert_resumes, log_of, pids_of, rows_of, state_of
from sessions import QUICK, Session, checkpoints, slow, summary_of, wait_for

from gossamer.errors import ConfigError, RunFailed
from gossamer.record.checkpoint import CheckpointStore
from gossamer.run.checkpoint_contents import policy_of
from gossamer.run.host_protocol import FINAL, Died, Snapshot
from gossamer.run.placements.processes import Processes
from gossamer.run.train import train


@pytest.mark.parametrize(
    ("topology", "per_process", "lag"),
    [
        ("allreduce", 1, "1"),
        ("gossip in step", 1, "0"),
        ("diffusion", 2, "1"),
        ("diffusion once a version", 1, "1"),
    ],
)
def test_resumed_equals_uninterrupted(
    tmp_path: Path, topology: str, per_process: int, lag: str
) -> None:
    """Inline, so that processes are compared with none too."""
    run = TOPOLOGIES[topology], 3 * 320
    one = config(tmp_path / "one", *run, lag=lag, placement="inline")
    two = config(tmp_path / "two", *run, lag=lag, learners_per_process=per_process)
    assert_resumes(one, two, 3 * 128, ordered=False)
    log = log_of(tmp_path / "two")
    begun = log.index(f"starting {3 if per_process == 1 else 2} processes")
    assert log[begun + 1].startswith("restoring took ")
    for name in ("one", "two"):
        rows, summary = rows_of(tmp_path / name), summary_of(tmp_path / name)
        last = [row for row in rows if row["learner"] == 0][-1]
        # whole batches, of which some rows are resets
        assert 3 * 320 <= last["env_steps"] == summary["env_steps"] < 3 * 384
        assert summary["steps_per_second"] == last["steps_per_second"]
        told = [(row["learner"], row["updates"]) for row in rows]
        assert sorted({rank for rank, _ in told}) == [0, 1, 2]
        assert len(told) == len(set(told)), "no row twice"
    if topology == "allreduce":
        assert_alike(tmp_path / "one")


def assert_alike(folder: Path) -> None:
    """Check that all learners of a run have the same policy, to the bit."""
    state = state_of(folder)
    first, *others = (policy_of(state, rank) for rank in range(3))
    for held in others:
        assert all(torch.equal(x, first[name]) for name, x in held.items())


SETTINGS = [*QUICK, "--num-learners", "3", "--checkpoint-every-seconds", "0.5"]
WORDS = ["CartPole-v1", *SETTINGS]
HELD = ["held_envs:HeldCartPole", *SETTINGS]
"""Of runs in which somebody is killed, and which then go on to their end."""
ENDLESS = ["--total-env-steps", "10000000", "--run-folder", "run"]


@pytest.mark.parametrize(
    ("topology", "deaths"),
    [
        ("gossip", 1),
        slow("gossip", 2),
        slow("diffusion", 1),
        slow("diffusion --topology.every versions", 1),
        slow("single", 1),
    ],
)
def test_a_dead_learner_is_replaced_while_the_others_go_on(
    tmp_path: Path, topology: str, deaths: int
) -> None:
    folder, total = tmp_path / "run", steps_for(3, 120.0 * deaths)
    words = [*f"topology:{topology}".split(), "--total-env-steps", str(total)]
    words = ["held_envs:HeldAndHelped", *SETTINGS, *words, "--run-folder", str(folder)]
    with Session(words, tmp_path) as session:
        for _ in range(deaths):
            session.wait_for(lambda: len(set(pids_of(folder))) == 3, "three processes")
            before = pids_of(folder)
            seen = len(rows_of(folder))
            session.wait_for(lambda seen=seen: len(rows_of(folder)) > seen + 1, "progress")
            os.kill(before[1], signal.SIGKILL)
            session.wait_for(lambda before=before: pids_of(folder)[1] != before[1], "a new process")
        session.release()
        session.ends()
    summary = summary_of(folder)
    assert summary["restarts"] == deaths
    assert summary["env_steps"] >= total
    assert summary["exit_reason"] == "done: total_env_steps reached"
    assert len({name.split("/")[0] for name in state_of(folder) if name[1] == "/"}) == 2


def test_a_group_that_loses_a_member_at_its_end_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last checkpoint is older: the end that had been reached is not there any more."""
    deaths: list[int] = []
    poll = Processes.poll

    def loses_one(placement: Processes) -> Any:
        events = poll(placement)
        if not deaths and any(isinstance(x, Snapshot) and x.number == FINAL for _, x in events):
            deaths.append(placement.env_steps)
            return [(1, Died("signal 9"))]
        return events

    monkeypatch.setattr(Processes, "poll", loses_one)
    made = config(tmp_path / "run", TOPOLOGIES["allreduce"], 2 * 256, num_learners=2, lag="1")
    result = train(made, quiet=True)
    steps = result.summary["env_steps"]
    assert 2 * 256 <= steps < 2 * 320
    assert 0 <= steps - deaths[0] <= 64  # the other member may have had its last update before it
    assert result.summary["exit_reason"] == "done: total_env_steps reached"
    assert rows_of(result.folder)[-1]["env_steps"] == steps


def test_a_host_that_is_done_is_not_listened_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The closed end of its channel would keep the supervisor from waiting until the others are done too."""
    stopped: list[int] = []
    polls: list[float] = []
    poll = Processes.poll

    def counts(placement: Processes) -> Any:
        first, other = placement.hosts
        if not stopped:  # before it has learnt anything: the other ends alone
            os.kill(first.pid, signal.SIGSTOP)
            stopped.append(first.pid)
        within = not polls or polls[-1] <= polls[0] + 1.0
        if within and other.over and other.popen.poll() is not None:
            polls.append(time.monotonic())
            if polls[-1] > polls[0] + 1.0:
                os.kill(first.pid, signal.SIGCONT)
        return poll(placement)

    monkeypatch.setattr(Processes, "poll", counts)
    train(config(tmp_path / "run", {"name": "single"}, 512, num_learners=2), quiet=True)
    assert polls[-1] > polls[0] + 1.0
    assert len(polls) <= 20


@pytest.mark.parametrize("transport", ["memory", slow("gloo")])
def test_an_all_reduced_group_starts_again_from_the_last_checkpoint(
    tmp_path: Path, transport: str
) -> None:
    folder = tmp_path / "run"
    words = [*HELD, "topology:allreduce", "--topology.transport", transport, *ENDLESS]
    words += ["--optimizer.outer-momentum", "0.3"]
    with Session(words, tmp_path) as session:
        session.wait_for(lambda: checkpoints(folder)[-1:] > [0], "a checkpoint")
        before = pids_of(folder)
        os.kill(before[2], signal.SIGKILL)
        session.wait_for(lambda: not set(pids_of(folder)) & set(before), "new processes")
        session.release()
        seen = checkpoints(folder)[-1]
        session.wait_for(lambda: checkpoints(folder)[-1] > seen, "another checkpoint")
        session.signal(signal.SIGTERM)
        session.ends()
    assert summary_of(folder)["restarts"] == 1
    assert_alike(folder)
    assert torch.equal(state_of(folder)["2/learner.outer.1"], state_of(folder)["learner.outer.1"])
    steps = [row["env_steps"] for row in rows_of(folder)]
    assert steps == sorted(steps)


def test_a_signal_before_the_learners_have_begun_ends_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [*WORDS, "topology:gossip", *ENDLESS]
    with Session(words, tmp_path) as session:
        session.wait_for(lambda: len(pids_of(folder)) == 3, "three processes")
        session.signal(signal.SIGINT)
        session.ends()
    assert summary_of(folder)["exit_reason"] == "stopped by SIGINT"
    assert summary_of(folder)["env_steps"] < 10_000_000
    assert checkpoints(folder)


def test_learners_that_never_talk_learn_from_as_much_each(tmp_path: Path) -> None:
    made = config(
        tmp_path / "run",
        {"name": "single"},
        3 * 384,
        **{"optimizer.learning_rate": [1e-2, 1e-3, 1e-4]},
    )
    result = train(made, quiet=True)
    state = CheckpointStore(result.folder / "checkpoints", 0).load("last").state["held"]
    steps = [state[f"{prefix}learner.own_env_steps"] for prefix in ("", "1/", "2/")]
    assert all(384 <= own < 384 + 64 for own in steps)
    assert result.summary["env_steps"] == sum(steps)


def test_everyone_goes_with_the_supervisor(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [*WORDS, "topology:gossip", *ENDLESS]
    with Session(words, tmp_path) as session:
        session.wait_for(lambda: checkpoints(folder)[-1:] > [0], "a checkpoint")
        pids = pids_of(folder)
        assert all(map(psutil.pid_exists, pids))
        session.process.kill()
        wait_for(lambda: not any(map(_runs, pids)), "the end of all learners")
        written = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        time.sleep(0.5)
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == written


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_run_in_step_resumes_after_a_death(tmp_path: Path) -> None:
    """The one that took over counts other updates than its peers, and has episodes of its own."""
    folder = tmp_path / "run"
    words = [*HELD, "topology:diffusion", *ENDLESS]
    with Session(words, tmp_path) as session:
        session.release()
        session.wait_for(lambda: len(rows_of(folder)) > 1 and bool(checkpoints(folder)), "progress")
        before = pids_of(folder)
        os.kill(before[0], signal.SIGKILL)
        session.wait_for(lambda: pids_of(folder)[0] != before[0], "a new process")
        seen = checkpoints(folder)[-1]
        session.wait_for(lambda: checkpoints(folder)[-1] > seen + 10, "checkpoints")
        session.signal(signal.SIGTERM)
        session.ends()
    before_it = summary_of(folder)["env_steps"]
    # Without the checkpoint it was resumed from, another death is survived too.
    with Session(["--resume", "run", "--keep-checkpoints", "1"], tmp_path) as session:
        first = checkpoints(folder)
        session.wait_for(lambda: not set(first) & set(checkpoints(folder)), "later checkpoints")
        before = pids_of(folder)
        os.kill(before[1], signal.SIGKILL)
        session.wait_for(lambda: pids_of(folder)[1] != before[1], "a new process")
        session.release()
        session.signal(signal.SIGTERM)
        session.ends()
    assert summary_of(folder)["env_steps"] > before_it
    assert summary_of(folder)["restarts"] == 1


def shared_memory() -> list[str]:
    """What this process has open of it, by inode."""
    gc.collect()  # memory that is mapped holds a descriptor of its own
    found = (x for x in Path("/proc/self/fd").iterdir() if x.is_symlink())
    kept = [x for x in found if "memfd:gossamer" in x.readlink().name]
    return sorted(f"memory {x.stat().st_ino}" for x in kept)


def test_another_topology_may_be_resumed_with(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    before = shared_memory()  # of other tests
    train(config(folder, {"name": "gossip"}, 3 * 128), quiet=True)
    stepped = config(folder, {"name": "diffusion"}, 3 * 320)
    result = train(stepped, resume=str(folder), quiet=True)
    assert result.summary["env_steps"] >= 3 * 320
    with pytest.raises(ConfigError, match="is allreduce, but this run was begun with diffusion"):
        train(config(folder, {"name": "allreduce"}, 3 * 448), resume=str(folder), quiet=True)
    # every simulator has a file of its own, and nothing is left open
    assert max(int(x.name.split(".")[0]) for x in (folder / "monitor").iterdir()) >= 2 * 4
    assert shared_memory() == before


def test_a_group_of_which_one_always_dies_ends_the_run(tmp_path: Path) -> None:
    made = config(tmp_path / "run", TOPOLOGIES["allreduce"], 10_000_000, num_learners=2)
    made = dataclasses.replace(made, env_id="broken_envs:Kills")
    with pytest.raises(RunFailed, match="died 3 times before a version was complete"):
        train(made, quiet=True)


def test_ctrl_c_saves_and_stops_everyone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [*WORDS, "topology:diffusion", *ENDLESS]
    with Session(words, tmp_path) as session:
        session.wait_for(lambda: len(rows_of(folder)) > 1, "progress")
        session.signal(signal.SIGINT)
        session.ends()
    summary = summary_of(folder)
    assert summary["exit_reason"] == "stopped by SIGINT"
    assert checkpoints(folder)[-1] == summary["updates"]


def test_what_a_learner_cannot_do_ends_the_run_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = config(tmp_path / "run", TOPOLOGIES["allreduce"], 100_000, num_learners=2)
    made = dataclasses.replace(made, env_id="broken_envs:Raises")
    with pytest.raises(RunFailed):
        train(made, quiet=True)
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "has left the group" not in err
    assert summary_of(tmp_path / "run")["exit_reason"].startswith("failed: ")
