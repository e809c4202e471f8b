"""Environments that end their process, close others' files, speak in no encoding, or are far too large."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from sessions import QUICK, run_session, summary_of

from gossamer import cli
from gossamer.build.plan import make_plan
from gossamer.build.preflight import refuse_large
from gossamer.config import make_config
from gossamer.errors import ConfigError
from gossamer.record.runs import list_runs
from gossamer.spec import ActionSpec, EnvSpec, one_leaf


def words(env_id: str, folder: Path) -> list[str]:
    return [env_id, *QUICK, "--total-env-steps", "10000", "--run-folder", str(folder)]


def test_one_that_ends_the_process_is_no_success(tmp_path: Path) -> None:
    err = run_session(words("broken_envs:LeavesLater", tmp_path / "run"), tmp_path, code=1)
    assert err.splitlines()[-1].startswith(
        "gossamer: the process was ended from within, by os._exit(0)"
    )
    (row,) = list_runs(str(tmp_path))
    assert row.state == "killed"


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("LeavesAtOnce", 3, "the process was ended from within, by os._exit(3), as by an env"),
        ("Crashes", -signal.SIGSEGV, "Fatal Python error: Segmentation fault"),
    ],
)
def test_one_that_ends_the_process_in_its_first_step_is_told_of(
    name: str, code: int, says: str, tmp_path: Path
) -> None:
    err = run_session(words(f"broken_envs:{name}", tmp_path / "run"), tmp_path, code=code)
    assert says in err
    if code < 0:
        assert re.search(r'broken_envs\.py", line \d+ in reward', err), "and where"
    assert not (tmp_path / "run").exists()


@pytest.mark.timeout(300)
def test_learners_that_end_as_if_all_were_well_have_died(tmp_path: Path) -> None:
    several = ["--num-learners", "2", "topology:gossip"]
    begun = [*words("broken_envs:Leaves", tmp_path / "run"), *several]
    err = run_session(begun, tmp_path, code=1, seconds=240.0)
    assert "times before a version was complete (exit code 0)" in err.splitlines()[-1]
    (row,) = list_runs(str(tmp_path))
    assert row.state == "failed"


def test_one_that_closes_the_files_of_the_run_fails_in_one_line(tmp_path: Path) -> None:
    err = run_session(words("broken_envs:ClosesFiles", tmp_path / "run"), tmp_path, code=1)
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith(
        "gossamer: other code in this process, perhaps the environment's, closed files of the run"
    )
    assert summary_of(tmp_path / "run")["exit_reason"].startswith("failed: OSError")


def test_a_text_that_cannot_be_encoded_is_told_and_kept(tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["train", *words("broken_envs:OddText", tmp_path / "run")]) == 1
    said = r"ValueError: no letter: \ud800\udcff"
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("gossamer: environment ")
    assert said in last
    assert said in (tmp_path / "run" / "log.txt").read_text()
    assert "no letter" in json.loads((tmp_path / "run" / "summary.json").read_text())["exit_reason"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "ManyStates",
            "has observations of 3,000,000,000 numbers and actions of 2 parameters; the traj",
        ),
        (
            "ManyActions",
            "has observations of 3 numbers and actions of 3,000,000,000 parameters; the",
        ),
        ("Uncountable", "has observations of 4,611,686,018,427,387,904 numbers and actions of 2 "),
        (
            "Poster",
            "has observations of 12,000,000 numbers and actions of 2 parameters; a network of",
        ),
        ("ManyChoices", "has observations of 3 numbers and actions of 200,000,000 parameters; "),
    ],
)
def test_spaces_that_nobody_has_memory_for_are_refused_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str, capsys: Any
) -> None:
    monkeypatch.setattr("gossamer.build.preflight.free_memory", lambda: 6 << 30)
    assert cli.main(["train", *words(f"broken_envs:{name}", tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gossamer: broken_envs:{name} {says}")
    assert "6 GiB are free: give it smaller spaces" in line
    assert not (tmp_path / "run").exists()


def spec_of(*shape: int, actions: int = 2) -> EnvSpec:
    kind = "pixels" if len(shape) == 3 else "vector"
    return EnvSpec(
        "Large-v0", one_leaf(kind, shape), ActionSpec("categorical", (actions,)), "", 1000
    )


def told(spec: EnvSpec, **settings: Any) -> list[str]:
    given = {"num_envs": 4, "unroll_length": 16, "placement": "inline", "algorithm.name": "a2c"}
    config = make_config("CartPole-v1", {**given, "algorithm.num_minibatches": 1, **settings})
    return refuse_large(config, spec, make_plan(config, spec))


def test_what_is_large_is_told_and_what_is_usual_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.build.preflight.free_memory", lambda: 100 << 30)
    assert told(spec_of(4)) == []
    assert told(spec_of(4, 84, 84)) == []
    assert told(spec_of(300_000), **{"policy.hidden_sizes": [8]}) == [], "large, and no burden"
    (line,) = told(spec_of(2_000_000), **{"policy.hidden_sizes": [64]})
    # two towers of 64 units, each with a weight for every number
    assert line.startswith("a network of 256,000,")
    # 4 environments, 2 trajectories of 17 rows
    assert line.endswith(f"trajectories {4 * 2 * 17 * 8e6 / 2**30:.1f} GiB; 100 GiB are free")
    monkeypatch.setattr("gossamer.build.preflight.free_memory", lambda: 4 << 30)
    with pytest.raises(ConfigError, match=r"and trajectories 1\.0 GiB; 4 GiB are free: .* layers$"):
        told(spec_of(2_000_000), **{"policy.hidden_sizes": [64]})
    with pytest.raises(ConfigError, match=r"--num-envs 8$"):
        told(spec_of(2_000_000), num_envs=64)
    with pytest.raises(ConfigError, match=r"a network of 8,59\d,\d+,\d+ parameters"):
        told(spec_of(4), **{"policy.hidden_sizes": [65_536, 65_536]})
