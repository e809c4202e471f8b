"""Run folders: made or refused without a trace, found, locked, described, cut back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gossamer.errors import ConfigError, RunFailed
from gossamer.record import folder as folder_module
from gossamer.record.folder import RunFolder, never_learnt
from gossamer.record.metrics import EpisodeLog, JsonLog, MetricLog, read_rows
from gossamer.record.readers import FolderReader
from gossamer.record.runs import find_runs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES: dict[str, Any] = {
    "env_id": "ALE/Pong-v5",
    "algorithm": "vtrace",
    "topology": "single",
    "seed": 3,
}


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "runs")


def is_running(path: Path) -> bool:
    return FolderReader(path).running


def start(path: str | None, root: str, **names: Any) -> RunFolder:
    made = RunFolder.create(path, root=root, **{**NAMES, **names})
    made.write_start({"env_id": "ALE/Pong-v5"}, {"env_id": "command line"}, ["gossamer", "train"])
    made.unlock()
    return made


@contextmanager
def other_process(path: Path, method: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has locked or joined the folder."""
    code = (
        "import sys; from gossamer.record.folder import RunFolder; "
        f"run = RunFolder(sys.argv[1]); run.{method}(); "
        "print('ready', flush=True); sys.stdin.read()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def test_default_path_names_what_runs(root: str) -> None:
    made = RunFolder.create("", root=root, **NAMES)
    env, kind, name = made.path.parts[-3:]
    assert (env, kind) == ("ALE-Pong-v5", "vtrace-single")
    assert name.endswith("-s3")
    assert len(name) == len("20261121-010203-s3")


def test_two_runs_in_one_second_get_two_folders(root: str) -> None:
    made: list[RunFolder] = []
    for _ in range(3):
        made.append(RunFolder.create(None, root=root, **NAMES))
        (made[-1].path / "summary.json").write_text("{}")  # runs may end within the second
    assert len({run.path for run in made}) == 3


def test_an_exact_path_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    assert RunFolder.create(str(path), **NAMES).path == path
    assert path.is_dir()


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "checkpoints"])
def test_a_folder_that_holds_a_run_is_refused_and_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=r"already holds a run; continue it with --resume"):
        RunFolder.create(str(tmp_path), **NAMES)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_run_that_was_ended_before_it_learnt_anything_begins_anew(tmp_path: Path) -> None:
    """As by a cluster that had no place for it: the command that began it does so again."""
    folder = RunFolder.create(str(tmp_path / "run"), **NAMES)
    folder.write_start({"seed": 1}, {}, [])
    folder.log("making 4 environments")
    (folder.path / "metrics.jsonl").touch()
    (folder.path / "mine.txt").write_text("kept")
    with pytest.raises(ConfigError, match="is in use by process"):
        RunFolder.create(str(tmp_path / "run"), **NAMES)
    folder.unlock()
    assert never_learnt(folder.path)
    anew = RunFolder.create(str(tmp_path / "run"), **NAMES)
    assert {x.name for x in anew.path.iterdir()} == {".lock", ".members", "mine.txt"}
    anew.write_start({"seed": 2}, {}, [])
    (anew.path / "metrics.jsonl").write_text('{"env_steps": 1}\n')
    anew.unlock()
    assert not never_learnt(anew.path), "somebody may have removed its checkpoints"
    with pytest.raises(ConfigError, match="already holds a run"):
        RunFolder.create(str(tmp_path / "run"), **NAMES)


def test_a_run_that_was_killed_while_it_wrote_its_first_checkpoint_begins_anew(
    tmp_path: Path,
) -> None:
    folder = RunFolder.create(str(tmp_path / "run"), **NAMES)
    folder.write_start({"seed": 1}, {}, [])
    (folder.path / "metrics.jsonl").write_text('{"env_steps": 1}\n' * 3)
    (folder.path / "checkpoints" / "1.partial").mkdir(parents=True)
    (folder.path / "checkpoints" / "1.partial" / "state.json").write_text("{")
    folder.unlock()
    assert never_learnt(folder.path)
    (folder.path / "metrics.jsonl").write_text('{"env_steps": 1}\n' * 300)
    assert not never_learnt(folder.path), "that was long ago"
    (folder.path / "metrics.jsonl").write_text('{"env_steps": 1}\n' * 3)
    anew = RunFolder.create(str(tmp_path / "run"), **NAMES)
    assert {x.name for x in anew.path.iterdir()} == {".lock", ".members"}
    (anew.path / "checkpoints" / "2").mkdir(parents=True)
    anew.write_start({"seed": 1}, {}, [])
    assert not never_learnt(anew.path)
    anew.unlock()


