"""What is told at the end of a sweep: which trials are best, how sure that is, what matters, and what to type next."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gossamer.config import resolve
from gossamer.sweep.file import read_sweep
from gossamer.sweep.report import best_of, ordered, report, results, write_presets
from gossamer.sweep.store import SweepFolder
from gossamer.sweep.trial_queue import TrialQueue

FILE = """
method = "grid"
seeds = {seeds}
{more}
[settings]
env_id = "CartPole-v1"
num_envs = 4
{settings}
[search]
"algorithm.passes" = [1, 2, 3, 4]
"algorithm.entropy_cost" = [0.0, 0.01]
"""


def made(
    tmp_path: Path, more: str = "", *, seeds: int = 1, settings: str = "", trials: int = 8
) -> SweepFolder:
    """Return the folder of a sweep whose first trials were begun."""
    (tmp_path / "x.toml").write_text(FILE.format(more=more, seeds=seeds, settings=settings))
    found = SweepFolder(tmp_path / "x", read_sweep(str(tmp_path / "x.toml")))
    found.path.mkdir()
    for number in range(trials):
        found.add(number, found.sweep.choice(number))
    return found


def finish(run: Path, score: float, episodes: list[dict[str, Any]] | None = None) -> None:
    run.mkdir(parents=True, exist_ok=True)
    ended = {"kind": "done", "cause": "stop_at_return"}
    (run / "summary.json").write_text(json.dumps({"exit": ended, "mean_return_last_100": score}))
    rows = "".join(json.dumps(row) + "\n" for row in episodes or [])
    (run / "episodes.jsonl").write_text(rows)


def learnt(after: int, score: float = 100.0) -> list[dict[str, Any]]:
    """Return the episodes of a run whose mean of a hundred is `score` after so many, and 0 before."""
    return [
        {"env_steps": 10 * i, "time_s": float(i), "return": 0.0 if i <= after - 100 else score, "length": 10, "learner": 0}
        for i in range(1, after + 1)
    ]  # fmt: skip


def told_by(folder: SweepFolder) -> tuple[str, dict[str, Any]]:
    """Return the report of a sweep and its results."""
    queue = TrialQueue(folder)
    best = best_of(queue)
    found = results(queue, best)
    return report(queue, best, write_presets(folder, best), found["importance"]), found


def test_the_best_is_one_of_those_that_are_done(tmp_path: Path) -> None:
    """Of trials the first of which have failed, or were stopped early."""
    folder = made(tmp_path)
    for number, score in ((2, 10.0), (3, 30.0), (5, 20.0)):
        finish(folder.path / f"{number:03d}" / "s1", score)
    queue = TrialQueue(folder)
    assert [trial.number for trial in best_of(queue)] == [3]
    assert [trial.number for trial in ordered(queue)] == [3, 5, 2, 0, 1, 4, 6, 7]
    write_presets(folder, best_of(queue))
    best = resolve(configs=[str(folder.path / "best.toml")])[0].algorithm
    chosen = folder.sweep.choice(3)
    assert best.passes == chosen["algorithm.passes"]
    assert best.entropy_cost == (chosen["algorithm.entropy_cost"],)


def test_the_best_is_measured_with_seeds_that_have_not_chosen_it(tmp_path: Path) -> None:
    folder = made(tmp_path, seeds=3, settings="seed = 5", trials=2)
    for number in (0, 1):
        for seed in (5, 6, 7):
            finish(folder.path / f"{number:03d}" / f"s{seed}", float(10 * number + seed))
    text, _ = told_by(folder)
    (seed,) = re.findall(r"--seeds 5 --seed (\d+)", text)
    assert int(seed) == 8


def test_each_objective_has_its_own_interval_and_its_own_importance(tmp_path: Path) -> None:
    """One setting decides the return, the other how soon the score is reached."""
    pytest.importorskip("scipy")
    two = 'objective = ["return", "steps_to_score"]\nscore = 100.0'
    folder = made(tmp_path, two, seeds=2)
    for number in range(8):
        chosen = folder.sweep.choice(number)
        return_ = 10.0 * chosen["algorithm.passes"]
        after = 200 if chosen["algorithm.entropy_cost"] else 150
        for seed in (1, 2):
            run = folder.path / f"{number:03d}" / f"s{seed}"
            finish(run, return_ + seed, learnt(after + seed))
    text, found = told_by(folder)
    importance = found["importance"]
    passes, cost = "algorithm.passes", "algorithm.entropy_cost"
    assert importance["return"][passes] > 0.9 > 0.1 > importance["return"][cost]
    assert importance["steps_to_score"][cost] > 0.9 > 0.1 > importance["steps_to_score"][passes]
    assert found["best"] == [6], "the return is highest and the score is reached soonest"
    (low, high) = re.findall(
        r"steps_to_score 1,515 \(2 seeds, 95 % interval (\S+) to (\S+)\)", text
    )[0]
    assert float(low) < 1_515 < float(high), "not that of the return"


def test_a_trial_is_judged_by_all_of_its_learners_and_within_its_time(tmp_path: Path) -> None:
    """As a run on its own: until its limit of time a run that has reached its target keeps its height."""
    settings = (
        'num_learners = 2\ntopology = "gossip"\nstop_after_seconds = 400\nstop_at_return = 90'
    )
    settings += "\ntotal_env_steps = 1_000_000"
    folder = made(tmp_path, 'objective = "area"', settings=settings, trials=1)
    rows = [
        {**row, "return": 0.0 if learner else row["return"], "learner": learner}
        for row in learnt(200)
        for learner in (0, 1)
    ]
    finish(folder.path / "000" / "s1", 50.0, rows)
    (value,) = TrialQueue(folder).trials[0].values
    # Learner 0's mean of its last fifty is 0 until 1,000 env steps and 100 from 1,500 on, so that of both half of that;
    # 2,000 env steps took 200 s, so 4,000 would have been trained in 400 s.
    assert value == pytest.approx((500 * 25 + 2_500 * 50) / 4_000, rel=0.01)


def test_presets_stay_until_there_are_better_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep with more trials ends when its disk is full: those of the sweep before are still the best that there are."""
    folder = made(tmp_path, 'objective = ["return", "area"]')
    for number, score in ((0, 1.0), (1, 2.0)):
        finish(folder.path / f"{number:03d}" / "s1", score, learnt(100, score))
    queue = TrialQueue(folder)
    assert [x.name for x in write_presets(folder, [queue.trials[0]])] == ["best-000.toml"]

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(SweepFolder, "write_settings", full)
        with pytest.raises(OSError, match="No space left"):
            write_presets(folder, [queue.trials[1]])
    assert [x.name for x in folder.path.glob("best*")] == ["best-000.toml"]
    write_presets(folder, [queue.trials[1]])
    assert [x.name for x in folder.path.glob("best*")] == ["best-001.toml"]
