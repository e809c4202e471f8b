"""Optuna proposes and prunes, and knows after a kill what the folder's trials tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gossamer.record.objectives import MARKS, NEVER
from gossamer.sweep.file import Sweep, read_sweep

pytest.importorskip("optuna", reason="Optuna is an optional extra")

from gossamer.sweep.search import Study

MORE = (
    '"algorithm.entropy_cost" = {min = 0.1, max = 0.75, step = 0.1}\n'
    '"algorithm.value_cost" = {min = 0.5, max = 0.5}\n'
)


def make_sweep(folder: Path, head: str = "", trials: int = 40, more: str = "") -> Sweep:
    (folder / "x.toml").write_text(
        f'method = "tpe"\ntrials = {trials}\n{head}\n[settings]\nenv_id = "CartPole-v1"\n[search]\n'
        '"optimizer.learning_rate" = {min = 1e-4, max = 1e-1, log = true}\n'
        '"algorithm.passes" = {min = 1, max = 9, step = 2}\n'
        '"optimizer.name" = ["adam", "rmsprop"]\n'
        '"algorithm.discount" = {min = 0.9, max = 0.99, num = 4}\n' + more
    )
    return read_sweep(str(folder / "x.toml"))


def begin(study: Study, number: int) -> dict[str, Any]:
    """Begin the trial that the study proposes."""
    chosen = study.propose(number)
    study.begin(number, chosen)
    return chosen


def test_what_is_proposed_may_be_tried(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, more=MORE)
    study = Study(sweep)
    for number in range(15):
        chosen = begin(study, number)
        assert list(chosen) == list(sweep.space)
        assert all(sweep.space[x].holds(y) for x, y in chosen.items())
        assert chosen["algorithm.passes"] % 2 == 1
        assert len(str(chosen["algorithm.entropy_cost"])) == 3, "as it would be written"
        sweep.preset(chosen)
        study.tell(number, [float(number)])


def test_it_learns_where_the_good_ones_are(tmp_path: Path) -> None:
    study = Study(make_sweep(tmp_path))
    tried: list[float] = []
    for number in range(40):
        chosen = begin(study, number)
        tried.append(abs(chosen["optimizer.learning_rate"] - 0.01))
        study.tell(number, [-tried[-1] + (chosen["optimizer.name"] == "adam")])
    assert sum(tried[-10:]) < 0.5 * sum(tried[:10])


def test_a_killed_sweep_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    """Proposals depend on the trials alone, those that are still trained among them."""
    sweep = make_sweep(tmp_path, trials=12)
    study = Study(sweep)
    begun = [begin(study, number) for number in range(10)]
    for number in range(9):
        study.tell(number, [float(number)])
    again = Study(sweep)
    for number, chosen in enumerate(begun):
        again.begin(number, chosen)
        if number < 9:
            again.tell(number, [float(number)])
    assert again.propose(10) == study.propose(10)
    assert study.propose(10) == study.propose(10), "to propose changes nothing"
    assert study.propose(10) != study.propose(11)


def test_a_list_in_which_not_all_have_every_setting_may_be_pruned(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(
        'method = "list"\npruner = "median"\n[settings]\nenv_id = "CartPole-v1"\n'
        "[[experiments]]\nalgorithm.passes = 2\n[[experiments]]\n"
    )
    sweep = read_sweep(str(tmp_path / "x.toml"))
    study = Study(sweep)
    for number in range(sweep.trials):
        study.begin(number, sweep.choice(number))
        assert not study.report(number, 1, 3.0)
        study.tell(number, [3.0])


@pytest.mark.parametrize("pruner", ["median", "halving", "hyperband"])
@pytest.mark.parametrize("objective", ["return", "seconds_to_score"])
def test_bad_trials_are_pruned_and_good_ones_are_not(
    pruner: str, objective: str, tmp_path: Path
) -> None:
    """Evaluations are better the greater, whatever the objective; hyperband lets some of its brackets go on."""
    head = f'pruner = "{pruner}"\nobjective = "{objective}"\n'
    head += "score = 100\n" if objective == "seconds_to_score" else ""
    sweep = make_sweep(tmp_path, head)
    study = Study(sweep)
    stopped: list[int] = []
    begun: list[dict[str, Any]] = []
    for number in range(16):
        begun.append(begin(study, number))
        mean = 100.0 - 10 * (number % 2) - number / 10  # every second one is worse
        for mark in range(1, MARKS + 1):
            worse = study.report(number, mark, mean * mark)
            study.report(number, mark, -1e9)  # the first word counts
            if worse:
                stopped.append(number)
                study.tell(number, [])
                break
        else:
            study.tell(number, [mean if objective == "return" else NEVER - mean])
    assert 0 not in stopped
    assert stopped
    assert sum(x % 2 for x in stopped) >= len(stopped) / 2


@pytest.mark.parametrize("pruner", ["median", "halving", "hyperband"])
def test_what_is_pruned_does_not_depend_on_a_kill(pruner: str, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, f'pruner = "{pruner}"')

    def decisions(restarted_before: int) -> list[tuple[int, int]]:
        study, told, found = Study(sweep), [], []
        for number in range(12):
            if number == restarted_before:
                study = Study(sweep)
                for other, chosen, marks, values in told:
                    study.begin(other, chosen)
                    for mark, mean in marks:
                        study.report(other, mark, mean)
                    study.tell(other, values)
            chosen, marks, values = begin(study, number), [], [1.0]
            for mark in range(1, MARKS + 1):
                marks.append((mark, 100.0 - 7 * (number * 5 % 11)))
                if study.report(number, *marks[-1]):
                    found.append((number, mark))
                    values = []
                    break
            study.tell(number, values)
            told.append((number, chosen, marks, values))
        return found

    without = decisions(-1)
    assert without
    assert decisions(8) == without


def test_a_trial_that_was_trained_on_is_known_to_be_worse(tmp_path: Path) -> None:
    study = Study(make_sweep(tmp_path, 'pruner = "median"'))
    for number in range(5):
        begin(study, number)
        for mark in range(1, MARKS + 1):
            study.report(number, mark, 100.0)
        study.tell(number, [100.0])
    begin(study, 5)
    study.report(5, 10, 1.0)
    study.report(5, 10, 1000.0)  # known already
    assert study.should_prune(5)
