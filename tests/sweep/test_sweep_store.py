"""A sweep's folder goes on with the sweep that has begun it, and with no other."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from gossamer.errors import ConfigError
from gossamer.sweep.file import read_sweep
from gossamer.sweep.store import SweepFolder

FILE = """
method = "random"
trials = {trials}
objective = "steps_to_score"
score = {score}
config = {config}
[settings]
env_id = "CartPole-v1"
total_env_steps = {steps}
[search]
"algorithm.passes" = [1, 2]
"""


def opened(
    tmp_path: Path,
    *,
    trials: int = 2,
    score: float = 100.0,
    steps: int = 1_000,
    config: tuple[str, ...] = ("few.toml", "many.toml"),
) -> None:
    """Open the folder with what a file says."""
    for name, envs in (("few.toml", 2), ("many.toml", 8)):
        (tmp_path / name).write_text(f"num_envs = {envs}\n")
    names = [str(tmp_path / name) for name in config]
    text = FILE.format(trials=trials, score=score, steps=steps, config=names)
    (tmp_path / "x.toml").write_text(text)
    with closing(SweepFolder(tmp_path / "mine", read_sweep(str(tmp_path / "x.toml")))) as folder:
        folder.open()


def test_a_sweep_with_another_score_is_another_sweep(tmp_path: Path) -> None:
    """Its trials would be worth steps to one score, those that are done to another."""
    opened(tmp_path)
    opened(tmp_path, trials=3)
    with pytest.raises(ConfigError, match=r"holds another sweep \(other: score\)"):
        opened(tmp_path, score=200.0)


def test_a_sweep_whose_files_win_in_another_order_is_another_sweep(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(ConfigError, match=r"holds another sweep \(other: config\)"):
        opened(tmp_path, config=("many.toml", "few.toml"))


def test_a_sweep_with_other_settings_is_another_sweep(tmp_path: Path) -> None:
    """Its trials would not be compared with what they differ in alone."""
    opened(tmp_path)
    with pytest.raises(ConfigError, match=r"holds another sweep \(other: settings\)"):
        opened(tmp_path, steps=2_000)


def test_a_power_cut_leaves_no_trial_without_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is renamed before it is on the disk may be empty then, and no sweep goes on with a damaged trial."""
    (tmp_path / "x.toml").write_text(FILE.format(trials=2, score=100.0, steps=1_000, config=[]))
    folder = SweepFolder(tmp_path / "mine", read_sweep(str(tmp_path / "x.toml")))
    synced: set[int] = set()
    sync, rename = os.fsync, Path.rename

    def note(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        sync(handle)

    def see(path: Path, target: Path) -> Path:
        assert all(x.stat().st_ino in synced for x in path.iterdir()), "its name came first"
        return rename(path, target)

    with closing(folder):
        folder.open()
        monkeypatch.setattr(os, "fsync", note)
        monkeypatch.setattr(Path, "rename", see)
        folder.add(0, folder.sweep.choice(0))
    assert [x.number for x in folder.read_trials()] == [0]
