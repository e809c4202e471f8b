"""What is built for one learner: how many trajectories travel, and whose threads give way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_for

from gossamer.build import roles
from gossamer.build.plan import make_plan
from gossamer.build.roles import LearnerBundle, build_bundle
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.errors import RunFailed
from gossamer.links.stopping import Stopped, StopSignal


def built(stop: StopSignal, **settings: Any) -> LearnerBundle:
    given = {"num_envs": 2, "unroll_length": 8, "device": "cpu", "evaluation.every_seconds": 0.0}
    given |= {
        "patience_seconds": 1.0,
        "algorithm": {"name": "vtrace", "num_minibatches": 1},
        **settings,
    }
    config = make_config("CartPole-v1", {**given, "policy.hidden_sizes": [8]})
    spec = read_spec(config.env_id, config.env, 0)
    plan = make_plan(config, spec)
    return build_bundle(config, spec, plan, stop=stop, rank=0, on_episode=lambda _: None)


@pytest.mark.parametrize(
    ("lag", "placement", "slots"), [("0", "inline", 2), ("1", "local", 2), ("free", "local", 5)]
)
def test_trajectories_wait_in_the_queue_at_lag_free_alone(
    lag: str, placement: str, slots: int
) -> None:
    """Beside the one that is learnt and the one that is written."""
    stop = StopSignal()
    parts = built(stop, lag=lag, placement=placement, **{"replays.0.capacity": 3})
    for _ in range(slots):
        parts.queue.slot()
    stop.stop()
    with pytest.raises(Stopped):
        parts.queue.slot()
    parts.close()


@pytest.mark.parametrize(
    ("lag", "placement", "gives_way"),
    [("1", "local", True), ("0", "local", True), ("free", "local", False), ("1", "inline", False)],
)
def test_simulators_give_way_to_a_learner_that_works_beside_them(
    monkeypatch: pytest.MonkeyPatch, lag: str, placement: str, gives_way: bool
) -> None:
    """Where they take turns nobody does; at lag free it is found out first who waits for whom."""
    lowered = list[object]()
    monkeypatch.setattr(roles, "lower_priority", lambda *_: lowered.append(1))
    built(StopSignal(), lag=lag, placement=placement).close()
    assert bool(lowered) == gives_way


def test_actors_in_processes_are_ended_where_their_learner_cannot_be_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = make_config("CartPole-v1", {"num_envs": 2, "unroll_length": 8, "device": "cpu"})
    spec = read_spec(config.env_id, config.env, 0)
    ended = list[bool]()
    team: Any = SimpleNamespace(slots=[], close=lambda: ended.append(True))

    def fails(*_: Any, **__: Any) -> Any:
        raise RunFailed("no room")

    monkeypatch.setattr(roles, "build_mix", fails)
    with pytest.raises(RunFailed, match="no room"):
        build_bundle(
            config,
            spec,
            make_plan(config, spec),
            stop=StopSignal(),
            rank=0,
            on_episode=lambda _: None,
            team=lambda _: team,
        )
    assert ended == [True]


@pytest.mark.parametrize("workers", [0, 2])
def test_simulators_that_ctrl_c_finds_half_made_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """The one that is being made is waited for, and no other one is begun."""

    def interrupts(*_: Any, **__: Any) -> Any:
        wait_for(lambda: list(tmp_path.iterdir()), "the first simulator")
        raise KeyboardInterrupt

    monkeypatch.setenv("SIMULATORS", str(tmp_path))
    monkeypatch.setenv("BEGUN_SECONDS", "0")
    given = {"num_envs": 20, "device": "cpu", "env.workers": workers}
    config = make_config("counting_envs:Begun", given)
    spec = read_spec(config.env_id, config.env, 0)
    for path in tmp_path.iterdir():
        path.unlink()
    monkeypatch.setenv("BEGUN_SECONDS", "0.3")
    monkeypatch.setattr(roles, "build_mix", interrupts)
    plan, stop = make_plan(config, spec), StopSignal()
    with pytest.raises(KeyboardInterrupt):
        build_bundle(config, spec, plan, stop=stop, rank=0, on_episode=lambda _: None)
    made = [path.suffix for path in tmp_path.iterdir()]
    assert 0 < len(made) < 8
    assert set(made) == {".ended"}
