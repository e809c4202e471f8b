"""Settings and plan of a resumed run: what a checkpoint is bound to, what begins anew, and what scores compare under."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_placement import PLAN

from gossamer.build.plan import Plan, make_plan
from gossamer.config import TrainConfig, make_config, to_dict
from gossamer.envs.registry import read_spec
from gossamer.errors import ConfigError
from gossamer.machine import Machine
from gossamer.run.resumed_settings import (
    episodes_changed,
    for_this_machine,
    policy_changed,
    refuse_changes,
    resumed_plan,
    scores_changed,
)

CART, PONG = "CartPole-v1", "PongNoFrameskip-v4"
SMALL = Machine(cores=2, processor="Small", gpus=(), bf16=(), torch="2.0")
EPISODES: list[dict[str, Any]] = [
    {"env": {"frame_skip": 2}},
    {"env": {"noop_max": 7}},
    {"env": {"sticky": 0.5}},
    {"env": {"fire_reset": False}},
    {"env": {"stuck_steps": 77}},
    {"env": {"family": "all"}},
]
"""With each of these an episode that is played again takes another course, or another end."""
COMPUTED: list[dict[str, Any]] = [
    {"policy": {"activation": "relu"}},
    {"policy": {"normalize_obs": False}},
    {"policy": {"obs_clip": 0.5}},
    {"policy": {"pixel_std_floor": 3.0}},
    {"policy": {"squash": True}},
    {"policy": {"scale_actions": True}},
    {"policy": {"noise_correlation": 0.25}},
]
"""With each of these the same parameters compute something else."""
COUNTED: list[dict[str, Any]] = [
    {"env": {"full_action_space": True}},
    {"env": {"frame_stack": 2}},
    {"env": {"size": 42}},
    {"env": {"grayscale": False}},
    {"evaluation": {"greedy": True}},
    {"evaluation": {"held_out_tasks": 3}},
]
"""With each of these the same policy earns something else, or that is counted otherwise."""


def saved(env_id: str = PONG, **changes: Any) -> dict[str, Any]:
    """Return the settings of a run; `changes` are those of sections, whatever their values may be."""
    settings = to_dict(make_config(env_id))
    for section, values in changes.items():
        if isinstance(values, dict):
            assert values.keys() <= settings[section].keys()
            settings[section] = {**settings[section], **values}
        else:
            assert section in settings
            settings[section] = values
    return settings


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2},
        {"unroll_length": 7},
        {"num_learners": 3},
        {"optimizer": {"name": "sgd"}},
        {"env": {"task_seed": 5}},
        {"env": {"tasks_per_learner": 4}},
    ],
)
def test_what_a_checkpoint_is_bound_to_stays(changes: dict[str, Any]) -> None:
    refuse_changes(saved(), saved())
    with pytest.raises(ConfigError, match="which a resumed run keeps"):
        refuse_changes(saved(), saved(**changes))


def topology(name: str, size: int) -> dict[str, Any]:
    return to_dict(make_config(CART, {"num_learners": size, "topology": {"name": name}}))


@pytest.mark.parametrize("names", [("allreduce", "gossip"), ("single", "allreduce")])
def test_learners_that_are_alike_stay_so_and_others_do_not_become_so(
    names: tuple[str, str],
) -> None:
    with pytest.raises(ConfigError, match=r"topology\.name is "):
        refuse_changes(topology(names[0], 2), topology(names[1], 2))
    refuse_changes(topology("single", 2), topology("gossip", 2))


@pytest.mark.parametrize("changes", [*EPISODES, *COMPUTED, *COUNTED])
def test_what_begins_episodes_anew_and_what_drops_scores(changes: dict[str, Any]) -> None:
    before, after = saved(), saved(**changes)
    ((section, values),) = changes.items()
    ((name, _),) = values.items()
    (told,) = scores_changed(before, after, PLAN, PLAN)
    assert told.startswith(f"{section}.{name} ")
    assert len([*episodes_changed(before, after, PLAN, PLAN)]) == (changes in EPISODES)
    assert len([*policy_changed(before, after)]) == (changes in COMPUTED)
    assert not [*scores_changed(before, before, PLAN, PLAN)]


@pytest.mark.parametrize(
    "changes", [{"env": {"task_seed": 1}}, {"env": {"workers": 2}}, {"lag": "0"}]
)
def test_what_earns_the_same_drops_no_scores(changes: dict[str, Any]) -> None:
    assert not [*scores_changed(saved(), saved(**changes), PLAN, PLAN)]


def test_another_limit_of_episodes_begins_them_anew() -> None:
    shorter = replace(PLAN, max_episode_steps=20)
    for told in (episodes_changed, scores_changed):
        assert [*told(saved(), saved(), PLAN, shorter)] == ["max_episode_steps 0 -> 20"]


def test_of_an_environments_setting_none_is_a_value_and_else_an_older_version_has_not_said() -> (
    None
):
    frames = {"env": {"frame_stack": 2}}
    unsaid = saved(env={"frame_stack": None})
    assert [*scores_changed(unsaid, saved(**frames), PLAN, PLAN)] == ["env.frame_stack none -> 2"]
    old = saved()
    del old["policy"]["squash"]
    assert not [*scores_changed(old, saved(), PLAN, PLAN)]


def plan_of(machine: Machine, **settings: Any) -> tuple[TrainConfig, Plan]:
    made = make_config(CART, {"num_envs": 4, **settings})
    return made, make_plan(made, read_spec(CART, made.env, 0, tries=False), machine)


def resumed(
    saved: Plan, made: TrainConfig, machine: Machine, *given: str, before: Any = None
) -> Plan:
    now = for_this_machine(made, machine, set(given), saved)
    spec = read_spec(CART, made.env, 0, tries=False)
    return resumed_plan(saved, now, spec, machine, set(given), before or to_dict(made))[0]


def test_a_lag_that_an_algorithm_cannot_correct_is_let_go_of() -> None:
    """Also of one that its run had by another algorithm."""
    vtrace, plan = plan_of(SMALL, algorithm={"name": "vtrace"}, lag="1")
    assert plan.lag == 1
    assert resumed(plan, vtrace, SMALL).lag == 1
    a2c, _ = plan_of(SMALL, algorithm={"name": "a2c", "num_minibatches": 1})
    assert resumed(plan, a2c, SMALL).lag == 0
    assert resumed(plan, a2c, SMALL, before=to_dict(vtrace)).lag == 0
    free, plan = plan_of(SMALL, algorithm={"name": "vtrace"}, lag="free")
    assert resumed(plan, replace(free, lag="auto"), SMALL).lag is None, "the run's own"


def test_a_run_keeps_its_limit_of_episodes_unless_another_is_asked_for() -> None:
    made, plan = plan_of(SMALL, max_episode_steps=50)
    other = replace(made, max_episode_steps=0)
    assert resumed(plan, other, SMALL).max_episode_steps == 50
    assert resumed(plan, other, SMALL, "max_episode_steps").max_episode_steps == 0


def test_threads_that_were_asked_for_on_a_cpu_are_let_go_of_on_a_gpu() -> None:
    """There they are refused."""
    made, plan = plan_of(SMALL, learner_threads=2, actor_threads=2)
    gpu = replace(SMALL, gpus=("GPU 80",), bf16=("cuda",))
    now = for_this_machine(made, gpu, set(), plan)
    assert (now.learner_threads, now.actor_threads) == (0, 0)
    asked = for_this_machine(made, gpu, {"learner_threads"}, plan)
    assert asked.learner_threads == 2
