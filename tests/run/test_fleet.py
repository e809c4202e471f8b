"""Learners in processes of their own: what they compute, what a checkpoint holds, who may die."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from fleets import TOPOLOGIES, assert_same_rows, config, pids_of
from held_envs import steps_for
from runs import state_of
from sessions import QUICK, Session, checkpoints, slow, summary_of, wait_for

from gossamer.config import make_config
from gossamer.errors import ConfigError, RunFailed
from gossamer.record.checkpoint import CheckpointStore
from gossamer.run.checkpoint_contents import policy_of
from gossamer.run.host_protocol import FINAL, Died, Snapshot
from gossamer.run.placements.processes import Processes
from gossamer.run.train import train


@pytest.mark.parametrize(
    ("topology", "lag"),
    [
        ("allreduce", "1"),
        ("gossip in step", "0"),
        slow("diffusion", "1"),
        slow("diffusion once a version", "1"),
    ],
)
def test_processes_compute_what_lock_step_computes(tmp_path: Path, topology: str, lag: str) -> None:
    for placement in ("inline", "local"):
        made = config(
            tmp_path / placement, TOPOLOGIES[topology], 3 * 256, placement=placement, lag=lag
        )
        train(made, quiet=True)
        rows = [
            json.loads(x) for x in (tmp_path / placement / "metrics.jsonl").read_text().splitlines()
        ]
        last = [row for row in rows if row["learner"] == 0][-1]
        summary = summary_of(tmp_path / placement)
        # whole batches, of which some rows are resets
        assert 3 * 256 <= last["env_steps"] == summary["env_steps"] < 3 * 320
        assert summary["steps_per_second"] == last["steps_per_second"]
        told = [(row["learner"], row["updates"]) for row in rows]
        assert sorted({rank for rank, _ in told}) == [0, 1, 2]
        assert len(told) == len(set(told)), "no row twice"
    one, other = state_of(tmp_path / "inline"), state_of(tmp_path / "local")
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize(
    ("topology", "per_process"),
    [("allreduce", 1), ("diffusion", 2), ("diffusion once a version", 1)],
)
def test_resumed_equals_uninterrupted(
    tmp_path: Path, topology: str, per_process: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inline, so that processes are compared with none too."""
    one = config(tmp_path / "one", TOPOLOGIES[topology], 3 * 320, placement="inline", lag="1")
    train(one, quiet=True)
    common = {"learners_per_process": per_process, "lag": "1"}
    train(config(tmp_path / "two", TOPOLOGIES[topology], 3 * 128, **common), quiet=True)
    longer = config(tmp_path / "two", TOPOLOGIES[topology], 3 * 320, **common)
    train(longer, resume=str(tmp_path / "two"))
    told = f"starting {3 if per_process == 1 else 2} processes\nrestoring took "
    assert told in capsys.readouterr().err
    state = state_of(tmp_path / "one")
    assert_same_rows(tmp_path / "one", tmp_path / "two")
    if topology == "allreduce":
        learners = [policy_of(state, rank) for rank in range(3)]
        for held in learners[1:]:
            assert all(torch.equal(x, learners[0][name]) for name, x in held.items())


