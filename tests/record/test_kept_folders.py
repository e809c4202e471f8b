"""Run folders that hold something worth keeping, and what sessions leave in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gossamer.errors import ConfigError
from gossamer.record.folder import RunFolder, never_learnt
from gossamer.record.metrics import EpisodeLog, read_rows

if TYPE_CHECKING:
    from pathlib import Path

NAMES: dict[str, Any] = {
    "env_id": "ALE/Pong-v5",
    "algorithm": "vtrace",
    "topology": "single",
    "seed": 3,
}


def begun(path: Path) -> RunFolder:
    """Return the folder of a run that has ended without a word."""
    folder = RunFolder.create(str(path), **NAMES)
    folder.write_start({"seed": 1}, {}, [])
    folder.unlock()
    return folder


def test_a_run_that_was_killed_while_it_wrote_a_later_checkpoint_is_kept(tmp_path: Path) -> None:
    """What it has learnt is in the whole ones, however few rows there are."""
    folder = begun(tmp_path / "run")
    (folder.path / "metrics.jsonl").write_text('{"env_steps": 1}\n' * 3)
    folder.checkpoints().save(2, {}, {})
    (folder.path / "checkpoints" / "3.partial").mkdir()
    assert not never_learnt(folder.path)
    before = set(folder.path.rglob("*"))
    with pytest.raises(ConfigError, match="already holds a run"):
        RunFolder.create(str(folder.path), **NAMES)
    assert set(folder.path.rglob("*")) == before


def test_a_run_whose_summary_tells_of_training_is_kept(tmp_path: Path) -> None:
    """Though somebody has removed its checkpoints and rows, which take room."""
    folder = begun(tmp_path / "run")
    assert never_learnt(folder.path)
    folder.write_json("summary.json", {"env_steps": 500})
    assert not never_learnt(folder.path)
    with pytest.raises(ConfigError, match="already holds a run"):
        RunFolder.create(str(folder.path), **NAMES)
    assert (folder.path / "summary.json").exists()


def test_each_session_has_its_own_clock(tmp_path: Path) -> None:
    folder = RunFolder.create(str(tmp_path / "run"), **NAMES)
    for seconds in (0.0, 50.0):
        folder.write_start({"seed": 1}, {}, [], began=1e9 + seconds, seconds_before=seconds)
        folder.note_clock(1e9 + seconds + 1, seconds)
        folder.note_clock(1e9 + seconds + 9, seconds + 8)
    sessions = folder.read_json("meta.json")["sessions"]
    assert [x["clock"] for x in sessions] == [
        [[1e9 + 1, 0.0], [1e9 + 9, 8.0]],
        [[1e9 + 51, 50.0], [1e9 + 59, 58.0]],
    ]
    folder.unlock()


def test_a_session_that_was_refused_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    """A run that was done is done still, with all that its summary tells."""
    folder = begun(tmp_path / "run")
    folder.write_json("summary.json", {"env_steps": 500, "exit": {"kind": "done", "cause": "x"}})
    before = {path.name: path.read_bytes() for path in folder.path.glob("*.json")}
    beginnings = folder.beginnings()
    folder.write_start({"seed": 2}, {"seed": "command line"}, ["gossamer", "train"])
    folder.write_json("mixing.json", [])
    (folder.path / "summary.json").unlink()
    folder.put_back(beginnings)
    assert {path.name: path.read_bytes() for path in folder.path.glob("*.json")} == before


def test_episodes_that_a_checkpoint_does_not_count_are_cut_though_it_counts_none(
    tmp_path: Path,
) -> None:
    """They are told again after the resume."""
    log = EpisodeLog(tmp_path, 0.0, "mine")
    log.write(env=0, episode_return=1.0, length=9, env_steps=90, time_s=1.0)
    log.close()
    RunFolder(tmp_path).cut(100, {0: 1}, episodes=0)
    assert list(read_rows(tmp_path / "episodes.jsonl")) == []
