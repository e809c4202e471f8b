"""What is left of a sweep whose folder holds trials already, and what it makes of runs that end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gossamer.errors import RunFailed
from gossamer.record.exits import Exit
from gossamer.sweep import sweep, trial_queue
from gossamer.sweep.file import read_sweep
from gossamer.sweep.pool import PlannedRun
from gossamer.sweep.store import SweepFolder
from gossamer.sweep.trial_queue import TrialQueue

FILE = """
method = "{method}"
{more}
[settings]
env_id = "CartPole-v1"
num_envs = 4
[search]
"algorithm.passes" = [1, 2, 3, 4]
"""


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return made(tmp_path, "grid", "seeds = 2")


def made(tmp_path: Path, method: str, more: str) -> SweepFolder:
    (tmp_path / "x.toml").write_text(FILE.format(method=method, more=more))
    found = SweepFolder(tmp_path / "x", read_sweep(str(tmp_path / "x.toml")))
    found.path.mkdir()
    return found


def finish(run: Path, score: float) -> None:
    run.mkdir(parents=True, exist_ok=True)
    ended = {"kind": "done", "cause": "total_env_steps"}
    (run / "summary.json").write_text(json.dumps({"exit": ended, "mean_return_last_100": score}))


def next_of(queue: TrialQueue) -> PlannedRun:
    run = queue.next()
    assert run
    return run


def test_what_is_done_is_worth_its_mean_and_what_is_left_comes_first(folder: SweepFolder) -> None:
    for number in (0, 1):
        folder.add(number, folder.sweep.choice(number))
    finish(folder.path / "000" / "s1", 10.0)
    finish(folder.path / "000" / "s2", 20.0)
    finish(folder.path / "001" / "s2", 30.0)
    queue = TrialQueue(folder)
    assert (queue.trials[0].state, queue.trials[0].values) == ("done", (15.0,))
    assert queue.trials[1].state == "unfinished"
    assert [x.name for x in queue.runs] == ["000/s1", "000/s2", "001/s1", "001/s2"]
    assert [next_of(queue).name for _ in range(3)] == ["001/s1", "002/s1", "002/s2"]
    assert json.loads((folder.path / "002" / "trial.json").read_text())["chosen"] == {
        "algorithm.passes": 3
    }


def test_runs_to_begin_are_those_of_all_trials_to_come(folder: SweepFolder) -> None:
    queue = TrialQueue(folder)
    left: list[int] = []
    while queue.next():
        left.append(queue.to_begin())
    assert left == [7, 6, 5, 4, 3, 2, 1, 0], "4 trials of 2 runs"
    queue.refused[4] = ({}, "no such thing")
    queue.sweep = replace(queue.sweep, trials=6)
    assert queue.to_begin() == 2


def test_a_trial_is_judged_when_its_last_run_ends(folder: SweepFolder) -> None:
    queue, said = TrialQueue(folder), list[str]()
    queue.say = said.append
    first, second = next_of(queue), next_of(queue)
    finish(first.folder, 1.0)
    queue.ended(first, Exit("done", "total_env_steps"))
    assert not said
    finish(second.folder, 3.0)
    queue.ended(second, Exit("done", "total_env_steps"))
    assert said == ["trial 0: return 2 (algorithm.passes 1); 1 of 4 trials done"]


def test_the_other_runs_of_a_trial_that_fails_are_not_trained(folder: SweepFolder) -> None:
    queue = TrialQueue(folder)
    queue.say = lambda _: None
    queue.ended(next_of(queue), Exit("failed", "no such thing"))
    assert queue.trials[0].state == "failed"
    assert next_of(queue).name == "001/s1"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The queue's, which stands still."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(trial_queue.time, "monotonic", lambda: clock.now)
    return clock


def fail(queue: TrialQueue, run: PlannedRun) -> None:
    queue.ended(run, Exit("failed", "why"))


def test_where_nothing_but_failures_comes_the_search_gives_up(folder: SweepFolder) -> None:
    queue = TrialQueue(folder)
    queue.say = lambda _: None
    for _ in range(3):
        fail(queue, next_of(queue))
    with pytest.raises(RunFailed, match="3 trials failed and none was done; the last one: why"):
        queue.next()


def test_a_trial_that_trains_on_shows_that_not_all_fail(
    folder: SweepFolder, clock: SimpleNamespace
) -> None:
    queue = TrialQueue(folder)
    queue.say = lambda _: None
    good = next_of(queue)
    queue.pending.clear()  # its other seed
    for _ in range(3):
        run = next_of(queue)
        clock.now += 10.0
        fail(queue, run)
    # It has trained for 30 s, where others failed after 10.
    assert queue.next() is None, "all four trials have begun"
    finish(good.folder, 3.0)
    finish(good.folder.with_name("s2"), 3.0)
    queue.ended(good, Exit("done", "total_env_steps"))
    assert queue.count("done") == 1


def test_nothing_begins_while_all_may_fail(tmp_path: Path, clock: SimpleNamespace) -> None:
    folder = made(tmp_path, "random", "trials = 9")
    queue = TrialQueue(folder)
    queue.say = lambda _: None
    runs = [next_of(queue) for _ in range(4)]
    clock.now += 10.0
    for run in runs[:3]:
        fail(queue, run)
    assert queue.next() is None, "the fourth may fail as well"
    clock.now += 11.0
    assert next_of(queue).name == "004/s1", "it has trained for longer than those"


def test_trials_that_end_without_the_objective_have_failed(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    queue = TrialQueue(made(tmp_path, "random", "trials = 9"))
    queue.say = lambda _: None
    runs = [next_of(queue) for _ in range(4)]
    clock.now += 10.0
    for run in runs:
        run.folder.mkdir(parents=True)
        ended = {"kind": "done", "cause": "total_env_steps"}
        (run.folder / "summary.json").write_text(json.dumps({"exit": ended}))
        queue.ended(run, Exit("done", "total_env_steps"))
        if run is runs[2]:
            assert queue.next() is None, "the fourth may end as they did"
    with pytest.raises(RunFailed, match=r"4 trials failed and none was done; .* in another sweep"):
        queue.next()


@pytest.mark.parametrize("still_trains", [False, True])
def test_a_trial_that_was_begun_before_others_failed_goes_on_after_a_kill(
    tmp_path: Path, *, still_trains: bool
) -> None:
    """It may be the one that shows that not all fail; else no command could go on with it any more."""
    folder = made(tmp_path, "random", "trials = 9")
    before = TrialQueue(folder)
    runs = [next_of(before) for _ in range(4)]
    for run in runs[:3]:
        run.folder.mkdir(parents=True)
        ended = {"kind": "done", "cause": "total_env_steps"}  # without the objective
        (run.folder / "summary.json").write_text(json.dumps({"exit": ended}))
    again = TrialQueue(folder)
    again.say = lambda _: None
    assert again.count("failed") == 3
    if still_trains:
        again.adopted(runs[3])
        again.next()  # a later one, or none for now
    else:
        assert next_of(again).name == "003/s1"
    finish(runs[3].folder, 5.0)
    again.ended(runs[3], Exit("done", "total_env_steps"))
    assert again.trials[3].state == "done"


FITS_SELDOM = """
method = "random"
trials = {trials}
sampler_seed = {seed}
[settings]
env_id = "CartPole-v1"
num_envs = 4
"algorithm.num_minibatches" = 2
[search]
"unroll_length" = [3, 4]
"policy.core" = ["none", "lstm"]
"algorithm.deal" = ["columns", "rows"]
"""


def refusing(tmp_path: Path, trials: int, seed: int) -> TrialQueue:
    """A quarter of whose trials cannot work: an LSTM does not learn from single rows."""
    (tmp_path / "x.toml").write_text(FITS_SELDOM.format(trials=trials, seed=seed))
    found = SweepFolder(tmp_path / "x", read_sweep(str(tmp_path / "x.toml")))
    found.path.mkdir()
    queue = TrialQueue(found)
    queue.say = lambda _: None
    return queue


def test_combinations_that_cannot_work_are_no_failures(tmp_path: Path) -> None:
    queue = refusing(tmp_path, 12, seed=7)
    runs = list[PlannedRun]()
    while (run := queue.next()) is not None:
        runs.append(run)
    assert len(queue.refused) >= 3
    assert len(runs) + len(queue.refused) == 12


def test_trials_that_cannot_work_are_not_left_after_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class AllButOne:
        """Finishes all trials but the last, and is stopped."""

        def __init__(self, *_: object, **__: object):
            pass

        def run(self, queue: TrialQueue) -> bool:
            runs = list(iter(queue.next, None))
            assert len(queue.refused) >= 3
            for run in runs[:-1]:
                finish(run.folder, 1.0)
                queue.ended(run, Exit("done", "total_env_steps"))
            return False

    monkeypatch.setattr(sweep, "Pool", AllButOne)
    (tmp_path / "x.toml").write_text(FITS_SELDOM.format(trials=12, seed=7))
    assert sweep.main(str(tmp_path / "x.toml"), folder=str(tmp_path / "x")) == 130
    assert "stopped: 1 of 12 trials are left; to go on" in capsys.readouterr().err


def test_where_no_combination_can_work_that_is_said(tmp_path: Path) -> None:
    queue = refusing(tmp_path, 1, seed=4)
    with pytest.raises(
        RunFailed, match=r"^no trial has settings that can work together; the last one: "
    ):
        queue.next()


def evaluated(queue: TrialQueue, run: PlannedRun, mark: int, mean: float) -> None:
    """Let a run have been evaluated at so many twentieths."""
    steps = mark * queue.trials[0].config.total_env_steps // 20
    row = {"mean": mean, "env_steps": steps, "time_s": 1.0, "learner": 0}
    run.folder.mkdir(parents=True, exist_ok=True)
    with (run.folder / "evaluation.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def test_the_pruner_looks_at_the_first_seed(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="Optuna is an optional extra")
    folder = made(tmp_path, "grid", 'seeds = 2\npruner = "halving"')
    queue = TrialQueue(folder)
    queue.say = lambda _: None

    runs = [next_of(queue) for _ in range(4)]
    for run, mean in zip(runs, (100.0, 100.0, 1.0, 1.0), strict=True):
        evaluated(queue, run, 1, mean)
    assert list(queue.unwanted(runs)) == [], "a twentieth of the training says little"
    for run, mean in zip(runs, (100.0, 100.0, 1.0, 1.0), strict=True):
        evaluated(queue, run, 4, mean)
    assert {x.name for x in queue.unwanted(runs)} == {"001/s1", "001/s2"}


def test_a_trial_that_is_done_is_not_stopped_early_while_its_process_ends(tmp_path: Path) -> None:
    """Its last evaluation is worse than others', and there is nothing left to save; what it is worth would be lost."""
    pytest.importorskip("optuna", reason="Optuna is an optional extra")
    queue = TrialQueue(made(tmp_path, "grid", 'pruner = "halving"'))
    queue.say = lambda _: None
    runs = [next_of(queue) for _ in range(4)]
    for run, mean in zip(runs, (80.0, 70.0, 60.0, 50.0), strict=True):
        evaluated(queue, run, 20, mean)
        finish(run.folder, mean)
    assert list(queue.unwanted(runs)) == []
    for run in runs:
        queue.ended(run, Exit("done", "total_env_steps"))
    assert [x.values for x in queue.by_number()] == [(80.0,), (70.0,), (60.0,), (50.0,)]