SETTINGS = [*QUICK, "--num-learners", "3", "--checkpoint-every-seconds", "0.5"]
WORDS = ["CartPole-v1", *SETTINGS]
HELD = ["held_envs:HeldCartPole", *SETTINGS]
"""Of runs in which somebody is killed, and which then go on to their end."""


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
    words = [*HELD, *f"topology:{topology}".split(), "--total-env-steps", str(total)]
    words += ["--run-folder", str(folder)]
    with Session(words, tmp_path) as session:
        for _ in range(deaths):
            session.wait_for(lambda: len(set(pids_of(folder))) == 3, "three processes")
            before = pids_of(folder)
            seen = _rows(folder)
            session.wait_for(lambda seen=seen: _rows(folder) > seen + 1, "progress")
            os.kill(before[1], signal.SIGKILL)
            session.wait_for(lambda before=before: pids_of(folder)[1] != before[1], "a new process")
        session.release()
        code, out, err = session.end()
    assert code == 0, (out, err)
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
    rows = [json.loads(x) for x in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["env_steps"] == steps


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
    words = [
        *HELD,
        "topology:allreduce",
        "--topology.transport",
        transport,
        "--optimizer.outer-momentum",
        "0.3",
        "--total-env-steps",
        "10000000",
        "--run-folder",
        str(folder),
    ]
    with Session(words, tmp_path) as session:
        session.wait_for(lambda: checkpoints(folder)[-1:] > [0], "a checkpoint")
        before = pids_of(folder)
        os.kill(before[2], signal.SIGKILL)
        session.wait_for(lambda: not set(pids_of(folder)) & set(before), "new processes")
        session.release()
        seen = checkpoints(folder)[-1]
        session.wait_for(lambda: checkpoints(folder)[-1] > seen, "another checkpoint")
        session.signal(signal.SIGTERM)
        code, out, err = session.end()
    assert code == 0, (out, err)
    assert summary_of(folder)["restarts"] == 1
    learners = [policy_of(state_of(folder), rank) for rank in range(3)]
    for held in learners[1:]:
        assert all(torch.equal(x, learners[0][name]) for name, x in held.items())
    assert torch.equal(state_of(folder)["2/learner.outer.1"], state_of(folder)["learner.outer.1"])
    steps = [
        json.loads(x)["env_steps"] for x in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == sorted(steps)


def test_a_signal_before_the_learners_have_begun_ends_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        *WORDS,
        "topology:gossip",
        "--total-env-steps",
        "10000000",
        "--run-folder",
        str(folder),
    ]
    with Session(words, tmp_path) as session:
        session.wait_for(lambda: len(pids_of(folder)) == 3, "three processes")
        session.process.send_signal(signal.SIGINT)
        code, out, err = session.end()
    assert code == 0, (out, err)
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


def _rows(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_everyone_goes_with_the_supervisor(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        *WORDS,
        "topology:gossip",
        "--total-env-steps",
        "10000000",
        "--run-folder",
        str(folder),
    ]
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
    words = [
        *HELD,
        "topology:diffusion",
        "--total-env-steps",
        "10000000",
        "--run-folder",
        str(folder),
    ]
    with Session(words, tmp_path) as session:
        session.release()
        session.wait_for(lambda: _rows(folder) > 1 and bool(checkpoints(folder)), "progress")
        before = pids_of(folder)
        os.kill(before[0], signal.SIGKILL)
        session.wait_for(lambda: pids_of(folder)[0] != before[0], "a new process")
        seen = checkpoints(folder)[-1]
        session.wait_for(lambda: checkpoints(folder)[-1] > seen + 10, "checkpoints")
        session.process.send_signal(signal.SIGTERM)
        code, out, err = session.end()
    assert code == 0, (out, err)
    before_it = summary_of(folder)["env_steps"]
    # Without the checkpoint it was resumed from, another death is survived too.
    more = [
        "--resume",
        str(folder),
        "--keep-checkpoints",
        "1",
    ]
    with Session(more, tmp_path) as session:
        first = checkpoints(folder)
        session.wait_for(lambda: not set(first) & set(checkpoints(folder)), "later checkpoints")
        before = pids_of(folder)
        os.kill(before[1], signal.SIGKILL)
        session.wait_for(lambda: pids_of(folder)[1] != before[1], "a new process")
        session.release()
        session.signal(signal.SIGTERM)
        code, out, err = session.end()
    assert code == 0, (out, err)
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


@pytest.mark.parametrize("topology", ["gossip", "allreduce"])
def test_one_that_always_dies_ends_the_run(tmp_path: Path, topology: str) -> None:
    made = config(tmp_path / "run", {"name": topology}, 10_000_000, num_learners=2)
    made = dataclasses.replace(made, env_id="broken_envs:Kills")
    with pytest.raises(RunFailed, match="died 3 times before a version was complete"):
        train(made, quiet=True)


def test_ctrl_c_saves_and_stops_everyone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        *WORDS,
        "topology:diffusion",
        "--total-env-steps",
        "10000000",
        "--run-folder",
        str(folder),
    ]
    with Session(words, tmp_path) as session:
        session.wait_for(lambda: _rows(folder) > 1, "progress")
        session.process.send_signal(signal.SIGINT)
        code, out, err = session.end()
    assert code == 0, (out, err)
    summary = summary_of(folder)
    assert summary["exit_reason"] == "stopped by SIGINT"
    assert checkpoints(folder)[-1] == summary["updates"]


@pytest.mark.parametrize("topology", ["gossip", "allreduce"])
def test_what_a_learner_cannot_do_ends_the_run_with_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], topology: str
) -> None:
    made = make_config(
        "broken_envs:Raises",
        {"num_learners": 2, "topology": {"name": topology}, "num_envs": 4,
         "run_folder": str(tmp_path / "run"), "total_env_steps": 100_000},
    )  # fmt: skip
    with pytest.raises(RunFailed):
        train(made, quiet=True)
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "has left the group" not in err
    assert summary_of(tmp_path / "run")["exit_reason"].startswith("failed: ")
