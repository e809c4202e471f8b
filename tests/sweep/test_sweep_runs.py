"""Real sweeps of tiny trials: killed and gone on with, stopped, pruned, of several seeds; and what they leave behind."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import held_envs
import psutil
import pytest
from sessions import Session

from gossamer import cli
from gossamer.config import resolve, to_dict
from gossamer.errors import ConfigError
from gossamer.record.files import take_lock
from gossamer.sweep.file import read_sweep
from gossamer.sweep.local_site import make_room
from gossamer.sweep.pool import PlannedRun
from gossamer.sweep.report import write_presets
from gossamer.sweep.store import TRIAL, SweepFolder

GRID = """
method = "grid"
[settings]
env_id = "{env_id}"
total_env_steps = {steps}
num_envs = 2
unroll_length = 16
checkpoint_every_seconds = 0.3
evaluation.every_seconds = 0
policy.hidden_sizes = [8]
algorithm.num_minibatches = 1
algorithm.passes = 1
[search]
"optimizer.learning_rate" = [1e-3, 1e-2]
"""
HELD = "held_envs:HeldCartPole"


def grid(steps: int, env_id: str = "CartPole-v1") -> str:
    """The file of a sweep of two trials."""
    return GRID.format(steps=steps, env_id=env_id)


class Sweep(Session):
    """`gossamer sweep`; killed with its runs at the end."""

    def __init__(self, words: list[str], folder: Path):
        super().__init__(words, folder, command="sweep")

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        super().__exit__()

    def kill_all(self) -> None:
        if self.process.poll() is None:
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            self.process.wait()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()

    def said(self) -> str:
        return Path(self._err.name).read_text()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def summaries(sweep: Path) -> dict[str, dict[str, Any]]:
    return {
        path.parent.relative_to(sweep).as_posix(): json.loads(path.read_text())
        for path in sorted(sweep.glob("*/s*/summary.json"))
    }


def sessions(run: Path) -> list[list[str]]:
    return [x["argv"] for x in json.loads((run / "meta.json").read_text())["sessions"]]


def has_checkpoint(sweep: Path) -> bool:
    """Whether a run has more than its first checkpoint, whole: a partial one has a manifest as well."""
    names = {x.parent.name for x in sweep.glob("*/s*/checkpoints/*/manifest.json")}
    return any(name.isdecimal() and int(name) > 0 for name in names)


def test_killed_and_started_again_nothing_is_lost_and_nothing_done_twice(here: Path) -> None:
    """Killed with its runs, then alone, so that a run trains on while nobody watches."""
    steps = held_envs.steps_for(1)
    (here / "grid.toml").write_text(grid(steps, HELD))
    sweep = here / "runs" / "sweeps" / "grid"
    words = ["grid.toml", "--jobs", "1"]
    with Sweep(words, here) as session:
        session.wait_for(lambda: has_checkpoint(sweep), "checkpoint")
        session.kill_all()
    with Sweep(words, here) as session:
        session.wait_for(lambda: len(sessions(sweep / "000" / "s1")) == 2, "resumed run")
        session.process.kill()
        session.process.wait()
    with Sweep(words, here) as session:
        waits = "000/s1 still trains; waiting for it"
        session.wait_for(lambda: waits in session.said(), "word of the run")
        session.release()
        code, _, err = session.end()
        assert code == 0, err
    found = summaries(sweep)
    assert list(found) == ["000/s1", "001/s1"]
    assert all(x["exit_reason"] == "done: total_env_steps reached" for x in found.values())
    begun = [words[2] for words in sessions(sweep / "000" / "s1")]
    assert begun == ["--config", "--resume"]
    assert len(sessions(sweep / "001" / "s1")) == 1
    for run in sweep.glob("*/s1"):
        rows = [json.loads(x) for x in (run / "episodes.jsonl").read_text().splitlines()]
        at = [row["env_steps"] for row in rows]
        assert at == sorted(at)
        assert (
            sum(row["length"] for row in rows)
            <= found[run.relative_to(sweep).as_posix()]["env_steps"]
        )
    results = json.loads((sweep / "results.json").read_text())
    assert [x["state"] for x in results["trials"]] == ["done", "done"]
    for name in ("env_steps", "seconds"):
        of_runs = [found[f"{x['trial']:03d}/s1"][name] for x in results["trials"]]
        assert [x[name] for x in results["trials"]] == of_runs
    # Once more: there is nothing to do, and the same is told.
    before = {path: path.stat().st_mtime_ns for path in sweep.rglob("summary.json")}
    assert cli.main(["sweep", *words, "--json"]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert json.loads((sweep / "results.json").read_text()) == results
    best = results["best"][0]
    config = resolve(configs=[str(sweep / "best.toml")])[0]
    assert config.optimizer.learning_rate == (
        results["trials"][best]["settings"]["optimizer.learning_rate"],
    )
    assert config.total_env_steps == steps


def test_stopped_by_ctrl_c_its_runs_are_saved(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text("seeds = 2\n" + grid(10_000_000))
    sweep = tmp_path / "runs" / "sweeps" / "grid"
    with Sweep(["grid.toml", "--jobs", "1"], tmp_path) as session:
        session.wait_for(lambda: has_checkpoint(sweep), "checkpoint")
        session.signal(signal.SIGINT)
        code, _, err = session.end()
    assert code == 130, err
    again = "gossamer sweep grid.toml --jobs 1\n"
    assert f"stopped: 2 of 2 trials are left; to go on, type: {again}" in err
    assert {x: y["exit_reason"] for x, y in summaries(sweep).items()} == {
        "000/s1": "stopped by SIGINT"
    }


def test_the_best_preset_trains(here: Path, capsys: Any) -> None:
    """A sweep with a trial that cannot be, and two objectives; what `gossamer train --config` makes of the best."""
    text = 'objective = ["return", "steps_to_score"]\nscore = 1e6\ntrials = 2\n'
    (here / "two.toml").write_text(text + grid(600).replace("grid", "random"))
    assert cli.main(["sweep", "two.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"]
    assert {x["steps_to_score"] for x in found["trials"]} == {None}  # never
    (preset,) = list(Path("runs/sweeps/two").glob(f"best-{found['best'][0]:03d}.toml"))
    assert cli.main(["train", "--config", str(preset), "--show-config"]) == 0
    shown = capsys.readouterr().out
    rate = found["trials"][found["best"][0]]["settings"]["optimizer.learning_rate"]
    assert f"learning_rate = {[rate]}" in shown or f"{rate:g}" in shown


def test_a_trial_that_fails_is_told_and_tried_again(here: Path, capsys: Any) -> None:
    (here / "bad.toml").write_text(grid(600, "NoSuchGame-v7"))
    assert cli.main(["sweep", "bad.toml"]) == 1
    out, err = capsys.readouterr()
    assert "no trial is done" in out
    assert "NoSuchGame-v7" in err
    assert err.splitlines()[-1].startswith(
        "gossamer: 2 of 2 trials failed; to try them again, type:"
    )


def test_a_trial_without_its_objective_is_not_told_to_be_tried_again(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    (here / "short.toml").write_text(grid(32, "counting_envs:Silent"))  # a thousand steps long
    assert cli.main(["sweep", "short.toml"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("gossamer: 2 of 2 trials failed; the last one: not every run has ")
    assert last.endswith("set total_env_steps higher, in another sweep")


def test_seeds_are_ordinary_runs_with_one_summary(here: Path, capsys: Any) -> None:
    flags: dict[str, object] = {
        "total-env-steps": 600,
        "num-envs": 2,
        "algorithm.num-minibatches": 1,
    }
    flags |= {"evaluation.every-seconds": 0, "seed": 4, "seeds": 2, "run-folder": "mine"}

    def train(**changed: object) -> int:
        flags.update({name.replace("_", "-"): value for name, value in changed.items()})
        return cli.main(["train", "CartPole-v1", *(f"--{x}={y}" for x, y in flags.items())])

    assert train() == 0
    out = capsys.readouterr().out
    assert "seed 4: done: total_env_steps reached" in out
    assert "area (mean return over the whole run): mean " in out
    assert "2 runs" in out
    seeds = [json.loads(Path(f"mine/s{x}/config.json").read_text())["seed"] for x in (4, 5)]
    assert seeds == [4, 5]
    # One more is added, those that are done are left.
    before = Path("mine/s4/summary.json").stat().st_mtime_ns
    assert train(seeds=3) == 0
    assert "3 runs" in capsys.readouterr().out
    assert Path("mine/s4/summary.json").stat().st_mtime_ns == before
    # Its luck may have chosen what others then measure.
    assert train(seeds=2, seed=5) == 0
    assert "2 runs" in capsys.readouterr().out
    assert train(seeds=3, seed=4) == 0
    capsys.readouterr()
    assert train(total_env_steps=700) == 2
    assert "mine holds runs with other settings (total_env_steps)" in capsys.readouterr().err
    # Without a folder too; another setting has another one.
    del flags["run-folder"]
    assert train(seeds=1) == 0
    assert train(seeds=2) == 0
    told = capsys.readouterr()
    assert "1 of 2 seeds are done already" in told.out + told.err
    assert [len([*x.glob("s*/")]) for x in Path("runs").glob("*/*/*-seeds")] == [2]
    assert train(seeds=1, total_env_steps=800) == 0
    assert len([*Path("runs").glob("*/*/*-seeds*")]) == 2
    assert train(init_from="last") == 2
    told = capsys.readouterr().err
    source = re.search(
        r"init_from last may mean another run .* name the run by its path: (\S+)", told
    )
    assert source is not None, told
    assert train(init_from=source[1]) == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["CartPole-v1", "--seeds", "0"], "--seeds is 0; it must be in [1, 1000]"),
        (["CartPole-v1", "--seeds"], "--seeds needs a value"),
        (["CartPole-v1", "--seeds", "two"], "--seeds is \"two\"; it must be a whole number"),
        (["--resume", "last", "--seeds", "2"], "--seeds cannot be given with --resume"),
    ],
)  # fmt: skip
def test_wrong_seeds_are_one_line(words: list[str], told: str, here: Path, capsys: Any) -> None:
    assert cli.main(["train", *words]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("folder", ["mine", None])
def test_seeds_go_on_that_were_trained_before_a_setting_came(
    folder: str | None, here: Path, capsys: Any
) -> None:
    words = ["train", "CartPole-v1", "--seeds", "1", "--total-env-steps", "600"]
    words += ["--run-folder", folder] if folder else []
    place = Path(folder or "runs/CartPole-v1/ppo-single/20260101-120000-seeds")
    (place / "s1").mkdir(parents=True)
    config, _ = resolve(given={"env_id": "CartPole-v1", "total_env_steps": 600})
    made = to_dict(replace(config, seed=0))
    del made["patience_seconds"], made["evaluation"]["video"]
    (place / "seeds.json").write_text(json.dumps(made))
    (place / "s1" / "summary.json").write_text('{"exit_reason": "done: total_env_steps reached"}')
    assert cli.main(words) == 0
    assert "1 of 1 seeds are done already" in capsys.readouterr().err
    held = json.loads((place / "seeds.json").read_text())
    held["total_env_steps"] = 700
    (place / "seeds.json").write_text(json.dumps(held))
    if folder:
        assert cli.main(words) == 2
        assert "runs with other settings (total_env_steps)" in capsys.readouterr().err


def test_a_second_command_leaves_seeds_that_train_to_the_first(here: Path, capsys: Any) -> None:
    words = [
        "train",
        "CartPole-v1",
        "--seeds",
        "1",
        "--total-env-steps",
        "600",
        "--run-folder",
        "mine",
    ]
    Path("mine").mkdir()
    lock = take_lock(Path("mine/.lock"), fcntl.LOCK_EX, patience_seconds=0.0)
    assert lock is not None
    assert cli.main(words) == 2
    assert "another gossamer train --seeds works in mine" in capsys.readouterr().err
    assert [x.name for x in Path("mine").iterdir()] == [".lock"]
    os.close(lock)


def test_seeds_leave_a_folder_alone_that_holds_anything_else(tmp_path: Path, capsys: Any) -> None:
    mine = tmp_path / "mine"
    (mine / "s1").mkdir(parents=True)
    (mine / "s1" / "thesis.txt").write_text("years of work")
    words = ["CartPole-v1", "--seeds", "2", "--total-env-steps", "600", "--run-folder", str(mine)]
    assert cli.main(["train", *words]) == 2
    assert "mine is not empty, and --seeds has made nothing there" in capsys.readouterr().err
    assert [x.name for x in mine.iterdir()] == ["s1"]
    assert (mine / "s1" / "thesis.txt").read_text() == "years of work"


@pytest.fixture
def begun(tmp_path: Path) -> SweepFolder:
    """A sweep's folder as one that was killed at once leaves it, and nobody works in."""
    (tmp_path / "grid.toml").write_text(grid(600))
    folder = SweepFolder(tmp_path / "mine", read_sweep(str(tmp_path / "grid.toml")))
    with closing(folder):
        folder.open()
        assert folder.read_trials() == []
        folder.add(0, {"optimizer.learning_rate": 1e-3})
    return folder


