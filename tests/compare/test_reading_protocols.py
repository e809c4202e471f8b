"""Runs of several learners, and protocols by which scores do not compare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scored_runs import make_run

from gossamer.compare.curves import reached
from gossamer.compare.protocols import refuse_mixed
from gossamer.compare.reading import ComparedRun, read_run
from gossamer.errors import ConfigError
from gossamer.record.objectives import measure
from gossamer.record.readers import FolderReader

PONG = "PongNoFrameskip-v4"


def write_episodes(run: Path, returns: list[float], *, learners: int = 1) -> None:
    rows = [
        {"env_steps": 10 * (i + 1), "time_s": 0.5 * (i + 1), "return": x, "learner": i % learners, "length": 10}
        for i, x in enumerate(returns)
    ]  # fmt: skip
    (run / "episodes.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))


def test_a_threshold_is_reached_by_the_mean_of_all_learners(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", ["topology:gossip", "--num-learners", "2"])
    write_episodes(path, [float(x) for i in range(100) for x in (i, 0)], learners=2)
    climbs = read_run(path, climbs=True).climbs
    assert climbs is not None
    want = tuple(
        measure(FolderReader(path), name, score=30.0, num_learners=2)
        for name in ("steps_to_score", "seconds_to_score")
    )
    assert reached(climbs, 30.0) == want
    assert want == (1_710, 85.5), "the mean of learner 0's last fifty is 60.5 then"


def test_of_learners_on_a_cluster_those_that_are_there_at_the_end_are_asked_for_an_evaluation(
    tmp_path: Path,
) -> None:
    words = ["topology:single", "--num-learners", "2", "--placement", "cluster"]
    path = make_run(tmp_path, "a", words)
    rows = [
        {"time_s": at, "env_steps": 1_000 * at, "learner": 0, "cluster/learners": there}
        for at, there in ((4, 2), (5, 1))
    ]
    with (path / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    row = {"time_s": 5.0, "env_steps": 5_000, "learner": 0, "mean": 7.0, "returns": [7.0]}
    (path / "evaluation.jsonl").write_text(json.dumps(row) + "\n")
    assert read_run(path).score("evaluation") == 7.0
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**rows[0], "time_s": 6, "env_steps": 5_100}) + "\n")
    assert read_run(path).evaluation is None, "learner 1 has come back, and has none"


def both(folder: Path, env_id: str, words: list[str]) -> list[ComparedRun]:
    make_run(folder, "one", env_id=env_id)
    make_run(folder, "other", words, env_id=env_id)
    return [read_run(folder / name) for name in ("one", "other")]


@pytest.mark.parametrize(
    ("env_id", "words", "told"),
    [
        (PONG, ["--env.fire-reset", "false"], "FIRE at the start no "),
        (PONG, ["--env.stuck-steps", "500"], "cut after steps without reward 0 "),
        ("CartPole-v1", ["--env.stuck-steps", "50"], "cut after steps without reward 0 "),
        ("CartPole-v1", ["--max-episode-steps", "100"], "cut after steps 0 "),
    ],
)
def test_episodes_that_begin_or_end_by_other_rules_are_not_compared(
    env_id: str, words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=told):
        refuse_mixed(both(Path(), env_id, words), evaluated=False)
