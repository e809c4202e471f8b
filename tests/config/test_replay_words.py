"""How replays are typed: by an index, by a ratio, in the words of others; and what is said of slips."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gossamer.build.replays import share_out
from gossamer.config import TrainConfig, make_config, parse_train, resolve, to_dict
from gossamer.errors import ConfigError
from gossamer.replay.selectors.circular import CircularSettings
from gossamer.replay.selectors.elite import EliteSettings
from gossamer.replay.selectors.uniform import UniformSettings
from gossamer.replay.settings import QueueSettings


def typed(*words: str) -> TrainConfig:
    found = parse_train(["CartPole-v1", "algorithm:vtrace", *words])
    return resolve(found.settings, configs=found.config)[0]


def refused(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        typed(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_ratio_is_of_one_replay_of_any_kind_with_its_settings() -> None:
    queue, replay = typed(
        "--replay-ratio", "3", "--replays.1.name", "elite", "--replays.1.capacity-steps", "9000"
    ).replays
    assert isinstance(replay, EliteSettings)
    assert (queue.fraction, replay.fraction, replay.capacity_steps) == (0.25, 0.75, 9000)
    (_, replay) = typed("--replay-ratio", "3", "--replays.1.learn-start", "50").replays
    assert type(replay) is UniformSettings
    assert replay.learn_start == 50


def test_a_ratio_that_is_typed_wins_over_a_presets_fractions_and_they_over_its_ratio(
    tmp_path: Path,
) -> None:
    preset = ("--config", "laser_pong", "--algorithm.num-minibatches", "4")
    queue, replay = typed(*preset, "--replay-ratio", "3").replays
    assert (queue.fraction, replay.fraction) == (0.25, 0.75)
    assert (
        replay
        == typed(*preset, "--replays.0.fraction", "0.25", "--replays.1.fraction", "0.75").replays[1]
    )
    file = tmp_path / "mine.toml"
    file.write_text("replay_ratio = 3.0")
    halves = ("--replays.0.fraction", "0.5", "--replays.1.fraction", "0.5")
    config = typed("--config", str(file), *halves)
    assert config.replay_ratio == 0.0
    assert [x.fraction for x in config.replays] == [0.5, 0.5]
    assert "fractions as well; leave one of the two out" in refused("--replay-ratio", "3", *halves)


def test_a_ratio_goes_on_with_a_resumed_run() -> None:
    saved = {"env_id": "CartPole-v1", "algorithm": "vtrace", "replay_ratio": 3.0}
    saved["replays"] = [{"name": "queue", "fraction": 0.5}, {"name": "uniform", "fraction": 0.5}]
    config, _ = resolve(resumed=saved)
    assert [x.fraction for x in config.replays] == [0.25, 0.75]


def test_settings_of_a_run_with_a_ratio_can_be_given_back(tmp_path: Path) -> None:
    config = typed("--replay-ratio", "3", "--replays.1.capacity-steps", "500")
    again, layers = resolve(given=to_dict(config))
    assert again == config
    assert layers["replays.1.capacity_steps"] == "settings"
    file = tmp_path / "config.json"
    file.write_text(json.dumps(to_dict(config)))
    assert typed("--config", str(file)) == config
    (queue, _) = typed("--config", str(file), "--replay-ratio", "1").replays
    assert queue.fraction == 0.5
    found = parse_train(["CartPole-v1", "algorithm:vtrace", "--replay-ratio", "3"])
    _, layers = resolve(found.settings)
    assert layers["replays.1.fraction"] == layers["replays.0.fraction"] == "command line"
    assert layers["replays.1.capacity_steps"] == "default"
    assert layers["replay_ratio"] == "in the fractions"
    (first, _) = typed("--replays", '["uniform", "queue"]', "--replay-ratio", "3").replays
    assert (first.name, first.fraction) == ("uniform", 0.75)


def test_a_ratio_of_nothing_leaves_the_queue(tmp_path: Path) -> None:
    found = parse_train(["CartPole-v1", "--config", "laser_pong", "--replay-ratio", "0"])
    config, layers = resolve(found.settings, configs=found.config)
    assert config.replays == (QueueSettings(),)
    assert {name for name in layers if name.startswith("replays.")} == {
        f"replays.0.{name}" for name in ("name", "fraction", "capacity")
    }
    assert layers["replays.0.fraction"] == "command line"
    assert layers["replay_ratio"] == "in the fractions"
    list_of = (
        '[{"name": "uniform", "fraction": 0.5}, {"name": "queue", "fraction": 0.5, "capacity": 3}]'
    )
    file = tmp_path / "mine.json"
    file.write_text(f'{{"algorithm": "vtrace", "replays": {list_of}}}')
    assert typed("--config", str(file), "--replay-ratio", "0").replays == (
        QueueSettings(capacity=3),
    )
    saved = to_dict(typed("--replay-ratio", "3"))
    assert len(resolve(resumed=saved)[0].replays) == 2
    assert resolve({"replay_ratio": "0"}, resumed=saved)[0].replays == (QueueSettings(),)
    # Fractions win over a ratio below them.
    file.write_text('{"replay_ratio": 0.0}')
    halves = ("--replays.0.fraction", "0.5", "--replays.1.fraction", "0.5")
    assert len(typed("--config", str(file), *halves).replays) == 2


def test_a_list_of_a_queue_alone_ends_a_presets_ratio() -> None:
    alone = ("--replays", '[{"name": "queue"}]')
    assert typed("--config", "clear_pong", *alone).replays == (QueueSettings(),)
    (_, replay) = typed("--config", "clear_pong", "--replays", '["queue", "elite"]').replays
    assert replay == EliteSettings(fraction=0.5), "which says nothing about the ratio"
    found = parse_train(["--config", "clear_pong", *alone])
    assert "replays" not in resolve(found.settings, configs=found.config)[1]
    assert "fractions as well; leave one of the two out" in refused(*alone, "--replay-ratio", "3")


def test_a_ratio_and_fractions_typed_at_once_are_refused_whatever_they_are() -> None:
    halves = (
        "--replays",
        '[{"name": "queue", "fraction": 0.5}, {"name": "uniform", "fraction": 0.5}]',
    )
    for both in (
        ("--replay-ratio", "0", *halves),
        ("--replay-ratio", "3", "--replays.0.fraction", "1"),
    ):
        assert "fractions as well; leave one of the two out" in refused(*both)
    given = to_dict(typed(*halves))
    assert make_config(settings=given).replays == typed(*halves).replays


def test_a_ratio_below_0_is_refused() -> None:
    told = refused("--config", "clear_pong", "--replay-ratio", "-1")
    assert told.startswith("--replay-ratio is -1; it must be in [0, 10000]")


def test_older_settings_with_a_ratio_beside_a_queue_alone_are_read(tmp_path: Path) -> None:
    """Runs were saved so before a ratio became fractions at once."""
    file = tmp_path / "config.json"
    replays = [{"name": "queue", "fraction": 1.0, "capacity": 1}]
    file.write_text(json.dumps({"replay_ratio": 3.0, "replays": replays}))
    assert typed("--config", str(file)) == typed("--replay-ratio", "3")


def test_an_index_changes_the_list_beside_it_not_the_one_below() -> None:
    preset = ("--config", "elite_breakout", "--num-envs", "32")
    given = '[{"name": "queue", "fraction": 0.5}, {"name": "elite", "fraction": 0.5}]'
    (_, replay) = typed(*preset, "--replays", given, "--replays.1.capacity-steps", "9000").replays
    assert replay == EliteSettings(fraction=0.5, capacity_steps=9000)
    (queue,) = typed(*preset, "--replays", '["queue"]', "--replays.0.fraction", "1").replays
    assert queue == QueueSettings()
    more = ("--replays.1.name", "circular", "--replays.1.fraction", "0.5")
    (_, added) = typed(*preset, "--replays", '[{"name": "queue", "fraction": 0.5}]', *more).replays
    assert added == CircularSettings(fraction=0.5)
    assert "entries 0 to 0, and 1 adds one" in refused(
        *preset, "--replays", '["queue"]', "--replays.2.name", "uniform"
    )


def test_entries_may_be_given_in_any_order() -> None:
    config = typed(
        "--replays.2.name", "elite", "--replays.2.fraction", "0.25",
        "--replays.1.fraction", "0.25", "--replays.0.fraction", "0.5",
    )  # fmt: skip
    assert [x.name for x in config.replays] == ["queue", "uniform", "elite"]


def test_what_is_added_is_uniform_unless_it_says_otherwise() -> None:
    _, replay = typed("--replays.0.fraction", "0.5", "--replays.1.fraction", "0.5").replays
    assert type(replay) is UniformSettings


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("replays:elite", "replays is a list, to which this adds one: --replays.1.name elite"),
        ("--replays elite", '--replays is "elite"; it must be a list of queue, uniform, circular, elite, '
         "attentive; one more beside the queue: --replays.1.name elite"),
        ("--replays mine.json", "one more beside the queue: --replays.1.name uniform"),
        ("--learn-start 5", "did you mean --optimizer.learn-start?"),
        ("--replays.2.candidate-mutliplier 5", "did you mean --replays.2.candidate-multiplier?"),
        ("--replays.0.capacity-steps 5", "not of queue; leave it out or give it to an entry of that "
         "kind, as in --replays.1.capacity-steps"),
        ("--replays.0.fraction 0.5 --replays.1.fraction 0.4", "sum to 0.9; they must sum to 1: "
         "--replays.0.fraction 0.6"),
        ("--replays.1.fraction 0.9 --replays.2.fraction 0.6", "sum to 2.5; they must sum to 1: "
         "--replays.0.fraction 0.4 --replays.1.fraction 0.36 --replays.2.fraction 0.24"),
        ("--replays.0.fraction 0.5", "--replays.0.fraction 1, or --replay-ratio 1"),
        ('--replays ["uniform"]', 'holds 0 queues among uniform; it must hold exactly one: add {"name": "queue"'),
        ("--replay-ratio 1 --replays.1.name elite --replays.2.name uniform", "give every replay a fraction"),
        ("--replay_parameters x", "did you mean --replays?"),
        ("--buffer-size 5", "did you mean --replays.1.capacity-steps?"),
        ("--kl-div-threshold 0.3", "did you mean --algorithm.max-kl-nats?"),
        ("replays:queue", "to which this adds one: --replays.1.name uniform"),
        ("--dry-run", "to see all settings: --show-config"),
        ("--env=Pong", "type the environment's id alone: gossamer train ENV"),
    ],
)  # fmt: skip
def test_slips_are_told_with_what_to_type(words: str, says: str) -> None:
    assert says in refused(*words.split(" "))


def test_thirds_may_be_rounded() -> None:
    two = [{"name": "queue", "fraction": 0.3333}, {"name": "uniform", "fraction": 0.6667}]
    for num_envs in (8, 16, 64, 250):
        assert share_out(typed("--replays", json.dumps(two)), num_envs).replayed == (2 * num_envs,)
    third = {"fraction": 0.3333}
    listed = [{"name": "queue", **third}, {"name": "uniform", **third}, {"name": "elite", **third}]
    assert len(typed("--replays", json.dumps(listed)).replays) == 3


def test_entries_of_a_list_can_be_changed() -> None:
    given = (
        '[{"name": "queue", "fraction": 0.5},'
        ' {"name": "uniform", "capacity": 50, "fraction": 0.5, "learn_start": 70}]'
    )
    (_, replay) = typed("--replays", given).replays
    assert isinstance(replay, UniformSettings)
    assert (replay.capacity, replay.learn_start) == (50, 70)
    (_, replay) = typed("--replays", given, "--replays.1.learn-start", "200").replays
    assert isinstance(replay, UniformSettings)
    assert replay.learn_start == 200
    queue = '[{"name": "queue", "learn_start": 5}]'
    assert "--replays.0.learn-start is a setting of uniform" in refused("--replays", queue)


def test_hints_say_what_to_type_next() -> None:
    told = refused("--replay-ratio", "1", "--replays.1.strategy", "stratified")
    assert told.endswith("give it to an entry of that kind, --replays.1.name elite")
    told = refused("--replays.1.name", "elite")
    assert told.endswith(
        "--replays.0.fraction 0.5, or --replay-ratio 1 to replay as much as is new"
    )
    config = typed("--replays.1.name", "elite", "--replay-ratio", "1")
    assert [x.fraction for x in config.replays] == [0.5, 0.5]


def test_settings_of_a_run_go_on_from_python(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    saved = to_dict(typed("--replay-ratio", "3", "--num-envs", "5"))
    (tmp_path / "run" / "config.json").write_text(json.dumps(saved))
    config = make_config(settings={"total_env_steps": 77}, resume=str(tmp_path / "run"))
    assert to_dict(config) == {**saved, "total_env_steps": 77}
    with pytest.raises(ConfigError, match="CartPole-v1, not Acrobot-v1"):
        make_config("Acrobot-v1", resume=str(tmp_path / "run"))
    (tmp_path / "run" / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="damaged: it holds no settings"):
        make_config(resume=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="no run"):
        make_config(resume=str(tmp_path / "none"))


@pytest.mark.parametrize("above", [{"replay_ratio": "0"}, {"replays": ["queue"]}])
def test_replays_that_are_turned_off_again_choose_no_algorithm(
    tmp_path: Path, above: dict[str, object]
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("replay_ratio = 3\n")
    given = {"env_id": "CartPole-v1"}
    assert resolve(given, configs=[str(mine)])[0].algorithm.name == "laser"
    config, _ = resolve(given | above, configs=[str(mine)])
    assert (config.algorithm.name, config.replays) == ("ppo", (QueueSettings(),))
