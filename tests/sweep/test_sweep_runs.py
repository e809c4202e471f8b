"""Real sweeps of tiny trials: killed and gone on with, stopped, pruned, of several seeds; and what they leave behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import held_envs
import psutil
import pytest
from waiting import PATIENCE_SECONDS

from gossamer import cli
from gossamer.config import resolve
from gossamer.sweep.store import TRIAL

SUPPORT = str(Path(held_envs.__file__).parent)
SETTINGS = """
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
"""
HELD = "held_envs:HeldCartPole"
SEARCH = """
[search]
"optimizer.learning_rate" = [1e-3, 1e-2]
"""


class Command:
    """`gossamer sweep` in a process of its own; killed with its runs at the end."""

    def __init__(self, folder: Path, words: list[str]):
        self._output = folder / "output.txt"
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gossamer", *words],
                cwd=folder,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([SUPPORT, os.environ.get("PYTHONPATH", "")]),
                    held_envs.VARIABLE: str(folder / "released"),
                },
            )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(everything=True)

    def output(self) -> str:
        return self._output.read_text()

    def kill(self, *, everything: bool) -> None:
        if self.process.poll() is not None:
            return
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        for child in children if everything else ():
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < give_up, f"no {what}: {self.output()}"
            time.sleep(0.02)

    def end(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)


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


def test_killed_and_started_again_nothing_is_lost_and_nothing_done_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with its runs, then alone, so that a run trains on while nobody watches."""
    steps = held_envs.steps_for(1)
    text = 'method = "grid"\n' + SETTINGS.format(steps=steps, env_id=HELD) + SEARCH
    (tmp_path / "grid.toml").write_text(text)
    sweep = tmp_path / "runs" / "sweeps" / "grid"
    words = ["sweep", "grid.toml", "--jobs", "1"]
    with Command(tmp_path, words) as command:
        command.wait_for(lambda: has_checkpoint(sweep), "checkpoint")
        command.kill(everything=True)
    with Command(tmp_path, words) as command:
        command.wait_for(lambda: len(sessions(sweep / "000" / "s1")) == 2, "resumed run")
        command.kill(everything=False)
    with Command(tmp_path, words) as command:
        command.wait_for(lambda: "000/s1 still trains" in command.output(), "word of the run")
        (tmp_path / "released").touch()
        assert command.end() == 0, command.output()
        assert "000/s1 still trains; waiting for it" in command.output()
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
    # Once more: there is nothing to do, and the same is told.
    before = {path: path.stat().st_mtime_ns for path in sweep.rglob("summary.json")}
    monkeypatch.chdir(tmp_path)
    assert cli.main([*words, "--json"]) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert json.loads((sweep / "results.json").read_text()) == results
    best = results["best"][0]
    config = resolve(configs=[str(sweep / "best.toml")])[0]
    assert config.optimizer.learning_rate == (
        results["trials"][best]["settings"]["optimizer.learning_rate"],
    )
    assert config.total_env_steps == steps


def test_stopped_by_ctrl_c_its_runs_are_saved(tmp_path: Path) -> None:
    text = (
        'method = "grid"\nseeds = 2\n'
        + SETTINGS.format(steps=10_000_000, env_id="CartPole-v1")
        + SEARCH
    )
    (tmp_path / "grid.toml").write_text(text)
    sweep = tmp_path / "runs" / "sweeps" / "grid"
    with Command(tmp_path, ["sweep", "grid.toml", "--jobs", "1"]) as command:
        command.wait_for(lambda: has_checkpoint(sweep), "checkpoint")
        command.process.send_signal(signal.SIGINT)
        assert command.end() == 130, command.output()
        assert (
            "stopped: 2 of 2 trials are left; to go on, type: gossamer sweep grid.toml"
            in command.output()
        )
    assert {x: y["exit_reason"] for x, y in summaries(sweep).items()} == {
        "000/s1": "stopped by SIGINT"
    }


