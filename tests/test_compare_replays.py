"""What benchmarks/compare_replays.py trains, reads and tells."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from gossamer.config import parse_train, resolve, to_dict
from gossamer.roles.evaluation import Evaluation

COMPARE: dict[str, Any] = runpy.run_path(
    str(Path(__file__).parents[1] / "benchmarks" / "compare_replays.py"), run_name="compare"
)


def test_every_variant_is_a_mix_that_differs_in_its_replays_alone() -> None:
    seen = {}
    for variant, replays in COMPARE["VARIANTS"].items():
        asked = parse_train(["--config", "elite_breakout", "--replays", json.dumps(replays)])
        config, _ = resolve(asked.settings, configs=asked.config)
        seen[variant] = json.dumps([(x.name, vars(x)) for x in config.replays])
        if len(config.replays) == 2:
            assert {x.fraction for x in config.replays} == {0.5}
    assert len(set(seen.values())) == 7


def test_runs_are_read_scored_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gossamer.evaluate", lambda *_, **__: Evaluation((7.0,), (1,), 0))
    trained: list[list[str]] = []

    def train(run: Path, words: list[str]) -> None:
        """Two games in each of two of 25 parts of the run."""
        trained.append(words)
        run.mkdir(parents=True)
        games = [(10, 1.0), (20, 2.0), (960, 4.0), (970, 6.0 + len(trained))]
        rows = [{"env_steps": steps, "return": x} for steps, x in games]
        (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run / "config.json").write_text('{"total_env_steps": 1000}')
        (run / "summary.json").write_text('{"seconds": 5.0}')

    monkeypatch.setitem(COMPARE["result_of"].__globals__, "train", train)
    figures, plot = tmp_path / "figures.json", tmp_path / "curve.svg"

    def call(folder: str, *words: str) -> list[str]:
        given = [str(tmp_path / folder), "--figures", str(figures), *words]
        monkeypatch.setattr(sys, "argv", ["compare_replays.py", *given])
        COMPARE["main"]()
        return capsys.readouterr().out.splitlines()

    call("runs", "--variants", "none", "--seeds", "1", "2")
    assert [words[3] for words in trained] == ["1", "2"]
    kept = json.loads(figures.read_text())
    assert kept["none-s1"]["curve"] == [[20.0, 1.5], [980.0, 5.5]]
    told = call("elsewhere", "--only-known", "--seeds", "2", "1", "--plot", str(plot))
    assert told[2] == "| none | 2 | 3.6 +- 1.6 | 7.0 +- 0.0 | 3.6 +- 1.6 | 5 |"
    assert len(told) == 3, "nothing else is known"
    assert len(trained) == 2
    assert plot.stat().st_size > 1000
    with pytest.raises(SystemExit, match="none-s1 was trained with"):
        call("elsewhere", "--variants", "none", "--seeds", "1", "--", "--num-envs", "8")


def test_a_run_that_was_interrupted_is_not_scored_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends a run in good order, with exit code 0."""
    train, run, words = COMPARE["result_of"].__globals__["train"], tmp_path / "one", ["CartPole-v1"]
    commands: list[list[str]] = []
    ends = iter(["stopped by SIGINT", "done: total_env_steps reached"])

    def called(command: list[str], **_: Any) -> None:
        commands.append(command)
        run.mkdir(exist_ok=True)
        asked = parse_train(words)
        settings = to_dict(resolve(asked.settings)[0])
        (run / "config.json").write_text(json.dumps(settings))
        (run / "summary.json").write_text(json.dumps({"exit_reason": next(ends)}))

    monkeypatch.setattr(train.__globals__["subprocess"], "run", called)
    with pytest.raises(SystemExit, match=r"one has ended early: stopped by SIGINT; the same"):
        train(run, words)
    train(run, words)
    train(run, words)
    assert [command[4] for command in commands] == ["CartPole-v1", "--resume"]
