"""What benchmarks/diffuse.py tells, and which runs it takes for its own."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from gossamer.config import parse_train, resolve, to_dict
from gossamer.roles.evaluation import Evaluation

DIFFUSE: dict[str, Any] = runpy.run_path(
    str(Path(__file__).parents[1] / "benchmarks" / "diffuse.py"), run_name="diffuse"
)


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["diffuse.py", *words])
    DIFFUSE["main"]()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--seeds", "11"], "argument --seeds: invalid choice: 11"),
        (["--seeds", "0"], "argument --seeds: invalid choice: 0"),
        (["--also", "alone", "x"], "'alone' is no number of learners and none of diffusion, in"),
        (["--also", "diffusion"], "argument --also: expected 2 arguments"),
    ],
)
def test_what_it_cannot_do_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    says: str,
) -> None:
    with pytest.raises(SystemExit):
        call(monkeypatch, str(tmp_path / "runs"), *words)
    # Python 3.14 quotes the choice.
    assert says in capsys.readouterr().err.replace("choice: '", "choice: ")
    assert not (tmp_path / "runs").exists()


def test_variants_are_compared_seed_by_seed(capsys: pytest.CaptureFixture[str]) -> None:
    def scores(*training: float) -> list[dict[str, float]]:
        return [{"training": x, "held_out": x / 2, "seconds": 3.0} for x in training]

    both = {(4, "diffusion"): scores(-80, -120), (4, "independent"): scores(-90, -131)}
    DIFFUSE["tell"](both)
    rows = capsys.readouterr().out.splitlines()
    # Means far apart from seed to seed, differences nearly alike.
    assert rows[2] == "| 4 | diffusion | -100.0 +- 254.2 |  | -50.0 +- 127.1 |  | 3 |"
    assert rows[3] == (
        "| 4 | independent | -110.5 +- 260.6 | -10.5 +- 6.4 | -55.2 +- 130.3 | -5.2 +- 3.2 | 3 |"
    )
    DIFFUSE["tell"]({(4, "independent"): scores(-90)})
    assert (
        capsys.readouterr().out.splitlines()[2] == "| 4 | independent | -90.0 |  | -45.0 |  | 3 |"
    )


def finished_run(folder: Path, variant: str, *words: str) -> Path:
    run = DIFFUSE["folder_of"](folder, variant, 4, 1)
    (run / "checkpoints" / "10").mkdir(parents=True)
    asked = parse_train([*DIFFUSE["words_of"](variant, 4, 1), *words])
    config, _ = resolve(asked.settings, configs=asked.config)
    (run / "config.json").write_text(json.dumps(to_dict(config)))
    summary = {"exit_reason": "done: total_env_steps reached", "seconds": 2.0}
    (run / "summary.json").write_text(json.dumps(summary))
    rows = [{"learner": 0, "env_steps": x, "mean": -x / 3} for x in (10, 20)]
    rows.insert(1, {**rows[0], "mean": -9.0, "confirmation": True})
    (run / "evaluation.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return run


def test_runs_of_other_settings_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[str] = []

    def evaluate(run: str, **_: Any) -> Evaluation:
        played.append(run)
        return Evaluation((-1.0,), (1,), 0, held_out=Evaluation((-2.0,), (1,), 0))

    monkeypatch.setattr("gossamer.evaluate", evaluate, raising=False)
    words = [str(tmp_path), "--learners", "4", "--seeds", "1", "--variants", "one learner"]
    run = finished_run(tmp_path, "one learner", "--optimizer.learning-rate", "0.002")
    rate = "--optimizer.learning-rate"
    own = ["--also", "one learner", f"{rate} 0.002", "--also", "diffusion", f"{rate} 0.1"]
    for _ in range(2):
        call(monkeypatch, *words, *own)
        assert (
            capsys.readouterr().out.splitlines()[-1]
            == "| 4 | one learner | -1.0 |  | -2.0 |  | 2 |"
        )
        assert played == [str(run)], "scored once"
    later = (run / "score.json").stat().st_mtime + 10.0
    os.utime(run / "checkpoints" / "10", (later, later))
    call(monkeypatch, *words, *own)
    assert played == [str(run)] * 2, "once more after it was trained further"
    message = "one-learner-4-s1 was trained with optimizer.learning_rate 0.002, not 0.005: name"
    with pytest.raises(SystemExit, match=message):
        call(monkeypatch, *words)
    with pytest.raises(SystemExit, match=r"was trained with env\.task_seed None, not 3"):
        call(monkeypatch, *words, *own, "--", "--env.task-seed", "3")


def test_what_runs_gave_is_kept_and_taken_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scored = Evaluation((-1.0,), (1,), 0, held_out=Evaluation((-2.0,), (1,), 0))
    monkeypatch.setattr("gossamer.evaluate", lambda *_, **__: scored, raising=False)
    figures = tmp_path / "figures.json"
    words = ["--learners", "4", "--seeds", "1", "--variants", "one learner"]
    words += ["--figures", str(figures)]
    rate = "--optimizer.learning-rate"
    own = ["--also", "one learner", f"{rate} 0.1", "--also", "one learner-4", f"{rate} 0.002"]
    own += ["--also", "4", "--unroll-length 20", "--also", "25", "--unroll-length 3"]
    finished_run(tmp_path / "runs", "one learner", rate, "0.002", "--unroll-length", "20")
    call(monkeypatch, str(tmp_path / "runs"), *words, *own)
    told = capsys.readouterr().out.splitlines()[-1]
    kept = json.loads(figures.read_text())["one-learner-4-s1"]
    assert kept["curve"] == [[10, -3.33], [20, -6.67]]
    assert (kept["training"], kept["held_out"], kept["seconds"]) == (-1.0, -2.0, 2.0)
    plot = tmp_path / "curve.svg"
    call(monkeypatch, str(tmp_path / "elsewhere"), *words, *own, "--plot", str(plot))
    assert capsys.readouterr().out.splitlines()[-1] == told, "no run is there"
    assert plot.stat().st_size > 1000
    with pytest.raises(SystemExit, match=r"one-learner-4-s1 was trained with .*, not "):
        call(monkeypatch, str(tmp_path / "elsewhere"), *words)