def test_the_best_preset_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A sweep with a trial that cannot be, and two objectives; what `gossamer train --config` makes of the best."""
    monkeypatch.chdir(tmp_path)
    text = 'objective = ["return", "steps_to_score"]\nscore = 1e6\nmethod = "random"\ntrials = 2\n'
    (tmp_path / "two.toml").write_text(
        text + SETTINGS.format(steps=600, env_id="CartPole-v1") + SEARCH
    )
    assert cli.main(["sweep", "two.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"]
    assert {x["steps_to_score"] for x in found["trials"]} == {None}  # never
    (preset,) = list(Path("runs/sweeps/two").glob(f"best-{found['best'][0]:03d}.toml"))
    assert cli.main(["train", "--config", str(preset), "--show-config"]) == 0
    shown = capsys.readouterr().out
    rate = found["trials"][found["best"][0]]["settings"]["optimizer.learning_rate"]
    assert f"learning_rate = {[rate]}" in shown or f"{rate:g}" in shown


def test_a_trial_that_fails_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        'method = "grid"\n'
        + SETTINGS.format(steps=600, env_id="CartPole-v1").replace("CartPole-v1", "NoSuchGame-v7")
        + SEARCH
    )
    (tmp_path / "bad.toml").write_text(text)
    assert cli.main(["sweep", "bad.toml"]) == 1
    out, err = capsys.readouterr()
    assert "no trial is done" in out
    assert "NoSuchGame-v7" in err
    assert err.splitlines()[-1].startswith(
        "gossamer: 2 of 2 trials failed; to try them again, type:"
    )


def test_seeds_are_ordinary_runs_with_one_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "train",
        "CartPole-v1",
        "--total-env-steps",
        "600",
        "--num-envs",
        "2",
        "--evaluation.every-seconds=0",
    ]
    words += [
        "--seed",
        "4",
        "--seeds",
        "2",
        "--run-folder",
        "mine",
        "--algorithm.num-minibatches",
        "1",
    ]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "seed 4: done: total_env_steps reached" in out
    assert "area (mean return over the whole run): mean " in out
    assert "2 runs" in out
    seeds = [json.loads(Path(f"mine/s{x}/config.json").read_text())["seed"] for x in (4, 5)]
    assert seeds == [4, 5]
    # One more is added, those that are done are left.
    before = Path("mine/s4/summary.json").stat().st_mtime_ns
    words[words.index("--seeds") + 1] = "3"
    assert cli.main(words) == 0
    assert "3 runs" in capsys.readouterr().out
    assert Path("mine/s4/summary.json").stat().st_mtime_ns == before
    words[words.index("600")] = "700"
    assert cli.main(words) == 2
    assert "mine holds runs with other settings (total_env_steps)" in capsys.readouterr().err
    # Without a folder too; another setting has another one.
    at = words.index("--run-folder")
    del words[at : at + 2]
    words[words.index("--seeds") + 1] = "1"
    assert cli.main(words) == 0
    words[words.index("--seeds") + 1] = "2"
    assert cli.main(words) == 0
    told = capsys.readouterr()
    assert "1 of 2 seeds are done already" in told.out + told.err
    assert [len([*x.glob("s*/")]) for x in Path("runs").glob("*/*/*-seeds")] == [2]
    words[words.index("700")] = "800"
    words[words.index("--seeds") + 1] = "1"
    assert cli.main(words) == 0
    assert len([*Path("runs").glob("*/*/*-seeds*")]) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["CartPole-v1", "--seeds", "0"], "--seeds is 0; it must be in [1, 1000]"),
        (["CartPole-v1", "--seeds"], "--seeds needs a value"),
        (["CartPole-v1", "--seeds", "two"], "--seeds is \"two\"; it must be a whole number"),
        (["--resume", "last", "--seeds", "2"], "--seeds cannot be given with --resume"),
    ],
)  # fmt: skip
def test_wrong_seeds_are_one_line(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *words]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_seeds_leave_a_folder_alone_that_holds_anything_else(tmp_path: Path, capsys: Any) -> None:
    mine = tmp_path / "mine"
    (mine / "s1").mkdir(parents=True)
    (mine / "s1" / "thesis.txt").write_text("years of work")
    words = ["CartPole-v1", "--seeds", "2", "--total-env-steps", "600", "--run-folder", str(mine)]
    assert cli.main(["train", *words]) == 2
    assert "mine is not empty, and --seeds has made nothing there" in capsys.readouterr().err
    assert [x.name for x in mine.iterdir()] == ["s1"]
    assert (mine / "s1" / "thesis.txt").read_text() == "years of work"


def test_presets_of_the_users_own_stay(tmp_path: Path) -> None:
    from gossamer.sweep.file import read_sweep
    from gossamer.sweep.report import write_presets
    from gossamer.sweep.store import SweepFolder

    folder = SweepFolder(make_folder(tmp_path), read_sweep(str(tmp_path / "grid.toml")))
    for name in ("best-of-monday.toml", "best-007.toml", "best.toml"):
        (folder.path / name).write_text("")
    assert write_presets(folder, []) == []
    assert [x.name for x in folder.path.glob("best*")] == ["best-of-monday.toml"]


@pytest.mark.parametrize("older", [False, True])
def test_a_sweep_keeps_when_it_was_begun(tmp_path: Path, *, older: bool) -> None:
    """Also when more trials are asked for; one of an older version was begun when its file was written."""
    from gossamer.sweep.file import read_sweep
    from gossamer.sweep.store import SweepFolder

    manifest = make_folder(tmp_path) / "sweep.json"
    content = json.loads(manifest.read_text())
    assert abs(content["started_unix"] - time.time()) < 600
    begun = 1e9 if older else content["started_unix"]
    if older:
        del content["started_unix"]
    manifest.write_text(json.dumps({**content, "trials": 1}))
    os.utime(manifest, (1e9, 1e9))
    folder = SweepFolder(tmp_path / "mine", read_sweep(str(tmp_path / "grid.toml")))
    folder.open()
    folder.close()
    told = json.loads(manifest.read_text())
    assert (told["trials"], told["started_unix"]) == (2, begun)


def make_folder(tmp_path: Path) -> Path:
    """A sweep's folder as one that was killed at once leaves it."""
    from gossamer.sweep.file import read_sweep
    from gossamer.sweep.store import SweepFolder

    (tmp_path / "grid.toml").write_text(
        'method = "grid"\n' + SETTINGS.format(steps=600, env_id="CartPole-v1") + SEARCH
    )
    folder = SweepFolder(tmp_path / "mine", read_sweep(str(tmp_path / "grid.toml")))
    folder.open()
    assert folder.read_trials() == []
    folder.add(0, {"optimizer.learning_rate": 1e-3})
    folder.close()
    return tmp_path / "mine"


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
    damage: Callable[[Path], Any], told: str, tmp_path: Path, capsys: Any
) -> None:
    folder = make_folder(tmp_path)
    damage(folder)
    assert cli.main(["sweep", str(tmp_path / "grid.toml"), "--folder", str(folder)]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path, capsys: Any) -> None:
    from gossamer.sweep.file import read_sweep
    from gossamer.sweep.store import SweepFolder

    folder = make_folder(tmp_path)
    held = SweepFolder(folder, read_sweep(str(tmp_path / "grid.toml")))
    held.open()
    try:
        assert cli.main(["sweep", str(tmp_path / "grid.toml"), "--folder", str(folder)]) == 2
    finally:
        held.close()
    assert "another gossamer sweep works in" in capsys.readouterr().err


def test_what_a_kill_leaves_half_made_is_made_anew(tmp_path: Path) -> None:
    from gossamer.sweep.file import read_sweep
    from gossamer.sweep.local_site import make_room
    from gossamer.sweep.store import SweepFolder

    folder = make_folder(tmp_path)
    (folder / "001.partial").mkdir()
    sweep = SweepFolder(folder, read_sweep(str(tmp_path / "grid.toml")))
    sweep.open()
    (trial,) = sweep.read_trials()
    sweep.close()
    assert not (folder / "001.partial").exists()
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
    shutil.rmtree(folder)
