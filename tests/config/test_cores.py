"""What the cores of a machine decide about a run, and who may overrule them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gossamer.config import cores as cores_module
from gossamer.config import layers as layers_module
from gossamer.config import make_config, resolve, to_dict
from gossamer.config.cores import MACHINE, ROWS, actors_for, row_for
from gossamer.errors import ConfigError
from gossamer.record.tuned import machine_facts, path_of, tuned_settings, write_tuned

PONG = "PongNoFrameskip-v4"


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a run believe that it is on a machine that may decide, of which nothing is known."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(MACHINE)

    def be(cores: int, *gpus: str) -> None:
        monkeypatch.setattr(layers_module, "num_cores", lambda: cores)
        monkeypatch.setattr(layers_module, "visible_gpus", lambda: list(gpus))

    be(2)
    return be


def learners(env_id: str = PONG, **settings: Any) -> tuple[int, str, str]:
    config, origin = resolve(given={"env_id": env_id, **settings})
    return config.num_learners, config.topology.name, origin["num_learners"]


@pytest.mark.parametrize(
    ("cores", "count"),
    [(1, 1), (2, 1), (3, 1), (4, 2), (6, 3), (8, 4), (16, 8), (32, 16), (48, 16), (64, 16)],
)
def test_atari_has_a_learner_for_two_cores(on: Any, cores: int, count: int) -> None:
    on(cores)
    told = f"suite atari, {count} for {cores} core{'s' * (cores > 1)}"
    assert learners() == (count, "gossip" if count > 1 else "single", told)
    assert learners("CartPole-v1") == (1, "single", "default")
    assert learners("CartPole-v1", num_learners="auto")[0] == count


def test_on_two_cores_nothing_is_decided(on: Any) -> None:
    alone = to_dict(make_config(PONG, {"num_learners": 1}))
    for cores in (1, 2):
        on(cores)
        assert to_dict(make_config(PONG)) == alone


def test_learners_of_the_machine_wait_for_each_other(on: Any) -> None:
    on(16)
    config, origin = resolve({"env_id": PONG})
    assert (config.topology.graph, config.topology.max_staleness) == ("rotating", 0)
    assert origin["topology.graph"] == "with 8 learners"
    assert (config.num_envs, config.optimizer.learning_rate) == (4, (1.2e-3,))
    assert origin["num_envs"] == "suite atari, with 8 learners"
    assert set(origin) == set(resolve({"env_id": PONG, "topology": {"name": "gossip"}})[1])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"num_learners": 3}, (3, "single", "settings")),
        ({"topology": "allreduce"}, (8, "allreduce", "suite atari, 8 for 16 cores")),
        ({"topology": "single"}, (1, "single", "suite atari, 1 with topology single")),
        ({"placement": "inline"}, (1, "single", "suite atari, 1 with placement inline")),
        ({"learner_threads": 8}, (1, "single", "suite atari, 1 with learner_threads")),
        ({"device": "cuda"}, (1, "single", "suite atari, 1 on a GPU")),
        (
            {"total_env_steps": 1000},
            (1, "single", "suite atari, 1 for fewer than 200,000 env steps"),
        ),
        (
            {"algorithm": "vtrace", "replay_ratio": 1, "num_learners": "auto"},
            (1, "single", "settings, 1 with replays"),
        ),
        (
            {
                "algorithm": "vtrace",
                "replays": [
                    {"name": "queue", "fraction": 0.5},
                    {"name": "uniform", "fraction": 0.5},
                ],
                "num_learners": "auto",
            },
            (1, "single", "settings, 1 with replays"),
        ),
    ],
)
def test_what_is_given_wins(on: Any, settings: dict[str, Any], expected: Any) -> None:
    on(16)
    assert learners(**settings) == expected


def test_a_batch_or_a_rate_that_is_given_stays(on: Any) -> None:
    on(16)
    for given in ({"num_envs": 16}, {"unroll_length": 64}, {"algorithm": {"num_minibatches": 8}}):
        config = make_config(PONG, given)
        assert (config.num_learners, config.num_envs) == (8, 16)
        assert config.optimizer.learning_rate == (6e-4,)
    config = make_config(PONG, {"optimizer": {"learning_rate": [1e-4]}})
    assert (config.num_envs, config.optimizer.learning_rate) == (16, (1e-4,))
    config = make_config(PONG, {"num_envs": 0, "num_learners": "auto"})
    assert (config.num_learners, config.num_envs) == (8, 0), "nobody says how many"


@pytest.mark.parametrize(
    ("preset", "cores", "envs", "rate"),
    [("pong", 2, 16, 6e-4), ("pong", 8, 8, 1.2e-3), ("pong", 16, 4, 1.2e-3),
     ("breakout", 8, 16, 1.2e-3), ("breakout", 16, 8, 1.2e-3)],
)  # fmt: skip
def test_a_preset_of_ours_is_for_one_learner(
    on: Any, preset: str, cores: int, envs: int, rate: float
) -> None:
    """Eight learners that each had its whole batch would learn an eighth as often."""
    on(cores)
    config = make_config(presets=[preset])
    assert (config.num_learners, config.num_envs) == (max(cores // 2, 1), envs)
    assert config.optimizer.learning_rate == (pytest.approx(rate),)
    config = make_config("", {"num_envs": 16}, presets=[preset])
    assert (config.num_envs, config.optimizer.learning_rate) == (16, (6e-4,))


def test_a_preset_keeps_the_environments_that_its_minibatches_need(on: Any) -> None:
    on(16)
    config = make_config("", {"num_learners": "auto"}, presets=["halfcheetah"])
    assert (config.num_learners, config.num_envs, config.algorithm.num_minibatches) == (8, 16, 8)


def test_a_gpu_learns_for_all_cores(on: Any) -> None:
    on(16, "0")
    assert learners()[2] == "suite atari, 1 on a GPU"
    assert learners(device="cpu")[0] == 8


def test_a_gpu_acts_for_more_environments(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU V-trace needs fewer steps with few environments and long unrolls; cores beside a GPU want many."""

    def batch(algorithm: str = "vtrace", **settings: Any) -> tuple[int, int]:
        config = make_config(PONG, {"algorithm": algorithm, **settings})
        return config.num_envs, config.unroll_length

    assert batch() == batch(device="cpu") == (16, 64)
    assert batch(device="cuda") == (128, 16)
    assert batch("ppo", device="cuda") == (16, 64)
    assert batch(device="cuda", num_envs=32) == (32, 16)
    on(16, "0")
    assert batch() == (128, 16)
    assert batch(device="cpu") == (16, 64)
    # A sweep's runs, which share the machine, compute there too.
    monkeypatch.setenv(MACHINE, "plain")
    assert batch() == (128, 16)
    assert batch(device="cpu") == (16, 64)


