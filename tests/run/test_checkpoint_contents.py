"""What a checkpoint holds, read from a run that an earlier version has saved, and from what nobody has written."""

from __future__ import annotations

import copy
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gossamer.config import from_dict
from gossamer.errors import ConfigError, RunFailed
from gossamer.record.checkpoint import Checkpoint, CheckpointStore
from gossamer.record.window import OfLearner
from gossamer.run.checkpoint_contents import (
    InitialState,
    LearnerState,
    PolicyOrigin,
    RunState,
    SavedPolicy,
    ScoredPolicy,
    env_steps_of,
    facts_of,
    from_disk,
    policy_of,
    tensors_of,
    to_disk,
)
from gossamer.run.snapshot import part_of
from gossamer.run.train import train
from gossamer.system.messages import from_whole, to_array

SAVED_RUN = Path(__file__).parent / "saved_run"
"""CartPole-v1 by gossip, two learners with a replay beside the queue, which its checkpoint holds; of version 0.1.0."""


@pytest.fixture
def checkpoint() -> Checkpoint:
    return CheckpointStore(SAVED_RUN / "checkpoints", 0).load()


def changed(found: Checkpoint, facts: dict[str, Any]) -> Checkpoint:
    return replace(found, state=facts)


def test_a_saved_run_is_read_as_structs(checkpoint: Checkpoint) -> None:
    state = from_disk(checkpoint, 2)
    assert state.updates == {0: 33, 1: 33}
    assert state.env_steps == 2020 == sum(x.own_env_steps for x in state.learners)
    assert (state.exact, state.plan.num_envs, state.plan.lag) == (True, 2, 1)
    assert (state.recorder.episode_rows, state.policies.policy_of) == (97, None)
    first, second = state.learners
    assert first.numbers["learner.replay.0.draws"] == 33
    assert first.numbers["learner.replay.0.rng"] != second.numbers["learner.replay.0.rng"]
    assert first.tensors.keys() == second.tensors.keys()
    weight = next(iter(policy_of(checkpoint.tensors, 1)))
    assert second.tensors[f"learner.policy.{weight}"] is checkpoint.tensors[f"1/learner.policy.{weight}"]  # fmt: skip


def test_a_saved_run_is_written_as_it_was(checkpoint: Checkpoint) -> None:
    tensors, facts = to_disk(from_disk(checkpoint, 2))
    # Which the version that saved it did not have yet.
    new: dict[str, Any] = {
        "absent": [],
        "settings": {},
        "plan": {"actors": 0, **checkpoint.state["plan"]},
    }
    record = checkpoint.state["recorder"]
    new["recorder"] = {**record, "window": [[*own, []] for own in record["window"]]}
    assert json.loads(json.dumps(facts)) == {**checkpoint.state, **new}
    assert tensors.keys() == checkpoint.tensors.keys()
    assert all(torch.equal(x, checkpoint.tensors[name]) for name, x in tensors.items())


def test_numbers_of_numpy_are_written(checkpoint: Checkpoint) -> None:
    state = from_disk(checkpoint, 2)
    state.learners[0].numbers["learner.algorithm.kl_nats"] = np.float64(0.25)
    state.recorder.window[0][1][0] = np.float64(17.5)
    facts = json.loads(json.dumps(to_disk(state)[1]))
    assert facts["held"]["learner.algorithm.kl_nats"] == 0.25
    assert facts["recorder"]["window"][0][1][0] == 17.5


def test_returns_that_are_no_numbers_are_no_damage(checkpoint: Checkpoint) -> None:
    facts = copy.deepcopy(checkpoint.state)
    facts["recorder"]["window"][0][1][0] = float("nan")
    facts["scores"] = [[0, float("nan")]]
    state = from_disk(changed(checkpoint, facts), 2)
    assert math.isnan(state.recorder.window[0][1][0]), "an environment has paid it"


def test_a_saved_run_goes_on(tmp_path: Path) -> None:
    shutil.copytree(SAVED_RUN, tmp_path / "run")
    settings = json.loads((SAVED_RUN / "config.json").read_text())
    config = from_dict({**settings, "total_env_steps": 2200})
    result = train(config, resume=tmp_path / "run", quiet=True)
    assert result.summary["env_steps"] >= 2200
    assert " at 2,020 env steps, update 33" in (tmp_path / "run" / "log.txt").read_text()


def test_a_state_travels_as_it_is(checkpoint: Checkpoint) -> None:
    state = from_disk(checkpoint, 2)
    state.learners[1].numbers["learner.algorithm.kl_nats"] = float("nan")
    found = from_whole(to_array(state), InitialState)
    assert isinstance(found, RunState)
    assert repr(to_disk(found)[1]) == repr(to_disk(state)[1])
    assert torch.equal(found.learners[1].tensors["queue.0.obs"], state.learners[1].tensors["queue.0.obs"])  # fmt: skip
    policy = SavedPolicy.of(checkpoint, 1)
    found = from_whole(to_array(policy), InitialState)
    assert isinstance(found, SavedPolicy)
    assert found.folder == policy.folder
    assert all(torch.equal(x, policy.tensors[name]) for name, x in found.tensors.items())


