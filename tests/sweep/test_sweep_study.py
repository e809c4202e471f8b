"""Optuna proposes, prunes, and remembers what a killed sweep had told it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import ConfigError
from gossamer.record.objectives import MARKS, NEVER
from gossamer.sweep.file import Sweep, read_sweep

pytest.importorskip("optuna", reason="Optuna is an optional extra")

from gossamer.sweep.study import JOURNAL, Study


def make_sweep(folder: Path, head: str = "", trials: int = 40) -> Sweep:
    (folder / "x.toml").write_text(
        f'method = "tpe"\ntrials = {trials}\n{head}\n[settings]\nenv_id = "CartPole-v1"\n[search]\n'
        '"optimizer.learning_rate" = {min = 1e-4, max = 1e-1, log = true}\n'
        '"algorithm.passes" = {min = 1, max = 9, step = 2}\n'
        '"optimizer.name" = ["adam", "rmsprop"]\n'
        '"algorithm.discount" = {min = 0.9, max = 0.99, num = 4}\n'
    )
    return read_sweep(str(folder / "x.toml"))


def test_what_is_proposed_may_be_tried(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    study = Study(tmp_path, sweep, [])
    for number in range(15):
        own, chosen = study.ask(number)
        assert own == number
        assert all(sweep.space[x].holds(y) for x, y in chosen.items())
        assert chosen["algorithm.passes"] % 2 == 1
        sweep.preset(chosen)
        study.tell(own, [float(number)])


def test_it_learns_where_the_good_ones_are(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    study = Study(tmp_path, sweep, [])
    tried: list[float] = []
    for number in range(40):
        own, chosen = study.ask(number)
        tried.append(abs(chosen["optimizer.learning_rate"] - 0.01))
        study.tell(own, [-tried[-1] + (chosen["optimizer.name"] == "adam")])
    assert sum(tried[-10:]) < 0.5 * sum(tried[:10])


def test_a_killed_sweep_goes_on_with_what_was_told(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    study = Study(tmp_path, sweep, [])
    asked = [study.ask(number) for number in range(3)]
    study.tell(0, [1.0])
    study.ask(3)  # killed before it was written down
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 4, "wor')  # and in the midst of a line
    study = Study(tmp_path, sweep, [0, 1, 2])
    study.tell(0, [1.0])  # told again: no harm
    study.tell(1, [2.0])
    own, chosen = study.ask(3)
    assert own == 4
    assert chosen not in [x for _, x in asked], "the same numbers are not drawn again"
    states = [json.loads(x) for x in (tmp_path / JOURNAL).read_text().splitlines()]
    assert states


def test_a_sweep_killed_between_two_words_to_it_goes_on(tmp_path: Path) -> None:
    """A trial that was chosen elsewhere waits in the journal until it is begun."""
    sweep = make_sweep(tmp_path)
    study = Study(tmp_path, sweep, [])
    own, chosen = study.ask(0)
    study.ask(1, chosen)
    lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    waits = [i for i, x in enumerate(lines) if b'"state": 4' in x or b'"state":4' in x]
    (tmp_path / JOURNAL).write_bytes(b"".join(lines[: waits[-1] + 1]))
    study = Study(tmp_path, sweep, [own])
    assert study.ask(2)[0] == 2


def test_settings_chosen_elsewhere_are_known_to_it(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    fixed: dict[str, Any] = {
        "optimizer.learning_rate": 0.003,
        "algorithm.passes": 5,
        "optimizer.name": "rmsprop",
        "algorithm.discount": 0.93,
    }
    study = Study(tmp_path, sweep, [])
    assert study.ask(0, fixed) == (0, fixed)


@pytest.mark.parametrize("pruner", ["median", "halving", "hyperband"])
@pytest.mark.parametrize("objective", ["return", "seconds_to_score"])
def test_bad_trials_are_pruned_and_good_ones_are_not(
    pruner: str, objective: str, tmp_path: Path
) -> None:
    """Evaluations are better the greater, whatever the objective; hyperband lets some of its brackets go on."""
    head = f'pruner = "{pruner}"\nobjective = "{objective}"\n'
    head += "score = 100\n" if objective == "seconds_to_score" else ""
    study = Study(tmp_path, make_sweep(tmp_path, head), [])
    stopped: list[int] = []
    for number in range(16):
        own, _ = study.ask(number)
        mean = 100.0 - 10 * (number % 2) - number / 10  # every second one is worse
        for mark in range(1, MARKS + 1):
            study.report(own, mark, mean * mark)
            study.report(own, mark, -1e9)  # the first word counts
            if study.should_prune(own):
                stopped.append(number)
                study.tell(own, [])
                break
        else:
            study.tell(own, [mean if objective == "return" else NEVER - mean])
    assert 0 not in stopped
    assert stopped
    assert sum(x % 2 for x in stopped) >= len(stopped) / 2


def test_reports_outlive_a_kill(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 'pruner = "median"')
    study = Study(tmp_path, sweep, [])
    for number in range(5):
        study.ask(number)
        for mark in range(1, MARKS + 1):
            study.report(number, mark, 100.0)
        study.tell(number, [100.0])
    study.ask(5)
    study.report(5, 10, 1.0)
    again = Study(tmp_path, sweep, list(range(6)))
    again.report(5, 10, 1000.0)  # known already
    assert again.should_prune(5)


@pytest.mark.parametrize(
    "damage", [b"[1, 2]\n", b"\x00\xff\n", b'{"op_code": 99, "worker_id": "a"}\n']
)
def test_a_damaged_journal_is_told(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(damage)
    with pytest.raises(ConfigError, match="is damaged"):
        Study(tmp_path, make_sweep(tmp_path), [])


def test_a_journal_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not know trials"):
        Study(tmp_path, make_sweep(tmp_path), [0, 1])
