"""What benchmarks/learners.py trains, skips, reads and tells."""

from __future__ import annotations

import itertools
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from gossamer.config import parse_train, resolve

LEARNERS: dict[str, Any] = runpy.run_path(
    str(Path(__file__).parents[1] / "benchmarks" / "learners.py"), run_name="learners"
)
KIND = LEARNERS["Kind"]


@pytest.mark.parametrize("task", LEARNERS["TASKS"])
@pytest.mark.parametrize("learners", [1, 2, 4, 8])
def test_together_learners_have_the_environments_of_one(task: str, learners: int) -> None:
    found: dict[str, set[Any]] = {}
    topologies = itertools.cycle(LEARNERS["TOPOLOGIES"] if learners > 1 else ["single"])
    for (outer, (momentum, rate)), topology in zip(
        LEARNERS["OUTER"].items(), topologies, strict=False
    ):
        words = LEARNERS["words_of"](KIND(task, learners, topology, outer), 3, ["--lag", "0"])
        asked = parse_train(words)
        config, _ = resolve(asked.settings, configs=asked.config)
        assert (config.seed, config.num_learners, config.lag) == (3, learners, "0")
        assert config.num_envs * learners == LEARNERS["TASKS"][task].num_envs
        assert config.topology.name == topology
        assert config.topology.staleness == 0 or learners == 1
        assert config.optimizer.outer_momentum == momentum
        assert config.optimizer.outer_rate == rate
        assert config.stop_at_return == LEARNERS["TASKS"][task].score
        found.setdefault("batch", set()).add(config.num_envs * config.unroll_length)
    assert len(found["batch"]) == 1


def games(steps: int, mean: float, count: int) -> list[dict[str, Any]]:
    """As many games as are asked for, that end one env step after another."""
    return [
        {"env_steps": steps + i, "time_s": (steps + i) / 10, "return": mean, "learner": 0, "env": 0}
        for i in range(count)
    ]


def test_the_score_is_the_first_mean_of_a_hundred_games_that_reaches_it(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    rows = [*games(1000, 500.0, 80), *games(2000, 100.0, 60), *games(3000, 500.0, 120)]
    path.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    # 7 of 100 may be of 100: 93 * 500 + 7 * 100 < 475 * 100 < 94 * 500 + 6 * 100
    assert LEARNERS["until"](path, 475.0) == (3093, 309.3, 500.0)
    assert LEARNERS["until"](path, 501.0) == (None, None, 500.0)
    path.write_text("")
    assert LEARNERS["until"](path, 0.0) == (None, None, None)


def test_runs_are_made_once_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[list[str]] = []

    def train(run: Path, words: list[str]) -> None:
        """Those with an outer step reach the score in half the steps, those of seed 2 do not."""
        trained.append(words)
        run.mkdir(parents=True)
        first = 500 if "--optimizer.outer-momentum" in words else 1100
        mean = 480.0 if words[words.index("--seed") + 1] == "1" else 200.0
        rows = games(first, mean, 101)
        (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        summary = {"exit": {"kind": "done", "cause": "stop_after_seconds"}, "seconds": 5.0}
        summary |= {"env_steps": 4000, "steps_per_second": 800.0}
        (run / "summary.json").write_text(json.dumps(summary))

    monkeypatch.setitem(LEARNERS["main"].__globals__, "train", train)
    results = tmp_path / "results.jsonl"

    def call(*words: str) -> list[str]:
        given = [str(tmp_path / "runs"), "--results", str(results), *words]
        monkeypatch.setattr(sys, "argv", ["learners.py", *given])
        LEARNERS["main"]()
        return capsys.readouterr().out.splitlines()

    some = ["--tasks", "CartPole", "--learners", "2", "1", "--topologies", "gossip", "--outer",
            "momentum 0.5", "none", "--seeds", "1", "2"]  # fmt: skip
    told = call(*some, "--budget-seconds", "7")
    assert len(trained) == 8
    assert all(words[-2:] == ["--stop-after-seconds", "7"] for words in trained)
    assert told[0] == "**CartPole**, 475"
    assert told[4:8] == [
        "| 1 single | none | 1 of 2 | 1,199 / - | 1.00 (1) | 120 / - | 480 / 200 |",
        "| 1 single | momentum 0.5 | 1 of 2 | 599 / - | 0.50 (1) | 60 / - | 480 / 200 |",
        "| 2 gossip | none | 1 of 2 | 1,199 / - | 1.00 (1) | 120 / - | 480 / 200 |",
        "| 2 gossip | momentum 0.5 | 1 of 2 | 599 / - | 0.50 (1) | 60 / - | 480 / 200 |",
    ]
    assert not any((tmp_path / "runs").iterdir())
    assert call(*some, "--budget-seconds", "7") == told
    assert call(*some, "--budget-seconds", "700", "--only-known") == told
    assert len(trained) == 8
    call(*some, "--budget-seconds", "8")
    assert len(trained) == 12, "those that missed the score have more time now"
    assert call(*some, "--only-known")[4:8] == told[4:8]
    with pytest.raises(SystemExit, match=r"seed 1 was trained with CartPole-v1 .* another file"):
        call(*some, "--", "--lag", "0")
