"""Trials on a Ray cluster: their files come home, and one whose machine dies goes on elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import PATIENCE_SECONDS

from gossamer import cli
from gossamer.errors import RunFailed
from gossamer.sweep.pool import PlannedRun

ray = pytest.importorskip("ray", reason="Ray is an optional extra")

from gossamer.run.placements.cluster.remote_runs import (  # noqa: E402
    HERE,
    KILLED,
    Change,
    Changes,
    RemoteRun,
    Trainer,
    WholeRun,
)
from gossamer.sweep.cluster_site import keep  # noqa: E402


def test_files_come_home_as_they_are(tmp_path: Path) -> None:
    run = PlannedRun("000/s1", tmp_path / "s1", 1)
    first = {
        "s1/metrics.jsonl": Change(0, b"one\n"),
        "s1/checkpoints/10/state.json": Change(0, b"{}"),
        "s1.txt": Change(0, b"hello\n"),
        "../../escape": Change(0, b"no"),
        "/etc/nothing": Change(0, b"no"),
        "other/file": Change(0, b"no"),
    }
    keep(run, Changes(None, first, []))
    keep(
        run,
        Changes(None, {"s1/metrics.jsonl": Change(4, b"two\n")}, ["s1/checkpoints/10/state.json"]),
    )
    assert (tmp_path / "s1" / "metrics.jsonl").read_text() == "one\ntwo\n"
    assert run.output.read_text() == "hello\n"
    assert not (tmp_path / "s1" / "checkpoints" / "10").exists()
    assert sorted(x.name for x in tmp_path.iterdir()) == ["s1", "s1.txt"]
    assert not (tmp_path.parent / "escape").exists()


def test_only_what_is_new_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    trainer = Trainer(WholeRun({"settings.toml": b""}, ["--no-such-flag"], {}, "s1.txt"))
    while (first := trainer.changes()).code is None:
        time.sleep(0.01)
    assert first.code == 2
    assert not first.changed or list(first.changed) == ["s1.txt"], "not what was sent there"
    run = tmp_path / "s1"
    run.mkdir()
    (run / "episodes.jsonl").write_text("a\n")
    (run / "config.json").write_text("{}")
    (run / ".lock").write_text("1")
    (run / "link").symlink_to(tmp_path)
    assert trainer.changes().changed == {
        "s1/episodes.jsonl": Change(0, b"a\n"),
        "s1/config.json": Change(0, b"{}"),
    }
    assert trainer.changes().changed == {}
    with (run / "episodes.jsonl").open("a") as file:
        file.write("b\n")
    (run / "config.json").unlink()
    assert trainer.changes() == Changes(
        2, {"s1/episodes.jsonl": Change(2, b"b\n")}, ["s1/config.json"]
    )
    (run / "new").write_text("c\n")
    (run / "new").replace(run / "episodes.jsonl")  # cut back, as a resumed run's are
    assert trainer.changes().changed == {"s1/episodes.jsonl": Change(0, b"c\n")}


class FakeRay:
    """Ray with one actor, whose answers are there as soon as it has a place."""

    def __init__(self) -> None:
        self.has_place = self.is_gone = False
        self.called: list[str] = []

    def __getattr__(self, method: str) -> FakeRay:
        self.method = method
        return self

    def remote(self) -> str:
        self.called.append(self.method)
        return self.method

    def wait(self, references: list[str], timeout: float) -> tuple[list[str], list[str]]:
        return (references, []) if self.has_place else ([], references)

    def get(self, reference: str, timeout: float = 0.0) -> Any:
        if self.is_gone:
            raise ray.exceptions.RayActorError
        code = 0 if "stop" in self.called else None
        return Changes(code, {}, []) if reference == "changes" else None

    def kill(self, actor: FakeRay) -> None:
        self.called.append("kill")


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay()
    monkeypatch.setattr("gossamer.run.placements.cluster.remote_runs.ray", made)
    monkeypatch.setattr("gossamer.run.placements.cluster.remote_runs.LOOK_SECONDS", 0.0)
    return made


def remote_run(fake_ray: FakeRay, wait_seconds: float = 0.0) -> tuple[RemoteRun, list[Changes]]:
    kept: list[Changes] = []
    return RemoteRun("000/s1", fake_ray, kept.append, wait_seconds), kept


def test_a_run_is_asked_until_it_ends(fake_ray: FakeRay) -> None:
    run, kept = remote_run(fake_ray)
    assert run.poll() is None
    assert not kept, "it has no place yet"
    fake_ray.has_place = True
    assert run.poll() is None
    run.stop()
    assert run.poll() is None
    assert run.poll() == 0
    assert fake_ray.called == ["changes", "changes", "stop", "changes", "clear", "kill"]
    assert [x.code for x in kept] == [None, None, 0]
    assert run.poll() == 0


def test_a_run_that_is_to_stop_before_it_is_known_to_have_a_place_is_told(
    fake_ray: FakeRay,
) -> None:
    run, _ = remote_run(fake_ray)
    assert run.poll() is None
    fake_ray.has_place = True
    run.stop()
    assert run.poll() is None
    assert run.poll() == 0
    assert fake_ray.called.count("stop") == 1


def test_a_run_that_is_to_stop_before_it_has_a_place_is_not_begun(fake_ray: FakeRay) -> None:
    run, _ = remote_run(fake_ray)
    run.stop()
    assert run.poll() == KILLED
    assert fake_ray.called == ["changes", "kill"]


def test_a_run_without_a_place_for_too_long_is_told(fake_ray: FakeRay) -> None:
    run, _ = remote_run(fake_ray, wait_seconds=1e-9)
    with pytest.raises(
        RunFailed, match="000/s1 has had no place on the cluster for 0 s; use fewer"
    ):
        run.poll()
    assert fake_ray.called == ["changes", "kill"]


def test_a_run_that_is_to_stop_ends_though_it_has_waited_too_long_for_a_place(
    fake_ray: FakeRay,
) -> None:
    run, _ = remote_run(fake_ray, wait_seconds=1e-9)
    run.stop()
    assert run.poll() == KILLED, "others go on saving"


def test_a_run_whose_machine_is_gone_was_killed(fake_ray: FakeRay) -> None:
    run, _ = remote_run(fake_ray)
    fake_ray.has_place = True
    assert run.poll() is None
    fake_ray.is_gone = True
    assert run.poll() == KILLED


def test_a_machine_that_cannot_begin_runs_ends_the_sweep_not_one_trial_after_another(
    fake_ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = remote_run(fake_ray)
    fake_ray.has_place = fake_ray.is_gone = True
    monkeypatch.setattr(ray.exceptions.RayActorError, "actor_init_failed", True)
    with pytest.raises(RunFailed, match=r"^000/s1 could not be started on the cluster: The actor"):
        run.poll()
    assert run.poll() == KILLED


WATCHER = "gossamer.run.placements.cluster.run_watcher"
FOREVER = ("CartPole-v1", "--total-env-steps", "1e12", "--num-envs", "2", "--run-folder")


def soon(happened: Callable[[], Any]) -> Any:
    until = time.monotonic() + 60.0
    while not (found := happened()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return found


def run_of(watcher: psutil.Process) -> psutil.Process | None:
    """Return the process that trains, once it is more than a copy of the one that watches it."""
    found = [x for x in watcher.children() if "train" in x.cmdline()]
    return found[0] if found else None


def has_ended(process: psutil.Process) -> bool:
    """Whether a process is gone, or nobody has asked yet how it went."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere the system does not tell of a parent's end"
)
def test_a_run_ends_with_what_watches_it(tmp_path: Path) -> None:
    words = [str(tmp_path), str(os.getpid()), *FOREVER, str(tmp_path / "s1")]
    with subprocess.Popen([sys.executable, "-m", WATCHER, *words]) as watcher:
        trains = soon(lambda: run_of(psutil.Process(watcher.pid)))
        watcher.kill()
    try:
        soon(lambda: has_ended(trains))
    finally:
        if not has_ended(trains):
            trains.kill()


