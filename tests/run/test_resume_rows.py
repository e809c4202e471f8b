"""What a resumed run keeps of its learners' records, and of what its sessions were asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runs import SMALL, log_of, rows_of
from sessions import QUICK

import gossamer
from gossamer import cli
from gossamer.config import make_config
from gossamer.errors import ConfigError, RunFailed
from gossamer.record.checkpoint import CheckpointStore
from gossamer.run.placements.this_process import ThisProcess
from gossamer.run.train import train


def test_a_faster_learner_keeps_its_rows(tmp_path: Path) -> None:
    """Of learners that never talk one may be far ahead of learner 0 when a checkpoint is taken."""
    settings: dict[str, Any] = {
        **SMALL,
        "num_learners": 2,
        "placement": "inline",
        "run_folder": str(tmp_path),
    }
    train(make_config("CartPole-v1", {**settings, "total_env_steps": 1280}), quiet=True)
    store = CheckpointStore(tmp_path / "checkpoints", 0)
    last = store.load("last")
    state = json.loads(json.dumps(last.state))
    state["held"]["1/learner.update"] += 50
    store.save(last.updates, last.tensors, state)
    with (tmp_path / "metrics.jsonl").open("a") as log:
        for ahead in (20, 50, 60):
            row = {
                "env_steps": 1280,
                "updates": last.updates + ahead,
                "learner": 1,
                "version": ahead,
            }
            log.write(json.dumps(row) + "\n")
    train(
        make_config("CartPole-v1", {**settings, "total_env_steps": 1920}),
        resume=str(tmp_path),
        quiet=True,
    )
    added = [
        row["version"]
        for row in rows_of(tmp_path)
        if row.keys() == {"env_steps", "updates", "learner", "version"}
    ]
    assert added == [20, 50], "what came after its own checkpoint is another future"


def test_what_came_after_the_checkpoint_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was killed goes on before what its last rows tell."""
    settings: dict[str, Any] = {**SMALL, "placement": "inline"}
    first = gossamer.train(
        "CartPole-v1", **settings, run_folder=str(tmp_path / "run"), total_env_steps=640, quiet=True
    )
    steps, updates = first.summary["env_steps"], first.summary["updates"]
    with (first.folder / "metrics.jsonl").open("a") as log:
        row = {"env_steps": steps + 5000, "updates": updates + 9, "learner": 0, "version": 99}
        log.write(json.dumps(row) + "\n")
    again = gossamer.train(resume=first.folder, total_env_steps=steps + 640)
    told = f"at {steps:,} env steps, update {updates:,}; 5,000 env steps came after this checkpoint"
    assert told in capsys.readouterr().err
    assert '"version": 99' not in (first.folder / "metrics.jsonl").read_text()
    gossamer.train(resume=first.folder, total_env_steps=again.summary["env_steps"] + 640)
    assert "came after" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "goes_on"),
    [
        # A2C takes every row for its own policy's.
        ({"algorithm": "a2c"}, "4 envs, lag 0,"),
        ({"lag": "0"}, "4 envs, lag 0,"),
        ({"max_episode_steps": 6}, "resumed with new episodes (not exactly: max_episode_steps 0"),
    ],
)
def test_what_a_session_was_asked_for_counts_though_it_has_saved_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], goes_on: str
) -> None:
    settings: dict[str, Any] = {**SMALL, "placement": "inline", "algorithm": "impact"}
    run = tmp_path / "run"
    first = gossamer.train("CartPole-v1", **settings, run_folder=str(run), total_env_steps=128, quiet=True)  # fmt: skip
    assert "4 envs, lag 1," in (run / "log.txt").read_text()

    def die(*_: Any) -> None:
        raise OSError(5, "the machine has gone")

    with monkeypatch.context() as session:
        session.setattr(ThisProcess, "poll", die)
        with pytest.raises(RunFailed):
            gossamer.train(resume=run, total_env_steps=256, quiet=True, **asked)
    kept = log_of(run)
    for steps in (384, 512):
        result = gossamer.train(resume=run, total_env_steps=steps, quiet=True)
        assert result.summary["env_steps"] >= steps > first.summary["env_steps"]
        said = log_of(run)[len(kept) :]
        told = [line for line in said if line.startswith("changed: ")]
        if steps == 384:
            assert [line for line in said if goes_on in line]
            assert [line for line in told if line.split()[1].split(".")[0] in asked]
        else:
            assert [x.split()[1] for x in told] == ["total_env_steps"]
        kept += said


def test_time_goes_on_behind_what_was_evaluated_last(tmp_path: Path) -> None:
    """The last checkpoint is taken before the last evaluation."""
    settings: dict[str, Any] = {**SMALL, "evaluation": {"every_seconds": 1000.0, "episodes": 2}}
    run = tmp_path / "run"
    gossamer.train("CartPole-v1", **settings, run_folder=str(run), total_env_steps=256, quiet=True)
    rows = rows_of(run, "evaluation")
    rows[-1]["time_s"] += 50.0
    (run / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    gossamer.train(resume=run, total_env_steps=512, quiet=True)
    session = json.loads((run / "meta.json").read_text())["sessions"][-1]
    assert session["seconds_before"] == rows[-1]["time_s"]
    added = rows_of(run, "evaluation")[len(rows) :]
    assert added
    assert min(row["time_s"] for row in added) > rows[-1]["time_s"]
    assert json.loads((run / "summary.json").read_text())["seconds"] > rows[-1]["time_s"]


def test_what_train_returns_is_a_path(tmp_path: Path) -> None:
    settings = {**SMALL, "placement": "inline", "run_folder": str(tmp_path / "run")}
    trained = gossamer.train("CartPole-v1", **settings, total_env_steps=128, quiet=True)
    assert gossamer.load_policy(trained).action_space == gossamer.load_policy(str(tmp_path / "run")).action_space  # fmt: skip
    assert gossamer.evaluate(trained, episodes=1).returns
    with pytest.raises(ConfigError, match="is no run folder"):
        gossamer.load_policy(tmp_path)


def test_who_has_set_what_is_kept_by_a_resume(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    words = ["CartPole-v1", "--run-folder", run, *QUICK, "--optimizer.learning-rate", "1e-4"]
    assert cli.main(["train", *words, "--total-env-steps", "64"]) == 0
    first = json.loads((tmp_path / "run" / "layers.json").read_text())
    again = ["--resume", run, "--total-env-steps", "128", "--keep-checkpoints", "3"]
    assert cli.main(["train", *again]) == 0
    then = json.loads((tmp_path / "run" / "layers.json").read_text())
    assert then["optimizer.learning_rate"] == first["optimizer.learning_rate"] == "command line"
    assert then["keep_checkpoints"] == "command line" != first["keep_checkpoints"]
    changed = {"keep_checkpoints"}
    assert {x: y for x, y in then.items() if x not in changed} == {
        x: y for x, y in first.items() if x not in changed
    }