def test_what_an_environment_forks_does_not_hold_the_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(str(tmp_path / "run"), **NAMES)
    folder.join()
    held, waits = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(waits)
        os.read(held, 1)  # until the test ends
        os._exit(0)
    try:
        folder.unlock()
        again = RunFolder(folder.path)
        again.lock()  # as if the process that held it had been killed
        again.unlock()
    finally:
        os.close(waits)
        os.close(held)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("name", ["videos", "checkpoints", "monitor"])
def test_a_link_in_place_of_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = RunFolder.create(str(tmp_path / "run"), **NAMES)
    folder.unlock()
    (tmp_path / "elsewhere").mkdir()
    (folder.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=f"{name} is a link"):
        folder.lock()


def test_a_path_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "run", tmp_path / "new" / ("x" * 300)):
        with pytest.raises(
            ConfigError, match=r"cannot (write|be a file or) (run )?folder"
        ) as caught:
            RunFolder.create(str(path), **NAMES)
        assert "\n" not in str(caught.value)
        assert "--run-folder PATH" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_unwritable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(ConfigError, match="Permission denied; choose another"):
        RunFolder.create(str(tmp_path / "a" / "run"), **NAMES)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100 << 20, 90 << 20, 10 << 20))
    with pytest.raises(ConfigError, match=r"only 10 MiB free at .*, a run needs 64 MiB"):
        RunFolder.create(str(tmp_path / "a" / "run"), **NAMES)
    assert list(tmp_path.iterdir()) == []


def test_discard_removes_what_it_made_and_nothing_else(tmp_path: Path) -> None:
    mine = ["log.txt", "mine.txt", "wandb"]
    for name in mine[:2]:
        (tmp_path / name).write_text("x")
    (tmp_path / "wandb").mkdir()
    given = RunFolder.create(str(tmp_path), **NAMES)
    given.write_start({}, {}, [])
    given.checkpoints().save(0, {}, {})
    MetricLog(tmp_path / "metrics.jsonl").close()
    given.discard()
    assert sorted(path.name for path in tmp_path.iterdir()) == mine
    made = RunFolder.create(str(tmp_path / "a" / "b"), **NAMES)
    made.discard()
    assert sorted(path.name for path in tmp_path.iterdir()) == mine
    opened = start(str(tmp_path / "run"), "")
    RunFolder(opened.path).discard()
    assert (opened.path / "config.json").exists()


def test_a_locked_folder_has_one_owner(tmp_path: Path) -> None:
    run = start(str(tmp_path / "run"), "")
    with other_process(run.path, "lock") as owner:
        assert is_running(run.path)
        with pytest.raises(ConfigError, match=f"in use by process {owner.pid};"):
            run.lock()
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        assert not is_running(run.path)
        run.lock()
    assert is_running(run.path)
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        RunFolder(run.path).lock()
    run.unlock()
    assert not is_running(run.path)


def test_creating_where_another_process_creates(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with (
        other_process(tmp_path / "run", "lock"),
        pytest.raises(ConfigError, match="in use by process"),
    ):
        RunFolder.create(str(tmp_path / "run"), **NAMES)
    assert (tmp_path / "run" / ".lock").exists()


def test_no_session_begins_before_the_last_ones_children_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "MEMBERS_SECONDS", 0.1)
    run = start(str(tmp_path / "run"), "")
    with other_process(run.path, "join"):
        with pytest.raises(ConfigError, match="earlier session still run"):
            run.lock()
        assert not is_running(run.path)
    run.lock()
    child = RunFolder(run.path)
    child.join()
    child.unlock()


def test_a_late_child_does_not_join_a_starting_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "take_lock", lambda *_, **__: None)
    with pytest.raises(RunFailed, match="another session"):
        RunFolder(tmp_path).join()


def test_lock_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot lock run folder"):
        RunFolder(tmp_path / "nowhere").lock()