def test_a_host_is_given_the_tensors_of_its_learners_and_the_counts_of_all(
    checkpoint: Checkpoint,
) -> None:
    whole = from_disk(checkpoint, 2)
    part = part_of(whole, range(1, 2))
    assert isinstance(part, RunState)
    assert part.updates == whole.updates
    assert [bool(x.tensors) for x in part.learners] == [False, True]
    assert [bool(x.tensors) for x in whole.learners] == [True, False], "it is in memory once"


def test_what_replays_hold_may_be_left_on_disk() -> None:
    mine = tensors_of(range(1, 2), replays=False)
    names = ["1/learner.replay.0.obs", "1/learner.policy.x", "learner.policy.x", "1/actor.0.obs"]
    assert [name for name in names if mine(name)] == ["1/learner.policy.x", "1/actor.0.obs"]
    assert tensors_of(range(1, 2))("1/learner.replay.0.obs")
    assert tensors_of(range(1), replays=False)("actor.0.obs")
    assert not tensors_of(range(1), replays=False)("learner.replay.0.obs")


def test_what_older_runs_have_not_written_is_filled_in(checkpoint: Checkpoint) -> None:
    facts = copy.deepcopy(checkpoint.state)
    del facts["recorder"]["window"], facts["num_learners"], facts["best_learner"]
    del facts["held"]["learner.own_env_steps"]
    facts |= {"scores": [[0, 1.0], [1, 3.0]], "policy_of": 1}
    facts["recorder"] |= {
        "returns": [1.0, 1.0, 4.0],
        "lengths": [10, 10, 40],
        "returns_of": [[0, [1.0, 1.0]], [1, [4.0]]],
    }
    for name in ("cores", "hardware", "torch", "env_workers"):
        del facts["plan"][name]
    state = from_disk(changed(checkpoint, facts), 2)
    assert state.recorder.window == [OfLearner(0, [1.0, 1.0], [40, 40]), OfLearner(1, [4.0], [40])]
    assert state.policies.best_learner == 1
    assert state.learners[0].own_env_steps == state.learners[0].env_steps
    assert (state.plan.cores, state.plan.hardware) == (0, "")
    del facts["recorder"]["returns_of"]
    window = from_disk(changed(checkpoint, facts), 2).recorder.window
    assert window == [OfLearner(0, [1.0, 1.0, 4.0], [10, 10, 40])]
    facts["recorder"] |= {"returns": [], "lengths": []}
    assert from_disk(changed(checkpoint, facts), 2).recorder.window == []
    facts["best_learner"] = None
    assert from_disk(changed(checkpoint, facts), 2).policies.best_learner is None


