"""The words after `gossamer train`."""

from __future__ import annotations

import contextlib
from itertools import chain, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.config import TrainConfig, parse_train, resolve
from gossamer.config.suggestions import ELSEWHERE
from gossamer.config.tree import names_of
from gossamer.errors import ConfigError
from gossamer.record.folder import RunFolder


def typed(*words: str) -> Any:
    """The config that words result in."""
    asked = parse_train(words)
    return resolve(asked.settings, configs=asked.config)[0]


def refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        typed(*words)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_words_may_come_in_any_order() -> None:
    parts = (
        ["PongNoFrameskip-v4"],
        ["algorithm:ppo"],
        ["--algorithm.passes", "3"],
        ["--num-envs", "32"],
    )
    configs = [typed(*chain(*order)) for order in permutations(parts)]
    assert all(config == configs[0] for config in configs)
    assert configs[0].algorithm.name == "ppo"
    assert configs[0].algorithm.passes == 3
    assert configs[0].num_envs == 32


@pytest.mark.parametrize("flag", ["--num-envs", "--num_envs"])
def test_hyphens_and_underscores_are_the_same(flag: str) -> None:
    assert typed("x:y", flag, "32").num_envs == typed("x:y", f"{flag}=32").num_envs == 32
    assert typed("x:y", "--algorithm.value_cost", "2").algorithm.value_cost == 2.0


def test_switches() -> None:
    assert typed("--tensorboard", "CartPole-v1").tensorboard is True
    assert typed("CartPole-v1", "--no-tensorboard").tensorboard is False
    assert typed("CartPole-v1", "--tensorboard", "false").tensorboard is False
    assert typed("CartPole-v1", "--tensorboard=yes").tensorboard is True
    assert typed("CartPole-v1", "--policy.no-normalize-obs").policy.normalize_obs is False
    assert typed("CartPole-v1", "--no-policy.normalize-obs").policy.normalize_obs is False
    atari = "ALE/Pong-v5"
    assert typed(atari).env.grayscale is None
    assert typed("--env.grayscale", atari).env.grayscale is True
    assert typed("--env.no-grayscale", atari).env.grayscale is False
    assert typed("--env.grayscale", "none", atari).env.grayscale is None


def test_lists_of_numbers_end_where_numbers_end() -> None:
    assert typed("--policy.hidden-sizes", "32", "16", "x:y").policy.hidden_sizes == (32, 16)
    assert typed("--policy.hidden-sizes", "32,16", "x:y").policy.hidden_sizes == (32, 16)
    assert typed("--policy.hidden-sizes=[8, 4]", "x:y").policy.hidden_sizes == (8, 4)
    assert typed("x:y", "--optimizer.learning-rate", "1e-3").optimizer.learning_rate == (1e-3,)
    two = parse_train(["x:y", "--optimizer.learning-rate", "1e-3", "2e-3", "--seed", "2"])
    assert two.settings["optimizer"]["learning_rate"] == ["1e-3", "2e-3"]
    assert typed("--algorithm.entropy-cost", "0.01", "x:y").algorithm.entropy_cost == (0.01,)
    costs = typed("--num-learners", "2", "--algorithm.entropy-cost", "0.01", "2e-2", "x:y")
    assert costs.algorithm.entropy_cost == (0.01, 0.02)


def test_replays_as_json_and_by_index() -> None:
    assert typed("x:y", "--replays", '[{"name": "queue", "capacity": 2}]').replays[0].capacity == 2
    assert typed("x:y", "--replays.0.capacity", "3").replays[0].capacity == 3
    both = typed("x:y", "--replays", '[{"capacity": 2}]', "--replays.0.capacity", "4")
    assert both.replays[0].capacity == 4
    assert typed("x:y", "--algorithm", '{"name": "ppo", "passes": 2}').algorithm.passes == 2
    assert typed("x:y", "--algorithm", "a2c").algorithm.name == "a2c"
    assert typed("x:y", "--algorithm.name", "a2c").algorithm.name == "a2c"


