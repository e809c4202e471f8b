"""The help of `gossamer train`: what most people use, and everything on request."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gossamer import cli
from gossamer.config.arguments import Options
from gossamer.config.help import COMMON, field_docs, setting_groups, train_help

EVERY = {row.name for group in setting_groups() for row in group.rows} - {"env_id"}


def flags(text: str) -> set[str]:
    return {x.replace("-", "_") for x in re.findall(r"^  --([a-zA-Z0-9.-]+)", text, re.MULTILINE)}


def test_the_short_help_has_forty_settings_in_their_first_sentence() -> None:
    told = train_help()
    common = {name for names in COMMON.values() for name in names}
    assert common <= EVERY
    assert common <= flags(told)
    assert len(common) <= 48
    assert "All" in told.splitlines()[-1]
    assert "--help-all" in told.splitlines()[-1]
    assert len(told.splitlines()) < 150
    assert "Environments per learner, >= 0. 0: auto" in " ".join(told.split())


def test_options_that_are_no_settings_are_told_as_they_are_declared() -> None:
    told = " ".join(train_help().split())
    for name, meaning in field_docs(Options).items():
        assert f"--{name.replace('_', '-')} " in told
        assert meaning in told
    assert "--config NAME ..." in told
    assert "--resume RUN" in told


def test_all_settings_are_told_on_request() -> None:
    assert flags(train_help(every=True)) >= EVERY


@pytest.mark.parametrize("word", ["algorithm:laser", "topology:diffusion"])
def test_a_part_that_is_chosen_tells_its_own_settings(word: str, capsys: Any) -> None:
    assert cli.main(["train", word, "--help"]) == 0
    told = flags(capsys.readouterr().out)
    (group,) = (group for group in setting_groups() if group.title == word)
    assert {row.name for row in group.rows} <= told
    assert "topology.mix_optimizer" not in flags(train_help())