def go_on(folder: SweepFolder) -> int:
    return cli.main(["sweep", folder.sweep.file, "--folder", str(folder.path)])


def test_settings_in_another_order_are_another_search(tmp_path: Path, capsys: Any) -> None:
    """A trial's number says which of them it tries."""
    file = tmp_path / "grid.toml"
    file.write_text(grid(600) + '"policy.hidden_sizes" = [[4], [8]]\n')
    folder = SweepFolder(tmp_path / "mine", read_sweep(str(file)))
    with closing(folder):
        folder.open()
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]))
    again = SweepFolder(tmp_path / "mine", read_sweep(str(file)))
    assert go_on(again) == 2
    assert "holds another sweep (other: search)" in capsys.readouterr().err


def test_presets_of_the_users_own_stay(begun: SweepFolder) -> None:
    for name in ("best-of-monday.toml", "best-007.toml", "best.toml"):
        (begun.path / name).write_text("")
    assert write_presets(begun, []) == []
    assert [x.name for x in begun.path.glob("best*")] == ["best-of-monday.toml"]


@pytest.mark.parametrize("name", ["two\nlines.toml", "\x1b.toml", "\udc80.toml"])
def test_the_name_of_a_file_commands_no_preset(name: str, tmp_path: Path) -> None:
    """It is told in a comment, where a line that ends early would be a setting, and some characters may not be."""
    path = tmp_path / name
    path.write_text(grid(600))
    folder = SweepFolder(tmp_path / "mine", read_sweep(str(path)))
    with closing(folder):
        folder.open()
        folder.write_settings(folder.add(0, {"optimizer.learning_rate": 1e-3}), "best.toml")
    assert resolve(configs=[str(folder.path / "best.toml")])[0].total_env_steps == 600