def test_negative_values_and_none_are_values() -> None:
    assert typed("x:y", "--stop-at-return", "-90").stop_at_return == -90.0
    assert typed("x:y", "--stop-at-return", "none").stop_at_return is None
    assert typed("x:y", "--total-env-steps", "1e6").total_env_steps == 1_000_000


def test_several_configs_stack() -> None:
    for words in (("--config", "pong", "debug"), ("--config", "pong", "--config=debug")):
        config = typed(*words)
        assert config.env_id == "PongNoFrameskip-v4"
        assert config.num_envs == 4
    assert typed("--config", "debug", "CartPole-v1").env_id == "CartPole-v1"


def test_a_goal_belongs_to_the_environment_it_was_given_for(tmp_path: Path) -> None:
    assert typed("--config", "pong").stop_at_return == 19.0
    assert typed("PongNoFrameskip-v4", "--config", "pong").stop_at_return == 19.0
    assert typed("BreakoutNoFrameskip-v4", "--config", "pong").stop_at_return is None
    assert typed("--config", "pong", "--config", "breakout").stop_at_return is None
    assert typed("--config", "breakout", "--config", "pong").stop_at_return == 19.0
    other = ("CartPole-v1", "--config", "pong")
    assert typed(*other, "--stop-at-return", "7").stop_at_return == 7.0
    alone = tmp_path / "alone.toml"
    alone.write_text("stop_at_return = 5\n")
    assert typed(*other, str(alone)).stop_at_return == 5.0
    hyphens = tmp_path / "hyphens.toml"
    hyphens.write_text('env-id = "x:y"\nstop-at-return = 3\n')
    assert typed("--config", str(hyphens)).stop_at_return == 3.0
    assert typed("x:z", "--config", str(hyphens)).stop_at_return is None


def test_the_last_mention_wins() -> None:
    assert typed("x:y", "--seed", "1", "--seed", "2").seed == 2
    assert typed("x:y", "--algorithm", "ppo", "--algorithm", "a2c").algorithm.name == "a2c"
    assert typed("x:y", "--algorithm.passes", "3", "--algorithm", "ppo").algorithm.passes == 3
    assert typed("x:y", "algorithm:ppo", "--algorithm", "ppo").algorithm.name == "ppo"