def test_open_finds_by_path_last_and_parts(root: str, tmp_path: Path) -> None:
    first = start(f"{root}/CartPole-v1/ppo-single/20260101-000000-s1", root)
    second = start(f"{root}/CartPole-v1/ppo-single/20260102-000000-s2", root)
    outside = start(str(tmp_path / "elsewhere"), root)
    meta = first.read_json("meta.json")
    meta["sessions"][-1]["time_unix"] = 4e9
    first.write_json("meta.json", meta)
    assert RunFolder.open("last", root=root).path == first.path
    assert RunFolder.open("s2", root=root).path == second.path
    assert RunFolder.open("20260101", root=root).path == first.path
    assert RunFolder.open("20260102-000000-s2/", root=root).path == second.path
    assert RunFolder.open(str(outside.path), root=root).path == outside.path
    assert find_runs(tmp_path / "runs") == [first.path, second.path]
    with pytest.raises(ConfigError, match="fits 2 runs"):
        RunFolder.open("CartPole", root=root)
    with pytest.raises(ConfigError, match=r"did you mean .*s1"):
        RunFolder.open("20260101-000000-s7", root=root)
    with pytest.raises(ConfigError, match="no run below"):
        RunFolder.open("last", root=str(tmp_path / "none"))


def test_a_copy_is_not_the_last_run(root: str) -> None:
    """Of an older run, nor of the last: to go on with the latter's backup would be to lose that."""
    older, last = start(f"{root}/older", root), start(f"{root}/last one", root)
    for run in (older, last):
        shutil.copytree(run.path, f"{run.path} copy", copy_function=shutil.copyfile)
        os.utime(f"{run.path} copy/config.json", (2e9, 2e9))
    assert RunFolder.open("last", root=root).path == last.path


