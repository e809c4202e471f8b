"""Why a run does not go on from a checkpoint as if it had never stopped, and replay data that it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from fake_placement import part

from gossamer.build.plan import Plan, make_plan
from gossamer.build.roles import build_policy
from gossamer.config import TrainConfig, make_config
from gossamer.envs.registry import read_spec
from gossamer.errors import ConfigError
from gossamer.run.checkpoint_contents import RecorderState, RunState
from gossamer.run.placements.host_learners import build_learners
from gossamer.run.resume import refuse_replays, resumes_exactly, why_not_exact
from gossamer.run.snapshot import take
from gossamer.spec import EnvSpec

LASER = {"algorithm.name": "laser", "replay_ratio": 1.0, "checkpoint_replay": True}
TWO = {"num_learners": 2, "topology": {"name": "single"}}
IN_STEP = {"num_learners": 2, "topology": {"name": "gossip", "max_staleness": 0}}
NO_RECORDS = RecorderState(window=[], episode_rows=0, seconds=1.0, paced=(0, 0.0))


def planned(**settings: Any) -> tuple[TrainConfig, EnvSpec, Plan]:
    given = {"num_envs": 2, "unroll_length": 8, "device": "cpu", "policy.hidden_sizes": [8]}
    config = make_config("CartPole-v1", {**given, "evaluation.every_seconds": 0, **settings})
    spec = read_spec(config.env_id, config.env, 0, tries=False)
    return config, spec, make_plan(config, spec)


@pytest.mark.parametrize(
    ("settings", "exactly"),
    [
        ({"algorithm.name": "a2c"}, True),
        ({"algorithm.name": "vtrace", "lag": "free"}, False),
        (LASER, True),
        ({**LASER, "checkpoint_replay": False}, False),
        ({**LASER, **IN_STEP}, True),
        ({**LASER, **IN_STEP, "replays.1.shared": True}, False),
        ({**LASER, **IN_STEP, "replays.1.shared": True, "placement": "inline"}, True),
        ({"num_learners": 2, "topology": {"name": "gossip"}}, False),
        ({"num_learners": 2, "topology": {"name": "gossip"}, "placement": "inline"}, True),
        (IN_STEP, True),
        (TWO, False),
        ({"num_learners": 2, "topology": {"name": "allreduce"}}, True),
    ],
)
def test_a_run_says_whether_its_checkpoints_will_be_gone_on_from_exactly(
    settings: dict[str, Any], exactly: bool
) -> None:
    """What depends on who is quicker comes out otherwise each time."""
    assert resumes_exactly(*planned(**settings)) == exactly


def test_another_lag_is_why_a_run_does_not_go_on_exactly() -> None:
    config, spec, plan = planned(**{"algorithm.name": "vtrace", "lag": "1"})
    learner = part(0)[1].learners[0]
    state = RunState([learner], plan, exact=True, recorder=NO_RECORDS)
    assert why_not_exact(config, spec, plan, state) == []
    assert why_not_exact(config, spec, replace(plan, lag=0), state) == ["lag 1 -> 0"]
    not_kept = msgspec.structs.replace(state, exact=False)
    (why,) = why_not_exact(config, spec, plan, not_kept)
    assert "had died before the checkpoint" in why


@pytest.mark.parametrize("damaged", [0, 1])
def test_replay_data_of_any_learner_that_does_not_fit_is_refused(damaged: int) -> None:
    config, spec, plan = planned(**LASER, **TWO, placement="inline")
    learners = build_learners(config, spec, plan)
    states = take(learners, begun=False)
    learners.close()
    state = RunState([states[0], states[1]], plan, exact=True, recorder=NO_RECORDS)
    refuse_replays(config, plan, build_policy(config, spec), state)
    held = states[damaged].tensors
    names = [x for x in held if x.startswith("learner.replay.") and held[x].dim() > 1]
    held[names[0]] = torch.zeros(3, 5, 7)
    with pytest.raises(ConfigError, match="replay"):
        refuse_replays(config, plan, build_policy(config, spec), state)


def test_replay_data_that_learners_share_fits_where_it_was_saved() -> None:
    """Each counts how often it has used the columns of all."""
    shared = {"placement": "inline", "replays.1.shared": True, "replays.1.capacity_steps": 256}
    config, spec, plan = planned(**LASER, **TWO, **shared)
    learners = build_learners(config, spec, plan)
    states = take(learners, begun=False)
    learners.close()
    state = RunState([states[0], states[1]], plan, exact=True, recorder=NO_RECORDS)
    refuse_replays(config, plan, build_policy(config, spec), state)