def test_resume_and_show_config_are_read() -> None:
    asked = parse_train(["--resume", "last", "--show-config"])
    assert (asked.resume, asked.show_config, asked.settings) == ("last", True, {})
    assert parse_train(["-h"]).wants_help


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("CartPole-v1 --num-env 3", "--num-env is not a setting; did you mean --num-envs?"),
        ("CartPole-v1 --learning-rate 3", "did you mean --optimizer.learning-rate?"),
        ("CartPole-v1 --algorithm.pases 3", "did you mean --algorithm.passes?"),
        ("CartPole-v1 --lr 3", "did you mean --optimizer.learning-rate?"),
        ("CartPole-v1 --algorithm.gamma 3", "did you mean --algorithm.discount?"),
        ("CartPole-v1 --n-steps 3", "did you mean --unroll-length?"),
        ("CartPole-v1 --topology:single", "type it without hyphens: topology:single"),
        ("CartPole-v1 --num-envs:8", "--num-envs:8 is not a flag; type: --num-envs 8"),
        ("CartPole-v1 --no-num-envs", "--no-num-envs is not a setting"),
        ("CartPole-v1 --replays.0.fracton 1", "did you mean --replays.0.fraction?"),
        ("CartPole-v1 -n 3", "flags start with two hyphens"),
        ("CartPole-v1 --num-envs", "--num-envs needs a value"),
        ("CartPole-v1 --num-envs --seed 1", "--num-envs needs a value"),
        ("CartPole-v1 --num-envs many", '--num-envs is "many"; it must be a whole number'),
        ("CartPole-v1 --num-envs 1.5", "a whole number"),
        ("CartPole-v1 --num-envs nan", "a whole number"),
        ("CartPole-v1 --num-envs \udc80", "it must be a whole number: --num-envs 8"),
        ("CartPole-v1 --seed 1e400", "a whole number"),
        ("CartPole-v1 --lag 2", "one of auto, 0, 1, free: --lag auto"),
        ("CartPole-v1 --device gpu", "one of auto, cpu, cuda: --device cuda"),
        ("CartPole-v1 --device cuda:1", "--device cuda, with CUDA_VISIBLE_DEVICES=1"),
        ("CartPole-v1 --tensorboard=maybe", "true or false"),
        (
            "CartPole-v1 --env.mask none",
            '--env.mask is "none"; it must be one of auto, observation, info, off: --env.mask off turns masks off, '
            "--env.mask auto, the default, looks for one",
        ),
        ("CartPole-v1 --env.mask false", '--env.mask is "false"; it must be one of auto, obs'),
        ("CartPole-v1 --env.mask No", "--env.mask off turns masks off"),
        ("CartPole-v1 --env.mask 0", "--env.mask off turns masks off"),
        ('CartPole-v1 --env {"mask":false}', "--env.mask off turns masks off"),
        (
            "CartPole-v1 --optimizer.learning-rate fast",
            '"fast"; it must be a number: --optimizer.learning-rate 0.0005',
        ),
        ("CartPole-v1 --policy.torso natur", "or module:NAME: --policy.torso nature"),
        ("CartPole-v1 --optimizer.learning-rate nan", "is nan; it must be a finite number"),
        (
            "CartPole-v1 --algorithm.entropy-cost 0.1 nan",
            "entropy-cost is 0.1 nan; it must be a list, each entry a finite number",
        ),
        (
            "CartPole-v1 --policy.hidden-sizes 64 inf",
            "a list, each entry in [1, 65536]: --policy.hidden-sizes 64 64",
        ),
        (
            "CartPole-v1 --policy.hidden-sizes=64,x",
            "each entry in [1, 65536]: --policy.hidden-sizes 64 64",
        ),
        ("CartPole-v1 --stop-after-seconds inf", "it must be a finite number"),
        ("CartPole-v1 --stop-at-return nan", "it must be a finite number or none"),
        ("CartPole-v1 --total-env-steps 1M", "a whole number: type 1_000_000 or 1e6"),
        ("CartPole-v1 --total-env-steps 1.5m", "a whole number: type 1_500_000 or 1.5e6"),
        ("CartPole-v1 --total-env-steps=200k", "a whole number: type 200_000 or 2e5"),
        ("CartPole-v1 --total-env-steps 1,000,000", "type 1_000_000 or 1e6"),
        (
            "CartPole-v1 --stop-after-seconds 30m",
            '"30m"; it must be a number: --stop-after-seconds 0.0',
        ),
        ("CartPole-v1 --replays [", "not valid JSON"),
        ("CartPole-v1 --replays 3", "replays"),
        ("CartPole-v1 --replays.x.capacity 3", "--replays.x.capacity is not a setting"),
        ("CartPole-v1 --seed.x 3", "--seed.x is not a setting"),
        ("CartPole-v1 --seed 3 --algorithm.passes 0", "algorithm.passes is 0; it must be >= 1"),
        ("CartPole-v1 algorithm:dqn", "allowed: a2c, ppo, vtrace, impact, laser"),
        ("CartPole-v1 topology:gosip", "did you mean gossip"),
        (
            "CartPole-v1 topology:gala",
            "'gala'; allowed: single, allreduce, diffusion, gossip; topology:gossip is GALA",
        ),
        ("CartPole-v1 topology:diff-dac", "; topology:diffusion is Diff-DAC"),
        ("CartPole-v1 --topology DiffDAC", "; topology:diffusion is Diff-DAC"),
        ("CartPole-v1 algorithm:gala", "allowed: a2c, ppo, vtrace, impact, laser"),
        (
            "CartPole-v1 algorithm:PPO",
            "allowed: a2c, ppo, vtrace, impact, laser; did you mean ppo?",
        ),
        ("CartPole-v1 --algorithm V-Trace", "did you mean vtrace?"),
        ("CartPole-v1 Algorithm:PPO", "did you mean algorithm:ppo?"),
        ("x:y algorithm:a2c algorithm:ppo", "algorithm is chosen twice, a2c and ppo; leave one"),
        ("x:y --topology gossip topology:single", "topology is chosen twice, gossip and single"),
        ("x:y algorithm:vtrace --algorithm ppo", "algorithm is chosen twice, vtrace and ppo"),
        (
            "x:y topology:gossip --topology.name single",
            "topology is chosen twice, gossip and single",
        ),
        ('x:y algorithm:a2c --algorithm {"name":"ppo"}', "algorithm is chosen twice, a2c and ppo"),
        ("CartPole-v1 algoritm:ppo", "did you mean algorithm:ppo?"),
        ("algoritm:ppo", "did you mean algorithm:ppo?"),
        ("algoritm:ppo CartPole-v1", "did you mean algorithm:ppo?"),
        ("CartPole-v1 Acrobot-v1", "Acrobot-v1 is one word too many"),
        ("--env-id CartPole-v1", "type the environment's id alone"),
        ("--config", "--config needs a value"),
        ("--num-envs 3", "no environment given"),
        (
            "CartPole-v1 algorithm:a2c --algorithm.clip-rho 1",
            "is a setting of vtrace, impact, laser, not of a2c",
        ),
        ("CartPole-v1 --= 3", "is not a setting"),
        ("CartPole-v1 --", "is not a setting"),
    ],
)
def test_mistakes_are_told_in_one_line(words: str, says: str) -> None:
    assert says in refusal(*words.split())