def test_a_sweep_that_goes_on_judges_no_trial_again_where_it_was_judged(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="Optuna is an optional extra")
    folder = made(tmp_path, "grid", 'pruner = "halving"')
    queue = TrialQueue(folder)
    runs = [next_of(queue) for _ in range(4)]
    for run, mean in zip(runs, (50.0, 60.0, 70.0, 80.0), strict=True):
        evaluated(queue, run, 4, mean)
        assert list(queue.unwanted([run])) == [], "none was better until then"
    again = TrialQueue(SweepFolder(folder.path, folder.sweep))
    again.say = lambda _: None
    assert list(again.unwanted(runs[::-1])) == []
    for run, mean in zip(runs, (50.0, 60.0, 70.0, 80.0), strict=True):
        evaluated(queue, run, 12, mean)
    assert {x.name for x in again.unwanted(runs[::-1])} >= {"000/s1", "001/s1"}


def test_a_pruned_trial_stays_so_and_others_know_of_it(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="Optuna is an optional extra")
    folder = made(tmp_path, "tpe", 'trials = 4\npruner = "median"')
    queue, said = TrialQueue(folder), list[str]()
    queue.say = said.append
    run = next_of(queue)
    assert list(queue.unwanted([run])) == []
    folder.prune(queue.trials[0])
    again = TrialQueue(folder)
    again.say = said.append
    assert again.trials[0].state == "pruned"
    assert [x.name for x in again.unwanted([run])] == [run.name], "it still trains"
    assert next_of(again).name == "001/s1"