def test_a_plain_machine_decides_nothing(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on(16)
    assert resolve({"env_id": PONG}, machine="")[0].num_learners == 1
    monkeypatch.setenv(MACHINE, "plain")
    assert learners()[0] == 1


def test_a_resumed_run_keeps_its_learners(on: Any) -> None:
    on(16)
    saved = to_dict(make_config(PONG))
    on(2)
    config, origin = resolve(resumed=saved)
    assert to_dict(config) == saved
    assert origin["num_learners"] == "resumed run"


@pytest.mark.parametrize("preset", ["pong", "breakout"])
def test_a_resumed_run_keeps_its_learners_though_a_preset_is_named_again(
    on: Any, preset: str
) -> None:
    on(4)
    begun, _ = resolve(configs=[preset])
    assert begun.num_learners == 2
    saved = to_dict(begun)
    for cores in (4, 2, 16):
        on(cores)
        assert resolve(configs=[preset], resumed=saved)[0] == begun
        assert resolve({"num_learners": "auto"}, configs=[preset], resumed=saved)[0] == begun
    slower, _ = resolve({"optimizer": {"learning_rate": ["1e-4"]}}, configs=[preset], resumed=saved)
    assert slower == replace(begun, optimizer=replace(begun.optimizer, learning_rate=(1e-4,)))


def test_a_run_resumes_where_the_machine_decided_in_place_of_a_preset(on: Any) -> None:
    asked = {"num_learners": "auto"}
    on(2)
    begun, _ = resolve(asked, configs=["gala_pong"])
    assert begun.num_learners == 1, "the preset has two"
    for cores in (2, 16):
        on(cores)
        assert resolve(asked, configs=["gala_pong"], resumed=to_dict(begun))[0] == begun


def test_a_resumed_run_whose_learners_were_chosen_keeps_its_environments(on: Any) -> None:
    on(4)
    begun, _ = resolve({"num_learners": "2"}, configs=["pong"])
    assert begun.num_envs == 16
    assert resolve(configs=["pong"], resumed=to_dict(begun))[0] == begun


def test_a_word_that_is_no_number_is_refused(on: Any) -> None:
    with pytest.raises(ConfigError, match='num_learners is "many"; it must be'):
        learners(num_learners="many")


def test_rows_are_in_order_and_share_their_cores_out() -> None:
    assert [row.cores for row in ROWS] == [1, 2, 4, 8, 16, 32, 64]
    for row in ROWS:
        assert row.cores % row.learners == 0
        assert row.why
        assert row == row_for(row.cores)


def entry(settings: dict[str, Any], env_id: str = PONG) -> dict[str, Any]:
    return {"env_id": env_id, "algorithm": "ppo", "settings": settings, "steps_per_second": {}}


def test_what_was_tuned_is_below_all_that_is_given(on: Any) -> None:
    write_tuned(entry({"env_groups": 2, "learner_threads": 2}), {})
    config, origin = resolve({"env_id": PONG})
    assert (config.env_groups, config.learner_threads) == (2, 2)
    assert origin["env_groups"] == "tuned on this machine"
    assert make_config(PONG, {"seed": 7}).env_groups == 2
    assert make_config(PONG, {"algorithm": {"name": "ppo"}}).env_groups == 2
    for other in (
        {"learner_threads": 1},
        {"num_envs": 4},
        {"algorithm": {"passes": 5}},
        {"algorithm": "vtrace"},
        {"policy": {"torso": "a3c"}},
    ):
        assert make_config(PONG, other).env_groups == 0, "it was not tuned for that"
    assert make_config("BreakoutNoFrameskip-v4").env_groups == 0
    assert resolve({"env_id": PONG}, machine="cores")[0].env_groups == 0
    saved = to_dict(config)
    write_tuned(entry({"env_groups": 3}), {})
    assert to_dict(resolve(resumed=saved)[0]) == saved, "a run keeps what it began with"
    assert make_config(PONG).env_groups == 3


def test_what_was_tuned_is_not_for_workers_that_share_a_group(on: Any) -> None:
    entry = {"env_id": "CartPole-v1", "algorithm": "ppo", "settings": {"env_groups": 2}}
    write_tuned(entry, {})
    assert resolve({"env_id": "CartPole-v1"})[0].env_groups == 2
    assert resolve({"env_id": "CartPole-v1", "env": {"workers": "8"}})[0].env_groups == 0
    assert resolve({"env_id": "CartPole-v1", "env": {"stuck_steps": "80"}})[0].env_groups == 2


def test_tuned_learners_are_for_runs_that_last(on: Any) -> None:
    on(4)
    write_tuned(entry({"num_learners": 4}), {})
    assert learners() == (4, "gossip", "tuned on this machine, 4 learners")
    assert learners(num_learners="auto") == (4, "gossip", "settings, 4 learners")
    assert make_config(PONG).num_envs == 8
    assert learners(num_learners=2)[0] == 2
    assert learners(total_env_steps=1000)[0] == 1
    write_tuned(entry({"num_learners": 1}), {})
    assert learners() == (1, "single", "tuned on this machine, 1 learner")
    assert make_config(PONG).num_envs == 16


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format": 2, "tuned": []}',
        '{"format": 1, "tuned": 3}',
        '{"format": 1, "tuned": [3, {"env_id": "PongNoFrameskip-v4"}]}',
        json.dumps({"format": 1, "tuned": [entry({"env_id": "evil:Env"})]}),
        json.dumps({"format": 1, "tuned": [entry({"env_groups": -1})]}),
        json.dumps({"format": 1, "tuned": [entry({"num_learners": "many"})]}),
        json.dumps({"format": 1, "tuned": [entry({"topology": {"name": "evil:Topology"}})]}),
    ],
)
def test_a_damaged_file_changes_nothing(on: Any, content: str) -> None:
    path = path_of(machine_facts())
    path.parent.mkdir(parents=True)
    path.write_text(content)
    config, _ = resolve({"env_id": PONG})
    assert (config.num_learners, config.env_groups, config.topology.name) == (1, 0, "single")


