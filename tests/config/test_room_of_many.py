"""Room in memory for many learners, their processes and actors: what does not fit is refused before any is made."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from gossamer.build import preflight
from gossamer.build import replays as replays_module
from gossamer.build.plan import make_plan
from gossamer.build.preflight import refuse_large, refuse_what_memory_cannot_hold
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.errors import ConfigError
from gossamer.spec import ActionSpec, EnvSpec, one_leaf

GIB, MIB = 1 << 30, 1 << 20


@functools.cache
def cart_pole() -> EnvSpec:
    return read_spec("CartPole-v1", make_config("CartPole-v1").env, 0, tries=False)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what sets the free bytes of memory."""

    def be(nbytes: int) -> None:
        monkeypatch.setattr(preflight, "free_memory", lambda: nbytes)
        monkeypatch.setattr(replays_module, "free_memory", lambda: nbytes)

    return be


def check(spec: EnvSpec | None = None, processes: int = 0, **settings: Any) -> list[str]:
    given = {"num_envs": 2, "unroll_length": 16, "device": "cpu", "policy.hidden_sizes": [8]}
    given |= {"algorithm.name": "vtrace", **settings}
    config, spec = make_config("CartPole-v1", given), spec or cart_pole()
    return refuse_what_memory_cannot_hold(config, spec, make_plan(config, spec), processes)


def test_processes_of_learners_take_room_of_their_own(free: Any) -> None:
    """A machine that swaps learns nothing."""
    eight = {"num_learners": 8, "topology": {"name": "gossip"}}
    free(4 * 170 * MIB)
    check(processes=0, **eight)
    check(processes=4, **eight)
    with pytest.raises(ConfigError, match=r"8 learners in 8 processes .*--learners-per-process 2$"):
        check(processes=8, **eight)


def test_every_learners_actors_take_room(free: Any) -> None:
    four = {"num_learners": 4, "topology": {"name": "gossip"}, "placement": "local"}
    free(GIB)
    check(**four, actors_per_learner=1)
    with pytest.raises(
        ConfigError, match=r"8 actor processes take about 1 GiB .*--actors-per-learner 1$"
    ):
        check(**four, actors_per_learner=2)


def test_replays_have_the_room_that_actors_leave(free: Any) -> None:
    replayed = {
        "replay_ratio": 1.0,
        "algorithm.name": "laser",
        "replays.1.capacity_steps": 5_000_000,
    }
    free(300 * MIB)
    check(**replayed, actors_per_learner=0)
    with pytest.raises(ConfigError, match="and what learns from them take"):
        check(**replayed, actors_per_learner=1)


def large(numbers: int) -> EnvSpec:
    one = one_leaf("vector", (numbers,))
    return EnvSpec("Large-v0", one, ActionSpec("categorical", (2,)), "", 1000)


def check_large(**settings: Any) -> list[str]:
    given = {"num_envs": 4, "unroll_length": 16, "placement": "inline", "device": "cpu"}
    given |= {"algorithm": {"name": "vtrace", "num_minibatches": 1}, **settings}
    config = make_config("CartPole-v1", given)
    spec = large(1_000_000)
    return refuse_large(config, spec, make_plan(config, spec))


def test_every_learner_has_a_large_network_of_its_own(free: Any) -> None:
    free(16 * GIB)
    layers = {"policy.hidden_sizes": [64]}
    assert check_large(**layers)
    with pytest.raises(ConfigError, match="or the policy smaller layers"):
        check_large(**layers, num_learners=4, topology={"name": "gossip"})


def test_trajectories_that_wait_at_lag_free_take_room(free: Any) -> None:
    free(2 * GIB)
    layers = {"policy.hidden_sizes": [1], "replays.0.capacity": 8, "placement": "local"}
    check_large(**layers, lag="1")
    with pytest.raises(ConfigError, match="num_envs is 4, whose trajectories take about"):
        check_large(**layers, lag="free")


def test_what_an_outer_step_keeps_of_a_large_network_takes_room(free: Any) -> None:
    free(64 * GIB)

    def gib(**settings: Any) -> float:
        (line,) = check_large(**{"policy.hidden_sizes": [64]}, **settings)
        found = re.search(r"takes about ([\d.]+) GiB with its copies", line)
        assert found
        return float(found[1])

    plain, size = gib(), 128e6 * 4 / GIB
    assert gib(**{"optimizer.outer_rate": 0.5}) == pytest.approx(plain + size, abs=0.11)
    assert gib(**{"optimizer.outer_momentum": 0.5}) == pytest.approx(plain + 2 * size, abs=0.11)


def test_more_learners_than_there_is_room_for_are_refused_with_how_many_fit(free: Any) -> None:
    free(400 * MIB)
    alone = {"topology": {"name": "single"}, "placement": "inline"}
    with pytest.raises(ConfigError, match=r"^num_learners is 2000, which take about 1 GiB") as told:
        check(num_learners=2000, **alone)
    found = re.search(r"--num-learners (\d+)$", str(told.value))
    assert found
    check(num_learners=int(found[1]), **alone)
    with pytest.raises(ConfigError, match=r"^num_learners is "):
        check(num_learners=int(found[1]) + 1, **alone)
