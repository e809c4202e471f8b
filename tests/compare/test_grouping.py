"""Which runs are seeds of one thing, and what the groups are called."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.compare.grouping import group_by_settings
from gossamer.errors import ConfigError


def settings(**values: Any) -> dict[str, Any]:
    names = {
        "lr": "optimizer.learning_rate",
        "algorithm": "algorithm.name",
        "clip": "algorithm.clip",
    }
    plain = {"env_id": "CartPole-v1", "seed": 1, "algorithm.name": "ppo"}
    return plain | {names.get(name, name): value for name, value in values.items()}


def test_seeds_and_what_is_kept_of_a_run_set_nothing_apart() -> None:
    runs = [
        settings(seed=1, run_folder="a", keep_checkpoints=1),
        settings(seed=2, run_folder="b", **{"evaluation.every_seconds": 3.0}),
    ]
    found = group_by_settings(runs)
    assert found.members == ((0, 1),)
    assert found.labels == ("all runs",)
    assert found.also == ()


def test_groups_are_named_by_what_differs_and_in_order_of_numbers() -> None:
    runs = [settings(lr=[x]) for x in (0.1, 0.001, 0.01, 0.1)]
    found = group_by_settings(runs)
    assert found.by == ("optimizer.learning_rate",)
    assert found.members == ((1,), (2,), (0, 3))
    assert found.labels[0] == "optimizer.learning_rate=0.001"


def test_a_kind_brings_its_settings_along() -> None:
    runs = [
        settings(algorithm="ppo", clip=0.2, num_envs=8),
        settings(algorithm="vtrace", num_envs=64),
        settings(algorithm="vtrace", num_envs=64, seed=2),
    ]
    found = group_by_settings(runs)
    assert found.by == ("algorithm.name",)
    assert found.labels == ("algorithm=ppo", "algorithm=vtrace")
    assert found.also == ("algorithm.clip", "num_envs")


def test_what_somebody_chose_names_a_group() -> None:
    runs = [settings(alpha=1, omega=1), settings(alpha=2, omega=2)]
    assert group_by_settings(runs).by == ("alpha",)
    assert group_by_settings(runs, chosen={"omega"}).by == ("omega",)


def test_how_many_learners_there_are_names_a_group_before_what_each_has() -> None:
    runs = [settings(num_envs=x, num_learners=y) for x, y in ((16, 1), (4, 4))]
    assert group_by_settings(runs, chosen={"num_envs", "num_learners"}).by == ("num_learners",)


def test_a_name_that_has_become_needless_is_dropped() -> None:
    runs = [settings(a=x, b=y, c=z) for x, y, z in ((1, 1, 1), (1, 2, 2), (2, 1, 3), (2, 2, 4))]
    found = group_by_settings(runs, chosen={"a"})
    assert len(found.members) == 4
    assert found.by in (("a", "b"), ("c",))


def test_defaults_of_environments_set_no_groups_apart() -> None:
    runs = [
        settings(env_id=env, algorithm=algorithm, num_envs=envs)
        for env, envs in (("CartPole-v1", 8), ("Pong", 64))
        for algorithm in ("ppo", "vtrace")
    ]
    found = group_by_settings(runs)
    assert found.by == ("algorithm.name",)
    assert found.members == ((0, 2), (1, 3))


def test_grouping_by_a_setting_pools_the_rest_and_says_so() -> None:
    runs = [settings(algorithm=x, lr=[y]) for x in ("ppo", "a2c") for y in (0.1, 0.2)]
    assert len(group_by_settings(runs).members) == 4
    found = group_by_settings(runs, ["algorithm"])
    assert found.labels == ("algorithm=a2c", "algorithm=ppo")
    assert found.also == ("optimizer.learning_rate",)
    both = group_by_settings(runs, ["--optimizer.learning-rate", "algorithm.name"])
    assert len(both.members) == 4


def test_a_setting_that_is_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean optimizer\.learning_rate\?"):
        group_by_settings([settings(lr=[0.1])], ["learning_rate"])
    with pytest.raises(ConfigError, match="different environments cannot be compared"):
        group_by_settings([settings()], ["env_id"])


def test_whole_and_broken_numbers_of_one_value_are_equal() -> None:
    for value in (1.0, [1]):
        assert len(group_by_settings([settings(x=1), settings(x=value)]).members) == 1
    assert len(group_by_settings([settings(x=1), settings(x=True)]).members) == 2
    assert len(group_by_settings([settings(x=None), settings()]).members) == 2


values = st.sampled_from([None, True, 0, 1, 1.5, "a", [1], [1, 2]])
run = st.dictionaries(st.sampled_from(["a", "b", "c.name", "seed"]), values)


def held(settings: dict[str, Any], name: str) -> str:
    value = settings.get(name, "absent")
    return repr(1 if value == [1] else value)


@given(st.lists(run, min_size=1, max_size=8))
def test_runs_are_together_if_and_only_if_no_setting_differs(runs: list[dict[str, Any]]) -> None:
    found = group_by_settings(runs)
    assert sorted(i for group in found.members for i in group) == list(range(len(runs)))
    where = {i: number for number, group in enumerate(found.members) for i in group}
    for i, one in enumerate(runs):
        for j, other in enumerate(runs):
            names = {*one, *other} - {"seed"}
            same = all(held(one, x) == held(other, x) for x in names)
            assert (where[i] == where[j]) == same