def test_a_machine_is_known_by_its_cores(on: Any) -> None:
    facts = machine_facts()
    assert path_of(facts) != path_of({**facts, "cores": facts["cores"] + 1})
    assert tuned_settings(PONG, "ppo") == {}


@pytest.mark.parametrize(
    ("settings", "cores", "actors"),
    [
        ({"algorithm": "vtrace"}, 2, 1),
        ({"algorithm": "impact"}, 8, 1),
        ({"algorithm": "ppo"}, 2, 0),
        ({"algorithm": "ppo", "lag": "1"}, 2, 1),
        ({"algorithm": "vtrace", "lag": "0"}, 2, 0),
        ({"algorithm": "vtrace", "lag": "free"}, 2, 0),
        ({"algorithm": "vtrace"}, 1, 0),
        ({"algorithm": "vtrace", "actors_per_learner": 0}, 2, 0),
        ({"algorithm": "ppo", "actors_per_learner": 2}, 1, 2),
        ({"algorithm": "vtrace", "actors_per_learner": 2, "placement": "inline"}, 2, 0),
        ({"algorithm": "vtrace", "placement": "inline"}, 2, 0),
        ({"algorithm": "vtrace", "placement": "cluster"}, 2, 0),
        ({"algorithm": "vtrace", "learners_per_process": 2, "num_learners": 2}, 4, 0),
        ({"algorithm": "vtrace", "env.workers": 2}, 2, 0),
        ({"algorithm": "vtrace", "device": "cuda"}, 2, 0),
        ({"algorithm": "vtrace", "total_env_steps": 100_000}, 2, 0),
        ({"algorithm": "vtrace", "env_id": PONG}, 2, 0),
        ({"algorithm": "vtrace", "env_id": "envpool:Ant-v5"}, 2, 0),
    ],
)
def test_a_simulator_in_python_has_its_own_process(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], cores: int, actors: int
) -> None:
    monkeypatch.setattr(cores_module, "main_is_ours", lambda: True)
    monkeypatch.delenv(MACHINE)
    config, _ = resolve(given={"env_id": "CartPole-v1", **settings})
    assert actors_for(config, cores, gpu=False) == actors
    if config.actors_per_learner is not None:
        return
    assert actors == 0 or actors_for(replace(config, device="cpu"), cores, gpu=True) == 1
    assert actors_for(config, cores, gpu=True) == 0
    with monkeypatch.context() as patch:
        patch.setenv(MACHINE, "plain")
        assert actors_for(config, cores, gpu=False) == 0
    monkeypatch.setattr(cores_module, "main_is_ours", lambda: False)
    assert actors_for(config, cores, gpu=False) == 0
