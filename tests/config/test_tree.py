"""How layers of settings are merged: the rules that `merge` states, and who set what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from gossamer.algorithms.ppo import PPO
from gossamer.config import TrainConfig, as_read, from_dict, own_parts, to_dict
from gossamer.config.merging import Layer, merge
from gossamer.config.tree import as_written
from gossamer.errors import ConfigError


@dataclass(frozen=True)
class Mine(PPO):
    """An algorithm of the user's."""

    beta: float = 2.0
    """A setting of its own."""


@pytest.fixture(autouse=True)
def no_classes_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_parts, "IN_USE", {})


def merged(*trees: dict[str, Any]) -> tuple[TrainConfig, dict[str, str]]:
    return merge(TrainConfig, [Layer(f"layer {i}", tree) for i, tree in enumerate(trees)])


def refused(*trees: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        merged(*trees)
    return str(caught.value)


VTRACE: Any = {"algorithm": {"name": "vtrace", "clip_rho": 2.0, "entropy_cost": 0.03}}


def test_the_highest_layer_that_names_a_member_chooses_and_what_both_have_is_kept() -> None:
    config, origin = merged(VTRACE, {"algorithm": "ppo"})
    assert config.algorithm == PPO(entropy_cost=(0.03,))
    assert (origin["algorithm.name"], origin["algorithm.entropy_cost"]) == ("layer 1", "layer 0")
    assert "algorithm.clip_rho" not in origin


def test_a_member_that_is_chosen_again_has_what_was_said_of_it_before() -> None:
    config, origin = merged(VTRACE, {"algorithm": "ppo"}, {"algorithm": {"name": "vtrace"}})
    assert getattr(config.algorithm, "clip_rho", None) == 2.0
    assert origin["algorithm.clip_rho"] == "layer 0"


def test_only_what_lies_below_the_choice_may_be_meant_for_another_member() -> None:
    told = refused({"algorithm": "ppo"}, VTRACE | {"algorithm": {"clip_rho": 2.0}})
    assert "layer 1: algorithm.clip_rho is a setting of vtrace, impact, laser, not of ppo" in told
    told = refused({"algorithm": "ppo"}, {"algorithm": {"name": "ppo", "clip_rho": 2.0}})
    assert told.startswith("layer 1: algorithm.clip_rho")


def test_a_value_that_another_member_could_read_is_passed_over() -> None:
    spoilt = {"algorithm": {"name": "ppo", "entropy_cost": "much"}}
    assert merged(spoilt, {"algorithm": "vtrace"})[1]["algorithm.entropy_cost"] == "default"
    assert "layer 0: algorithm.entropy_cost" in refused(spoilt, {"algorithm": {"passes": 2}})
    assert "layer 0: seed" in refused({"seed": "x"}, {"seed": 3}), "though it holds nowhere"


def test_a_class_is_a_part_of_its_own_kind_alone() -> None:
    name = f"{Mine.__module__}:Mine"
    told = refused({"algorithm": name, "topology": name})
    assert told.startswith(f"layer 0: topology: {name} is not a subclass of Topology")


def test_writing_settings_down_brings_no_class_into_use() -> None:
    config = TrainConfig("x:y", algorithm=Mine())
    written = to_dict(config)
    assert written["algorithm"]["name"] == f"{Mine.__module__}:Mine"
    assert own_parts.IN_USE == {}
    assert from_dict(written) == config
    assert [*own_parts.IN_USE] == [Mine], "reading them does"


def test_a_class_that_a_program_hands_over_is_in_use() -> None:
    assert as_written({"algorithm": Mine})["algorithm"]["name"] == f"{Mine.__module__}:Mine"
    assert as_written({"algorithm.name": Mine}) == {"algorithm.name": f"{Mine.__module__}:Mine"}
    assert [*own_parts.IN_USE] == [Mine]

    @dataclass(frozen=True)
    class Local(Mine):
        """A class that nothing could import."""

    as_read(TrainConfig("x:y", algorithm=Local()))
    assert [*own_parts.IN_USE] == [Mine, Local]