def test_a_run_that_is_killed_is_told_as_killed(tmp_path: Path) -> None:
    """As on this machine: it goes on, where an exit code would say that it failed."""
    words = [str(tmp_path), str(os.getpid()), *FOREVER, str(tmp_path / "s1")]
    with subprocess.Popen([sys.executable, "-m", WATCHER, *words]) as watcher:
        try:
            soon(lambda: run_of(psutil.Process(watcher.pid))).kill()
            assert watcher.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        finally:
            watcher.kill()


def test_no_run_begins_for_a_process_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    words = [sys.executable, "-m", WATCHER, str(folder), str(gone.pid), *FOREVER]
    assert (
        subprocess.run(
            [*words, str(folder / "s1")], timeout=PATIENCE_SECONDS, check=False
        ).returncode
        == 1
    )
    assert not folder.exists()


def test_a_run_ends_before_its_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(folder))
    before = {x.pid for x in psutil.Process().children()}
    trainer = Trainer(WholeRun({}, [*FOREVER, f"{HERE}/s1"], {}, "s1.txt"))
    (watcher,) = [x for x in psutil.Process().children() if x.pid not in before]
    try:
        trains = soon(lambda: run_of(watcher))
        soon(lambda: (folder / "s1").exists())
        trainer.clear()
        assert trainer.changes().code == -signal.SIGKILL
        soon(lambda: has_ended(trains))
        assert not folder.exists()
    finally:
        if watcher.is_running():
            os.killpg(watcher.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster() -> Any:
    """One node with two CPUs, on this machine."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    args = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=args)
    yield made
    ray.shutdown()
    made.shutdown()


def test_trials_train_on_a_cluster(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    (tmp_path / "c.toml").write_text(
        'method = "grid"\n[settings]\nenv_id = "CartPole-v1"\ntotal_env_steps = 600\nnum_envs = 2\n'
        'evaluation.every_seconds = 0\nalgorithm.num_minibatches = 1\n[search]\n"algorithm.passes" = [1, 2]\n'
    )
    assert cli.main(["sweep", "c.toml", "--placement", "cluster", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [x["state"] for x in found["trials"]] == ["done", "done"]
    for trial in ("000", "001"):
        run = tmp_path / "runs" / "sweeps" / "c" / trial / "s1"
        summary = json.loads((run / "summary.json").read_text())
        assert summary["exit_reason"] == "done: total_env_steps reached"
        assert (run / "episodes.jsonl").exists()
    # What came home is a whole run.
    words = ["train", "--resume", "runs/sweeps/c/000/s1", "--total-env-steps", "800"]
    assert cli.main(words) == 0