WORDS = [
    "CartPole-v1",
    "x:y",
    "algorithm:ppo",
    "algorithm:",
    "--seed",
    "3",
    "-1",
    "--replays",
    "[{}]",
    "[]",
    "[1]",
    "--replays.0.capacity",
    "--replays.1.fraction",
    "--algorithm",
    "{}",
    "--no-wandb",
    "none",
    "--optimizer.learning-rate",
    "1e-3",
    "--config",
    "debug",
    "--lag=0",
    "--resume",
    "--",
    "=",
    "--algorithm.passes",
    "--algorithm.",
    "--.",
    "--replays.",
    "--replays.0",
    "1e400",
    '{"name":1}',
    '{"name":[]}',
    '{"seed":{}}',
    "--env.grayscale",
    "--policy.hidden-sizes",
]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=8), max_size=7))
def test_no_words_are_worse_than_a_refusal(words: list[str]) -> None:
    with contextlib.suppress(ConfigError):
        typed(*words)


def test_names_from_elsewhere_lead_to_settings_that_exist():
    last_parts = {name.rpartition(".")[2] for name in names_of(TrainConfig)}
    assert set(ELSEWHERE) <= last_parts
    others = [other for names in ELSEWHERE.values() for other in names]
    assert len(others) == len(set(others))
    assert not set(others) & last_parts, "a setting of ours is not a wrong name"


@pytest.mark.parametrize(
    ("word", "on"),
    [
        ("--watch", True),
        ("--watch=yes", True),
        ("--watch=true", True),
        ("--watch=no", False),
        ("--watch=false", False),
        ("--no-watch", False),
    ],
)
def test_switches_of_the_command_can_be_off(word: str, on: bool) -> None:
    assert parse_train(["CartPole-v1", word]).watch is on
    name = word.replace("watch", "show-config")
    assert parse_train(["CartPole-v1", name]).show_config is on


def test_switches_of_the_command_take_a_word_as_settings_do() -> None:
    asked = parse_train(["--watch", "no", "CartPole-v1", "--show-config", "yes"])
    assert (asked.watch, asked.show_config) == (False, True)
    assert asked.settings == {"env_id": "CartPole-v1"}
    assert "--no-watch is not a setting" in refusal("--no-watch=no", "CartPole-v1")