@pytest.mark.parametrize("older", [False, True])
def test_a_sweep_keeps_when_it_was_begun(begun: SweepFolder, *, older: bool) -> None:
    """Also when more trials are asked for; one of an older version was begun when its file was written."""
    manifest = begun.path / "sweep.json"
    content = json.loads(manifest.read_text())
    assert abs(content["started_unix"] - time.time()) < 600
    started = 1e9 if older else content["started_unix"]
    if older:
        del content["started_unix"]
    manifest.write_text(json.dumps({**content, "trials": 1}))
    os.utime(manifest, (1e9, 1e9))
    with closing(begun):
        begun.open()
    told = json.loads(manifest.read_text())
    assert (told["trials"], told["started_unix"]) == (2, started)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda x: (x / "sweep.json").write_text("{"), "sweep.json is damaged"),
        (lambda x: (x / "sweep.json").write_text('{"sweep": {"method": "tpe"}}'), "holds another sweep"),
        (lambda x: (x / "000" / TRIAL).write_text("[]"), "is damaged"),
        (lambda x: (x / "000" / TRIAL).write_text('{"chosen": {"optimizer.learning_rate": 5}}'), "does not try"),
        (lambda x: (x / "000" / TRIAL).write_text('{"chosen": {"env_id": "evil:f"}}'), "does not try"),
        (lambda x: (x / "000" / TRIAL).unlink(), "the trial is run anew"),
        (lambda x: (x / "sweep.json").unlink(), "holds no sweep"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_one_line(
    damage: Callable[[Path], Any], told: str, begun: SweepFolder, capsys: Any
) -> None:
    damage(begun.path)
    assert go_on(begun) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_a_sweep_that_cannot_go_on_for_want_of_room_is_one_line(
    begun: SweepFolder, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk became full while nobody worked there."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(SweepFolder, "write_settings", full)
    assert go_on(begun) == 1
    err = capsys.readouterr().err
    told = f"cannot write into {begun.path}: No space left on device; make room, and type: gossamer sweep "
    assert told in err
    assert err.count("\n") == 1


def test_two_sweeps_do_not_share_a_folder(begun: SweepFolder, capsys: Any) -> None:
    with closing(begun):
        begun.open()
        assert go_on(begun) == 2
    assert "another gossamer sweep works in" in capsys.readouterr().err


def test_what_a_kill_leaves_half_made_is_made_anew(begun: SweepFolder, tmp_path: Path) -> None:
    (begun.path / "001.partial").mkdir()
    with closing(begun):
        begun.open()
        (trial,) = begun.read_trials()
    assert not (begun.path / "001.partial").exists()
    run = trial.runs[0]
    run.folder.mkdir()
    (run.folder / "meta.json").write_text("{}")  # killed before its config.json
    make_room(run)
    assert not run.folder.exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run.folder.symlink_to(elsewhere)
    with pytest.raises(ValueError, match="is a link"):
        make_room(run)
    assert elsewhere.exists()


def test_a_run_that_cannot_be_looked_into_for_now_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network disk that is away for a moment."""
    folder = tmp_path / "s1"
    (folder / "checkpoints" / "3").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    run = PlannedRun("seed 1", folder, 1)
    stat = Path.stat

    def fail(path: Path, **how: bool) -> os.stat_result:
        if path.name == "config.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", fail)
        with pytest.raises(ConfigError, match=r"s1 cannot be read: Input/output error"):
            make_room(run)
    assert (folder / "checkpoints" / "3").is_dir()