def test_a_path_object_is_the_run_itself(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(f"{root}/one", root)
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (run.path, type(tmp_path)("~/runs/one")):
        assert RunFolder.open(given).path.samefile(run.path)
    with pytest.raises(ConfigError, match="is no run folder"):
        RunFolder.open(run.path.parent)


@pytest.mark.parametrize("name", ["last", "-fast"])
def test_a_folder_is_shown_as_it_may_be_typed_again(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Else the next command would be about the newest run, or take the name for an option."""
    start(f"{root}/one", root)
    monkeypatch.chdir(tmp_path)
    run = start(name, root)
    assert run.shown == f"./{name}"
    assert RunFolder.open(run.shown).path == run.path


@pytest.mark.parametrize("letters", [str, str.lower])
def test_open_takes_any_part_that_fits_one_run(
    root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, letters: Any
) -> None:
    pong = start(f"{root}/PongNoFrameskip-v4/ppo-single/20260101-180703-s1", root)
    start(f"{root}/CartPole-v1/ppo-single/20260102-000000-s1", root)
    start(f"{root}/CartPole-v1/a2c-single/20260103-000000-s11", root)
    for part in ("180703", "Pong", "NoFrame", "PongNoFrameskip-v4/ppo-single"):
        assert RunFolder.open(letters(part), root=root).path == pong.path
    monkeypatch.chdir(tmp_path)
    assert RunFolder.open("runs/PongNoFrameskip-v4").shown == str(pong.path.relative_to(tmp_path))
    assert RunFolder.open("./runs/PongNoFrameskip-v4/").shown == str(
        pong.path.relative_to(tmp_path)
    )
    for part in ("artpole", "-s1", "runs/CartPole-v1"):
        with pytest.raises(ConfigError, match="fits 2 runs"):
            RunFolder.open(part)
    for part in (".", "/", "runs", "runs/"):
        with pytest.raises(ConfigError, match="no run"):
            RunFolder.open(part)


def test_a_typed_path_is_that_run_or_one_below_it(
    root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A path that holds no run must not become the run in whose name a piece of it occurs."""
    pong = start(f"{root}/PongNoFrameskip-v4/ppo-single/20260101-180703-s1", root)
    start(f"{root}/CartPole-v1/ppo-gossip/a", root)
    start(f"{root}/CartPole-v1/ppo-gossip/b", root)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for below in ("PongNoFrameskip-v4", "pongnoframeskip-v4/ppo-single/"):
        for above in (
            "runs",
            "./runs",
            f"{tmp_path}/runs",
            "~/runs",
            "../" + tmp_path.name + "/runs",
        ):
            assert RunFolder.open(f"{above}/{below}").shown == str(pong.path.relative_to(tmp_path))
    for path in ("runs/Pong", "./180703", "/tmp/180703", "~/s1", "./s1", "runs/s1", "./runs/a", "../s1",
                 "runs/PongNoFrameskip-v4/ppo-single/20260101-180703-s", "runs/CartPole-v1/ppo"):  # fmt: skip
        with pytest.raises(ConfigError, match="no run"):
            RunFolder.open(path)
    with pytest.raises(ConfigError, match="did you mean runs/PongNoFrameskip-v4/ppo-single/2026"):
        RunFolder.open("runs/PongNoFrameskip-v4/ppo-single/20260101-180703-s2")
    with pytest.raises(ConfigError, match="fits 2 runs"):
        RunFolder.open("./runs/CartPole-v1")


def test_a_name_like_no_other_is_not_taken_for_one(
    root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever types what is proposed would go on with another run."""
    start(f"{root}/gossip4", root)
    start(f"{root}/CartPole-v1/ppo-single/20260101-180703-s1", root)
    monkeypatch.chdir(tmp_path)
    for name in ("nope", "runs/nope"):
        with pytest.raises(ConfigError, match="gossamer runs lists them"):
            RunFolder.open(name)
    for name, meant in (("gosip4", "gossip4"), ("runs/cartpole-v2", "CartPole-v1/ppo-single/2026")):
        with pytest.raises(ConfigError, match=f"did you mean runs/{meant}"):
            RunFolder.open(name)


def test_a_folder_of_seeds_is_no_run_to_resume(
    root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for seed in (1, 2):
        start(f"{root}/mine/s{seed}", root)
    (tmp_path / "runs/mine/seeds.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "runs/mine"):
        with pytest.raises(ConfigError, match=r"--run-folder runs/mine, to go on .* runs/mine/s1"):
            RunFolder.open(name)
    assert RunFolder.open("mine/s2").shown == "runs/mine/s2"


def test_start_records_the_sessions(tmp_path: Path) -> None:
    run = start(str(tmp_path / "run"), "")
    run.write_start({"clip_rho": float("inf")}, {}, ["gossamer", "train", "--resume", "last"])
    meta = run.read_json("meta.json")
    assert [session["argv"][-1] for session in meta["sessions"]] == ["train", "last"]
    assert meta["started_unix"] == meta["sessions"][0]["time_unix"]
    names = {"env_id": "CartPole-v1", "algorithm": "ppo", "topology": "single", "seed": 1}
    other = RunFolder.create(str(tmp_path / "other"), **names)
    other.write_start({}, {}, [], began=12.5)
    assert other.read_json("meta.json")["started_unix"] == 12.5
    assert meta["sessions"][0]["versions"]["torch"]
    assert meta["sessions"][0]["machine"]["cores"] >= 1
    assert run.read_json("config.json") == {"clip_rho": float("inf")}
    # Older runs have another word for them.
    run.write_json("meta.json", {"sittings": meta["sessions"]})
    run.write_start({"env_id": "ALE/Pong-v5"}, {}, ["gossamer", "train", "--resume", "last"])
    assert len(run.read_json("meta.json")["sessions"]) == 3
    assert "sittings" not in run.read_json("meta.json")


def test_json_for_others_is_strict(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_json("summary.json", {"a": float("nan"), "b": (1, float("-inf"))})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"a": None, "b": [1, None]}
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(ConfigError, match=r"summary.json is damaged"):
        run.read_json("summary.json")
    with pytest.raises(ConfigError, match=r"holds no other.json"):
        run.read_json("other.json")


def write_logs(path: Path, upto: int) -> None:
    metrics, evaluations = MetricLog(path / "metrics.jsonl"), JsonLog(path / "evaluation.jsonl")
    episodes = EpisodeLog(path, 1000.0, "Pong")
    for i in range(1, upto + 1):
        metrics.write({"env_steps": 100 * i, "updates": i, "learner/loss": float("nan")})
        evaluations.write({"env_steps": 100 * i, "updates": i, "mean": 1.0})
        info = {"mass": 0.5} if i % 2 == 0 else None  # env 1 tells nothing
        episodes.write(
            env=i % 2, episode_return=i, length=9, env_steps=100 * i - 5, time_s=i, info=info
        )
    metrics.close()
    evaluations.close()
    episodes.close()


def test_cut_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    write_logs(tmp_path, 9)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"env_steps": 300, "upda')  # killed while writing
    RunFolder(tmp_path).cut(env_steps=400, updates={0: 4})
    assert (tmp_path / "metrics.jsonl").read_bytes().count(b"\n") == 4, "what was cut off goes too"
    for name in ("metrics", "evaluation"):
        rows = list(read_rows(tmp_path / f"{name}.jsonl"))
        assert [row["updates"] for row in rows] == [1, 2, 3, 4]
    episodes = [row["return"] for row in read_rows(tmp_path / "episodes.jsonl")]
    assert episodes == [1, 2, 3, 4]
    assert (tmp_path / "monitor/0.monitor.csv").read_text().splitlines()[2:] == [
        "2,9,2,0.5",
        "4,9,4,0.5",
    ]
    assert (tmp_path / "monitor/1.monitor.csv").read_text().splitlines()[2:] == ["1,9,1", "3,9,3"]


def test_each_learners_rows_are_cut_by_its_own_updates(tmp_path: Path) -> None:
    for name in ("metrics", "evaluation"):
        log = JsonLog(tmp_path / f"{name}.jsonl")
        for updates in (1, 2, 4, 6, 8):
            # The run's env steps, those of faster learners included: they say nothing of one learner.
            for learner in (0, 1, 2, "average"):
                row = {"env_steps": 100 * updates, "updates": updates, "learner": learner}
                log.write({"time_s": 2.0 * updates if name == "metrics" else 0.5, **row})
        log.close()
    kept_until = RunFolder(tmp_path).cut(env_steps=300, updates={0: 4, 1: 7, 2: 1})
    assert kept_until == 12.0, "of learner 1, after six updates"
    for name in ("metrics", "evaluation"):
        kept: dict[int | str, list[int]] = {}
        steps: list[int] = []
        for row in read_rows(tmp_path / f"{name}.jsonl"):
            kept.setdefault(row["learner"], []).append(row["updates"])
            steps.append(row["env_steps"])
        # Of the average's policies that of the slowest learner is counted.
        assert kept == {0: [1, 2, 4], 1: [1, 2, 4, 6], 2: [1], "average": [1]}
        # What was written when others had already gone on is older than the checkpoint all the same.
        assert steps == [100, 100, 100, 100, 200, 200, 300, 300, 300]


def test_a_cut_and_repeated_run_logs_the_same_as_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    for path in (whole, torn):
        path.mkdir()
    write_logs(whole, 4)
    write_logs(torn, 9)
    (torn / "monitor" / "1.monitor.csv").write_text('#{"t_start"')  # killed in its header
    (torn / "monitor" / "5.monitor.csv").write_text('#{"t_start": 1}\nr,l,t\n7,7,7\n')
    RunFolder(torn).cut(env_steps=400, updates={0: 4})
    RunFolder(torn).cut(env_steps=400, updates={0: 4})
    for name in ("metrics.jsonl", "episodes.jsonl", "evaluation.jsonl", "monitor/0.monitor.csv"):
        assert (torn / name).read_bytes() == (whole / name).read_bytes(), name
    assert (torn / "monitor/1.monitor.csv").read_bytes() == b""
    assert (torn / "monitor/5.monitor.csv").read_text().endswith("r,l,t\n")


def test_cut_monitors_have_the_columns_of_their_header(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, 0.0, "mine")
    told: list[dict[str, float]] = [{"mass": 1.0}, {"wind": 2.0, "mass": 3.0}, {}, {"mass": 4.0}]
    for i, info in enumerate(told):
        log.write(env=0, episode_return=i, length=1, env_steps=i, time_s=i, info=info)
    log.close()
    whole = (tmp_path / "monitor" / "0.monitor.csv").read_text().splitlines()
    assert whole[2:] == ["0,1,0,1.0", "1,1,1,3.0", "2,1,2,nan", "3,1,3,4.0"]
    RunFolder(tmp_path).cut(env_steps=2, updates={0: 1})
    cut = (tmp_path / "monitor" / "0.monitor.csv").read_text().splitlines()
    assert cut == whole[:5]


def test_cut_can_go_by_the_number_of_episodes(tmp_path: Path) -> None:
    write_logs(tmp_path, 9)
    RunFolder(tmp_path).cut(env_steps=400, updates={0: 4}, episodes=6)
    assert len(list(read_rows(tmp_path / "episodes.jsonl"))) == 6
    assert len(list(read_rows(tmp_path / "metrics.jsonl"))) == 4
    log = EpisodeLog(tmp_path, 0.0, "Pong")
    assert log.count == 6
    log.close()


def test_cut_at_the_end_changes_nothing(tmp_path: Path) -> None:
    write_logs(tmp_path, 3)
    before = {p: (p.read_bytes(), p.stat().st_ino) for p in tmp_path.rglob("*") if p.is_file()}
    RunFolder(tmp_path).cut(env_steps=300, updates={0: 3})
    assert before == {p: (p.read_bytes(), p.stat().st_ino) for p in before}


def test_log_lines_carry_the_time(tmp_path: Path) -> None:
    RunFolder(tmp_path).log("hello\n")
    line = (tmp_path / "log.txt").read_text()
    assert line.endswith(" hello\n")
    assert line[:2] == "20"
