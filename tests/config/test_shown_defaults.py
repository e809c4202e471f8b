"""Defaults that the help and docs/settings.md show are those that a run would use."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gossamer import cli
from gossamer.config import kinds, make_config, to_dict, train_help
from gossamer.config.help import shown_groups
from gossamer.config.names import flag
from gossamer.config.shown_defaults import BY_SUITE, defaults_by_suite
from gossamer.config.tree import flatten
from gossamer.envs.settings import SUITE_IDS, suite_of

ALGORITHMS = [*kinds("algorithm")]


def shown_in(text: str) -> dict[str, str]:
    """Return by flag the bracket at the end of its help."""
    found: dict[str, str] = {}
    for part in re.split(r"^  (?=--)", text, flags=re.MULTILINE)[1:]:
        body = re.split(r"\n(?=\S|\n)", part)[0]
        if bracket := re.search(r"\[([^\[\]]*)\]$", " ".join(body.split())):
            found.setdefault(part.split()[0], bracket[1])
    return found


def help_to(*words: str, capsys: Any) -> str:
    assert cli.main(["train", *words]) == 0
    return capsys.readouterr().out


def trained_with(env_id: str, algorithm: str) -> dict[str, Any]:
    return dict(flatten(to_dict(make_config(env_id, {"algorithm": algorithm}))))


def test_every_suite_has_an_id() -> None:
    assert [suite_of(env_id) for env_id in SUITE_IDS.values()] == list(SUITE_IDS)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_defaults_of_a_suite_are_those_that_it_trains_with(algorithm: str) -> None:
    for suite, values in defaults_by_suite(algorithm).items():
        trained = trained_with(SUITE_IDS[suite], algorithm)
        assert {**values, "num_learners": 1} == trained, suite


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_shown_default_holds_in_every_suite(algorithm: str) -> None:
    by_suite = [trained_with(env_id, algorithm) for env_id in SUITE_IDS.values()]
    (env_id,) = (r for g in shown_groups() for r in g.rows if r.name == "env_id")
    assert env_id.default_shown == "empty"
    for group in shown_groups(algorithm=algorithm):
        if group.title not in ("run", "algorithm", f"algorithm:{algorithm}", "optimizer", "policy"):
            continue
        for row in group.rows:
            if row.name in ("env_id", "num_learners") or "NAME" in row.name:
                continue
            values = [one[row.name] for one in by_suite]
            differ = any(value != values[0] for value in values)
            assert (row.default == BY_SUITE) == differ, row.name
            if not differ:
                assert row.default == values[0], row.name


@pytest.mark.parametrize("every", [False, True])
def test_the_general_help_shows_what_the_default_algorithm_uses(every: bool) -> None:
    shown = shown_in(train_help(every=every))
    trained = {x: trained_with(env_id, "ppo") for x, env_id in SUITE_IDS.items()}
    names = [*trained["other"]]
    checked = 0
    for name in names:
        if flag(name) not in shown or not name.startswith(("optimizer.", "policy.")):
            continue
        values = {str(one[name]) for one in trained.values()}
        assert (shown[flag(name)] == BY_SUITE) == (len(values) > 1), name
        checked += 1
    assert checked >= 5
    assert shown["--optimizer.learning-rate"] == BY_SUITE
    assert shown["--num-envs"] == BY_SUITE
    assert shown["--total-env-steps"] == BY_SUITE
    assert shown["--algorithm.value-norm"] == "on"


def test_the_short_help_takes_an_algorithms_settings_from_that_algorithm(capsys: Any) -> None:
    told = " ".join(train_help().split())
    assert "whole columns" not in told
    assert shown_in(train_help())["--algorithm.num-minibatches"] == BY_SUITE
    laser = help_to("algorithm:laser", "--help", capsys=capsys)
    assert "--algorithm.clip-ratio" not in laser
    assert "whole columns" in " ".join(laser.split())
    assert shown_in(laser)["--algorithm.value-norm"] == BY_SUITE


def test_settings_of_topologies_say_whose_they_are(capsys: Any) -> None:
    assert shown_in(train_help())["--topology.max-staleness"] == (
        "by topology: diffusion 0, gossip never"
    )
    gossip = help_to("topology:gossip", "--help", capsys=capsys)
    assert shown_in(gossip)["--topology.max-staleness"] == "never"
    assert "--topology.adjacency" not in gossip


def test_an_environments_help_shows_its_values_and_those_of_other_parts(capsys: Any) -> None:
    told = help_to("CartPole-v1", "--help-all", "--algorithm.trace-lambda", "0.5", capsys=capsys)
    parts = dict(re.findall(r"^(algorithm:\w+):\n(.*?)(?=^\S)", told, re.MULTILINE | re.DOTALL))
    ppo, laser = shown_in(parts["algorithm:ppo"]), shown_in(parts["algorithm:laser"])
    assert ppo["--algorithm.trace-lambda"] == "0.5"
    assert laser["--algorithm.trace-lambda"] == "0.95"
    assert laser["--algorithm.num-minibatches"] == "8"
    assert shown_in(told)["--num-envs"] == "8"
    assert BY_SUITE not in shown_in(told).values()


def test_names_of_parts_stand_in_the_help() -> None:
    told = " ".join(train_help().split())
    for section in ("algorithm", "topology"):
        names = ", ".join(kinds(section))
        assert names in told