def test_a_switch_that_is_neither_is_refused() -> None:
    with pytest.raises(ConfigError, match='--watch is "perhaps"; it must be true or false'):
        parse_train(["CartPole-v1", "--watch=perhaps"])


@pytest.mark.parametrize(
    ("words", "algorithm"),
    [
        (["--replay-ratio", "3"], "laser"),
        (
            [
                "--replays",
                '[{"name": "queue", "fraction": 0.5}, {"name": "uniform", "fraction": 0.5}]',
            ],
            "laser",
        ),
        (["--replays.1.name", "elite"], "laser"),
        (["--replays", '[{"fraction": 0.5}, {"fraction": 0.5}]'], "laser"),
        (["--replay-ratio", "3", "algorithm:vtrace"], "vtrace"),
        (["--replay-ratio", "0"], "ppo"),
        (["--replays", '[{"name": "queue"}]'], "ppo"),
        (["--replays.0.capacity", "2"], "ppo"),
    ],
)
def test_replays_are_learnt_from_by_an_algorithm_that_can(words: list[str], algorithm: str) -> None:
    from gossamer.config import FOR_REPLAYS, gather_layers, merge_layers

    asked = parse_train(["PongNoFrameskip-v4", *words])
    config, layers, _ = merge_layers(gather_layers(asked.settings))
    assert config.algorithm.name == algorithm
    assert (layers["algorithm.name"] == FOR_REPLAYS) == (algorithm == "laser")


@pytest.mark.parametrize(
    "word", ["--no-wants-help", "--no-wants-all", "--no-reads-more", "--type=ppo"]
)
def test_what_is_no_option_is_refused_with_no_wrong_hint(word: str) -> None:
    with pytest.raises(ConfigError, match="is not a setting; gossamer train --help-all"):
        parse_train(["CartPole-v1", word])


def test_a_command_that_names_its_folder_twice_begins_the_run_or_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["CartPole-v1", "--run-folder", "runs/one", "--resume", f"{tmp_path}/runs/../runs/one/"]
    first = parse_train([*words, "--trust"])
    assert (first.resume, first.settings["run_folder"], first.trust) == (None, "runs/one", False)
    folder = RunFolder.create(
        "runs/one", env_id="CartPole-v1", algorithm="a2c", topology="single", seed=1
    )
    folder.write_start({"seed": 1}, {}, [])
    folder.unlock()
    early = parse_train([*words, "--trust"])
    assert early.resume is None, "it was ended before it had learnt anything: it begins anew"
    (folder.path / "checkpoints" / "4").mkdir(parents=True)
    again = parse_train([*words, "--trust", "--init-from", "runs/first"])
    assert not {"run_folder", "init_from"} & {*again.settings}
    assert Path(str(again.resume)) == tmp_path / "runs" / ".." / "runs" / "one"
    assert again.trust
    monkeypatch.setenv("HOME", str(tmp_path))
    home = parse_train(["CartPole-v1", "--run-folder=~/runs/one", "--resume=~/runs/one"])
    assert home.resume == "~/runs/one"
    with pytest.raises(ConfigError, match="give both the same folder"):
        parse_train(["CartPole-v1", "--run-folder", "other", "--resume", "runs/one"])


@pytest.mark.parametrize("word", ["19,5", "CartPole-v1"])
def test_a_return_that_is_no_number_is_refused_without_one_that_nobody_wants(word: str) -> None:
    with pytest.raises(ConfigError, match=r"it must be a number or none$"):
        typed("x:y", "--stop-at-return", word)


def test_a_word_and_a_table_of_one_section_go_together() -> None:
    for words in (
        ["--algorithm", "a2c", "--algorithm", '{"discount": 0.9}'],
        ["--algorithm", '{"discount": 0.9}', "--algorithm", "a2c"],
    ):
        algorithm = typed("CartPole-v1", *words).algorithm
        assert (algorithm.name, algorithm.discount) == ("a2c", 0.9)