@pytest.mark.parametrize(
    ("at", "value", "named"),
    [
        (("held",), [], "held"),
        (("held", "1/learner.update"), "many", "1/learner.update"),
        (("held", "1/learner.update"), -1, "1/learner.update"),
        (("held",), {}, "learner.own_env_steps"),
        (("held", "learner.version"), -5, "learner.version"),
        (("held", "learner.env_steps"), None, "learner.env_steps"),
        (("held", "learner.algorithm.lr_scale"), [1.0], "learner.algorithm.lr_scale"),
        (("held", "learner.algorithm.kl_nats"), float("nan"), "learner.algorithm.kl_nats"),
        (("held", "2/learner.update"), 1, "2/learner.update"),
        (("held", "one/learner.update"), 1, "one/learner.update"),
        (("held", "0/learner.update"), 1, "0/learner.update"),
        (("held", "-1/learner.update"), 33, "-1/learner.update"),
        (("held", "learner.update"), 0, "learner.update"),
        (("held", "actor.env_steps"), {}, "actor.env_steps"),
        (("plan",), 3, "plan"),
        (("plan", "num_envs"), 3, "plan.num_envs"),
        (("plan", "num_envs"), 10**12, "plan.num_envs"),
        (("plan", "env_groups"), 2, "actor.1.episodes"),
        (("plan", "env_groups"), 0, "plan.env_groups"),
        (("plan", "actor_threads"), 10**9, "plan.actor_threads"),
        (("plan", "device"), "mars", "plan.device"),
        (("plan", "lag"), [1], "plan.lag"),
        (("plan", "lag"), True, "plan.lag"),
        (("plan", "lag"), 1.0, "plan.lag"),
        (("plan", "torch"), "\x1b", "plan.torch"),
        (("exact",), "yes", "exact"),
        (("recorder", "window"), [[0, [1.0], []]], "recorder.window"),
        (("recorder", "window"), [[0, ["a"], ["b"]]], "recorder.window[0][1][0]"),
        (("recorder", "window"), [[0, [1.0], [1], [{}, {}]]], "recorder.window"),
        (("recorder", "window"), 3, "recorder.window"),
        (("recorder", "seconds"), "long", "recorder.seconds"),
        (("recorder", "seconds"), float("nan"), "recorder.seconds"),
        (("recorder", "paced"), [], "recorder.paced"),
        (("recorder", "paced"), [float("inf"), 1], "recorder.paced[0]"),
        (("recorder", "episode_rows"), -1, "recorder.episode_rows"),
        (("evaluation_budget",), float("inf"), "evaluation_budget"),
        (("settings",), [], "settings"),
        (("num_learners",), 3, "num_learners"),
        (("policy_of",), 2, "policy_of"),
        (("scores",), [[2, 1.0]], "policy_of"),
        (("scores",), [3], "scores[0]"),
        (("scores",), [[None, 1.0]], "scores[0][0]"),
        (("absent",), [[2, 0]], "absent"),
        (("absent",), [[1, 2]], "absent"),
        (("absent",), [[0, 1], [1, 0]], "absent"),
        (("absent",), [[1, -1]], "absent[0][1]"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_named(
    checkpoint: Checkpoint, at: tuple[str, ...], value: Any, named: str
) -> None:
    inner = facts = copy.deepcopy(checkpoint.state)
    for name in at[:-1]:
        inner = inner[name]
    inner[at[-1]] = value
    with pytest.raises(ConfigError) as told:
        from_disk(changed(checkpoint, facts), 2)
    assert str(told.value).endswith(f"state.json is damaged: {named} has an impossible value")


@pytest.mark.parametrize(
    "name",
    ["a/b", "2/learner.policy.x", "-1/learner.policy.x", "learner.update", "1/learner.version"],
)
def test_a_tensor_that_is_nobodys_or_has_the_name_of_a_number_is_named(
    checkpoint: Checkpoint, name: str
) -> None:
    checkpoint.tensors[name] = torch.zeros(1)
    with pytest.raises(ConfigError, match=f"state.json is damaged: {name} has"):
        from_disk(checkpoint, 2)
    assert env_steps_of(checkpoint) is None


def test_env_steps_are_known_though_something_else_is_damaged(checkpoint: Checkpoint) -> None:
    assert env_steps_of(changed(checkpoint, {**checkpoint.state, "plan": 3})) == 2020


@pytest.mark.parametrize(
    ("own", "told"), [("text", "str"), (float("inf"), "inf"), (np.float64("nan"), "nan")]
)
def test_what_a_checkpoint_cannot_hold_is_named(own: Any, told: str) -> None:
    with pytest.raises(RunFailed, match=rf"cannot hold learner\.mine, which is {told}: "):
        LearnerState.of({"learner.update": 1, "learner.mine": own})


@pytest.mark.parametrize("own", [np.int64(3), np.float32(0.5), np.bool_(True)])
def test_numbers_of_numpy_that_a_class_of_the_users_keeps_are_written(own: Any) -> None:
    counts = {f"learner.{x}": 1 for x in ("update", "version", "env_steps", "own_env_steps")}
    numbers = LearnerState.of({**counts, "learner.mine": own}).numbers
    assert json.loads(json.dumps(numbers)) == {"learner.mine": own}


@pytest.mark.parametrize(
    ("at", "name", "named"),
    [
        *((None, x, x) for x in ("held", "plan", "exact", "recorder")),
        ("held", "learner.version", r"learner\.version"),
        *(("plan", x, rf"plan\.{x}") for x in ("device", "actor_threads")),
    ],
)
def test_what_is_missing_is_named(
    checkpoint: Checkpoint, at: str | None, name: str, named: str
) -> None:
    facts = copy.deepcopy(checkpoint.state)
    del (facts if at is None else facts[at])[name]
    with pytest.raises(ConfigError, match=f"damaged: {named} has"):
        from_disk(changed(checkpoint, facts), 2)


def test_any_checkpoint_says_whose_policies_it_holds(checkpoint: Checkpoint) -> None:
    assert env_steps_of(checkpoint) == 2020
    origin = facts_of(checkpoint, PolicyOrigin)
    assert (origin.num_learners, origin.policy_of) == (2, None)
    best = changed(checkpoint, {"version": 7, "learner": "average", "env_steps": 70, "mean": 1.0})
    assert facts_of(best, PolicyOrigin).num_learners is None
    assert facts_of(best, ScoredPolicy).identity == (7, "average")
    assert env_steps_of(best) == 70
    for facts in ({"version": [], "learner": 0}, {"learner": "nobody"}, {"held": 3}, {}):
        assert env_steps_of(changed(checkpoint, facts)) is None
    with pytest.raises(ConfigError, match="damaged: version"):
        facts_of(changed(checkpoint, {}), ScoredPolicy)
