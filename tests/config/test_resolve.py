"""Precedence, refusals and round trips of the configuration."""

from __future__ import annotations

import json
import re
import typing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.config import (
    TrainConfig,
    as_read,
    explicit,
    from_dict,
    make_config,
    resolve,
    show_config,
    to_dict,
    validate,
)
from gossamer.config.files import suite_layer
from gossamer.config.merging import merge
from gossamer.config.tree import fields_of, find_annotation, flatten, members
from gossamer.config.values import bare, is_list, is_mapping, kinds_of, range_words
from gossamer.errors import ConfigError
from gossamer.replay.settings import QueueSettings

if TYPE_CHECKING:
    from pathlib import Path

SUITES = {
    "atari": "PongNoFrameskip-v4",
    "box2d": "LunarLander-v3",
    "classic": "CartPole-v1",
    "minigrid": "MiniGrid-DoorKey-5x5-v0",
    "mujoco": "HalfCheetah-v5",
    "toy": "Taxi-v3",
    "other": "my_module:make_env",
}


def refusal(*args: Any, **kwargs: Any) -> str:
    """The one line with which `resolve` refuses."""
    with pytest.raises(ConfigError) as caught:
        resolve(*args, **kwargs)
    line = str(caught.value)
    assert "\n" not in line
    return line


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_each_layer_wins_over_the_one_below(tmp_path: Path) -> None:
    low = write(tmp_path / "low.toml", "seed = 2\nnum_envs = 2\nunroll_length = 2\n")
    high = write(tmp_path / "high.json", '{"seed": 3, "num_envs": 4}')
    saved = to_dict(
        make_config("CartPole-v1", {"seed": 9, "total_env_steps": 77, "algorithm": "a2c"})
    )
    config, layers = resolve({"seed": "4"}, configs=[low, high], resumed=saved)
    assert (config.seed, layers["seed"]) == (4, "command line")
    assert (config.num_envs, layers["num_envs"]) == (4, f"--config {high}")
    assert (config.unroll_length, layers["unroll_length"]) == (2, f"--config {low}")
    assert (config.total_env_steps, layers["total_env_steps"]) == (77, "resumed run")
    assert explicit(layers) == {"seed", "num_envs", "unroll_length"}


def test_suite_defaults_lie_between_defaults_and_files() -> None:
    config, layers = resolve({"env_id": "CartPole-v1"})
    assert config.num_envs == suite_layer("classic").settings["num_envs"] != TrainConfig().num_envs
    assert layers["num_envs"] == "suite classic"
    assert layers["seed"] == "default"
    config, layers = resolve({"env_id": "CartPole-v1"}, configs=["debug"])
    assert (config.num_envs, layers["num_envs"]) == (4, "--config debug")


def test_every_setting_has_a_layer() -> None:
    config, layers = resolve({"env_id": "CartPole-v1"})
    assert set(layers) == {name for name, _ in flatten(to_dict(config))}


def test_a_file_may_name_the_environment_and_the_command_line_another(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", 'env_id = "HalfCheetah-v5"\n')
    config, layers = resolve(configs=[file])
    assert config.env_id == "HalfCheetah-v5"
    assert layers["num_envs"] == "suite mujoco"
    config, layers = resolve({"env_id": "CartPole-v1"}, configs=[file])
    assert config.env_id == "CartPole-v1"
    assert layers["num_envs"] == "suite classic"


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("algorithm", ["a2c", "vtrace", "ppo"])
def test_every_suite_resolves_with_every_algorithm(suite: str, algorithm: str) -> None:
    config, layers = resolve({"env_id": SUITES[suite], "algorithm": algorithm})
    assert config.algorithm.name == algorithm
    assert f"suite {suite}" in layers.values()


def test_minibatches_that_nobody_asked_for_are_no_more_than_environments() -> None:
    config, layers = resolve({"env_id": "PongNoFrameskip-v4", "num_envs": "2"})
    assert config.algorithm.num_minibatches == 2
    assert layers["algorithm.num_minibatches"] == "suite atari, at most num_envs"
    asked: Any = {"env_id": "PongNoFrameskip-v4", "num_envs": "2", "algorithm": {"passes": "3"}}
    assert resolve(asked)[0].algorithm.num_minibatches == 2
    # Vectors are dealt by rows.
    assert resolve({"env_id": "x:y", "num_envs": "2"})[0].algorithm.num_minibatches == 8
    recurrent: Any = {"env_id": "x:y", "num_envs": "2", "policy": {"core": "gru"}}
    assert resolve(recurrent)[0].algorithm.num_minibatches == 2


def test_a_short_run_learns_from_its_first_batch_on_unless_a_later_start_is_asked_for() -> None:
    pong: Any = {"env_id": "PongNoFrameskip-v4"}
    assert resolve(pong)[0].optimizer.learn_start == 2000
    config, layers = resolve({**pong, "total_env_steps": "4000"})
    assert config.optimizer.learn_start == 0
    assert layers["optimizer.learn_start"] == "suite atari, 0 for so few steps"
    asked = {**pong, "total_env_steps": "4000", "optimizer": {"learn_start": "3000"}}
    assert resolve(asked)[0].optimizer.learn_start == 3000, "the last of four batches is learnt"
    # Batches of many learners are long: the first that begins late enough may be the last.
    many = {**pong, "num_learners": "32", "total_env_steps": "30_000"}
    assert resolve(many)[0].optimizer.learn_start == 0


def test_a_suite_has_settings_for_one_algorithm() -> None:
    ppo, others = resolve({"env_id": "CartPole-v1"})[0], ("a2c", "vtrace", "laser", "impact")
    assert ppo.algorithm.name == "ppo"
    for name in others:
        config = resolve({"env_id": "CartPole-v1", "algorithm": name})[0]
        assert config.unroll_length == 32 != ppo.unroll_length
        assert config.policy.noise_correlation == 0.0 < ppo.policy.noise_correlation
    typed = resolve({"env_id": "CartPole-v1", "unroll_length": "64"})[0]
    assert typed.unroll_length == 64


def test_switching_keeps_what_both_kinds_have_and_drops_the_rest(tmp_path: Path) -> None:
    file = write(
        tmp_path / "v.toml",
        'env_id = "x:y"\n[algorithm]\nname = "vtrace"\nclip_rho = 2.0\nentropy_cost = 0.03\n',
    )
    config, layers = resolve({"algorithm": {"name": "ppo"}}, configs=[file])
    assert config.algorithm.name == "ppo"
    assert config.algorithm.entropy_cost == (0.03,)
    assert layers["algorithm.entropy_cost"] == f"--config {file}"
    assert "algorithm.clip_rho" not in layers
    assert config.algorithm.num_minibatches == 8, "the suite's for PPO, not V-trace's"


def test_a_table_named_after_a_kind_speaks_only_to_that_kind(tmp_path: Path) -> None:
    file = write(
        tmp_path / "k.toml",
        'env_id = "x:y"\n[algorithm]\npasses = 2\n[algorithm.ppo]\npasses = 7\nclip_ratio = 0.3\n',
    )
    assert (
        resolve({"algorithm": "vtrace"}, configs=[file])[0].algorithm
        == from_dict(
            {
                "algorithm": {
                    **to_dict(resolve({"env_id": "x:y", "algorithm": "vtrace"})[0])["algorithm"],
                    "passes": 2,
                }
            }
        ).algorithm
    )
    ppo = resolve({"algorithm": "ppo"}, configs=[file])[0].algorithm
    assert (ppo.passes, ppo.clip_ratio) == (7, 0.3)  # type: ignore[union-attr]
    bad = write(tmp_path / "b.toml", "[algorithm.ppo]\nclip_rtio = 0.3\n")
    assert "did you mean algorithm.clip_ratio?" in refusal({"env_id": "x:y"}, configs=[bad])


def test_a_setting_of_another_kind_is_refused_with_its_owner() -> None:
    line = refusal({"env_id": "x:y", "algorithm": {"name": "vtrace", "clip_ratio": "0.1"}})
    assert "--algorithm.clip-ratio is a setting of ppo, impact, not of vtrace" in line
    assert "algorithm:ppo" in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("num_env = 3", "num_env is not a setting; did you mean num_envs?"),
        ("[optimizer]\nlearning_rat = 1", "did you mean optimizer.learning_rate?"),
        ("learning_rate = 0.1", "did you mean optimizer.learning_rate?"),
        ("[algorithm]\nzzzz = 1", "gossamer train --help"),
        ("[nonsense]\nx = 1", "nonsense is not a setting"),
        ('num_envs = "64"', 'num_envs is "64"; it must be a whole number'),
        ("num_envs = 1.5", "num_envs is 1.5; it must be a whole number"),
        ("num_envs = true", "num_envs is true; it must be a whole number"),
        ("num_envs = [1]", "num_envs is [1]; it must be a whole number"),
        ("tensorboard = 1", "tensorboard is 1; it must be true or false"),
        ("total_env_steps = inf", "it must be a whole number"),
        ("stop_after_seconds = nan", "it must be a finite number"),
        ("algorithm = 3", "algorithm is 3; it must be a section of settings"),
        ('lag = "2"', "one of auto, 0, 1, free"),
        ('[algorithm]\nname = "dqn"', "allowed: a2c, ppo, vtrace, impact, laser"),
        ('[algorithm]\nname = "vtrac"', "did you mean vtrace?"),
        ('[optimizer]\nlearning_rate = "big"', "it must be a number, for example 0.0005"),
        (
            '[optimizer]\nlearning_rate = [1, "big"]',
            "each entry in (0, 1000], for example [0.0005]",
        ),
        ("[env]\nframe_skip = 0.5", "a whole number or none"),
        (
            "[env]\nmask = false",
            "env.mask is false; it must be one of auto, observation, info, off",
        ),
        ("replays = []", "at least one section"),
        ("replays = [3]", "replays.0 is 3; it must be a section"),
        ("[[replays]]\nfracton = 1", "did you mean replays.0.fraction?"),
        ("[replays.3]\nfraction = 1", "replays.3 names no entry"),
        ("seed = ", "not valid TOML"),
        (
            "num-envs = 4\nnum_envs = 8",
            "num_envs is given twice, as num-envs and num_envs; leave one of them out",
        ),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    file = write(tmp_path / "bad.toml", text)
    line = refusal({"env_id": "CartPole-v1"}, configs=[file])
    assert says in line
    assert line.startswith(f"--config {file}: ")


def test_none_in_files_is_the_default_of_a_mask(tmp_path: Path) -> None:
    """As runs and --show-config write it; typed it is refused."""
    toml = write(tmp_path / "a.toml", '[env]\nmask = "none"\n')
    json_file = write(tmp_path / "b.json", '{"env": {"mask": null, "mask_form": null}}')
    for config in (toml, json_file):
        assert resolve({"env_id": "CartPole-v1"}, configs=[config])[0].env.mask is None
    assert make_config("CartPole-v1", {"env.mask": None}).env.mask is None


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    env = {"env_id": "CartPole-v1"}
    assert "no such file" in refusal(env, configs=[str(tmp_path / "none.toml")])
    assert "cannot be read" in refusal(env, configs=[_made(tmp_path / "folder.toml")])
    assert "not valid JSON" in refusal(env, configs=[write(tmp_path / "x.json", "{")])
    told = refusal(env, configs=[write(tmp_path / "e.json", '{"env": "Acrobot-v1"}')])
    assert "env holds settings of the environment; write its id as env_id" in told
    assert "object of settings" in refusal(env, configs=[write(tmp_path / "y.json", "[1]")])
    (tmp_path / "z.toml").write_bytes(b"seed = \xff")
    assert "not valid TOML" in refusal(env, configs=[str(tmp_path / "z.toml")])
    assert "did you mean pong?" in refusal(env, configs=["pogn"])
    assert "presets: attentive_pong, bench" in refusal(env, configs=["qqqq"])
    assert "not a .toml or .json file" in refusal(env, configs=[write(tmp_path / "f.yaml", "")])
    there = write(tmp_path / "config.json", "{}")
    assert f"whose settings are in {there};" in refusal(env, configs=[str(tmp_path)])


def _made(path: Path) -> str:
    path.mkdir()
    return str(path)


def test_a_setting_that_a_json_file_gives_twice_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.json", '{"env_id": "x:y", "algorithm": {"passes": 3, "passes": 4}}')
    assert refusal(configs=[file]).endswith("a.json: not valid JSON: passes is given twice")


def test_one_preset_needs_no_list_in_python(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    write(file, "seed = 3")
    for one in (str(file), file):
        assert make_config("CartPole-v1", presets=one).seed == 3
    assert make_config(presets="pong") == make_config(presets=["pong"])


def test_an_environment_that_python_names_twice_is_refused() -> None:
    same = make_config("CartPole-v1", {"env_id": "CartPole-v1"})
    assert same == make_config("CartPole-v1")
    with pytest.raises(
        ConfigError, match=r"^env_id is Acrobot-v1, but the environment is CartPole"
    ):
        make_config("CartPole-v1", {"env_id": "Acrobot-v1"})
    with pytest.raises(ConfigError, match=r"^settings: env holds settings of the environment; wri"):
        make_config(settings={"env": "CartPole-v1"})


@pytest.mark.parametrize(("name", "text"), [("a.toml", "seed = 3"), ("a.json", '{"seed": 3}')])
def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert make_config("x:y", presets=[str(tmp_path / name)]).seed == 3


def test_whole_numbers_may_be_written_1e6_and_numbers_need_no_point(tmp_path: Path) -> None:
    file = write(tmp_path / "n.toml", "total_env_steps = 1e6\nstop_after_seconds = 5\n")
    config, _ = resolve({"env_id": "CartPole-v1", "num_envs": "1_0"}, configs=[file])
    assert (config.total_env_steps, config.stop_after_seconds, config.num_envs) == (10**6, 5.0, 10)
    assert isinstance(config.total_env_steps, int)
    assert isinstance(config.stop_after_seconds, float)


def test_hyphens_and_a_bare_kind_are_understood_in_files(tmp_path: Path) -> None:
    file = write(tmp_path / "h.toml", 'num-envs = 6\nalgorithm = "a2c"\nlag = 0\n')
    config, _ = resolve({"env_id": "CartPole-v1"}, configs=[file])
    assert (config.num_envs, config.algorithm.name, config.lag) == (6, "a2c", "0")


def test_what_an_older_run_did_not_know_is_as_it_was_for_it() -> None:
    """The suite's settings may have changed since; those that the run began with have not."""
    saved = to_dict(make_config("Pendulum-v1"))
    assert saved["policy"].pop("noise_correlation") > 0.0
    config, origin = resolve({}, resumed=saved)
    assert config.policy.noise_correlation == 0.0
    assert origin["policy.noise_correlation"] == "resumed run"


def test_resuming_another_environment_is_refused() -> None:
    saved = to_dict(make_config("CartPole-v1"))
    assert resolve({"env_id": "CartPole-v1"}, resumed=saved)[0].env_id == "CartPole-v1"
    assert "trains CartPole-v1, not Acrobot-v1" in refusal({"env_id": "Acrobot-v1"}, resumed=saved)
    assert "not PongNoFrameskip-v4" in refusal(configs=["pong"], resumed=saved)
    # What is below the id that counts names no other environment.
    for typed, configs in (({"env_id": "CartPole-v1"}, ["pong"]), ({}, ["pong", "debug"])):
        begun = to_dict(resolve(typed, configs=configs)[0])
        again, _ = resolve(typed, configs=configs, resumed=begun)
        assert to_dict(again) == begun


def test_what_a_higher_choice_overruled_when_a_run_began_is_not_refused_when_it_goes_on(
    tmp_path: Path,
) -> None:
    low = write(tmp_path / "low.toml", 'env_id = "CartPole-v1"\n[algorithm]\npasses = 3\n')
    high = write(tmp_path / "high.toml", 'algorithm = "a2c"\n')
    typed: Any
    for typed, configs in (({"algorithm": "a2c"}, [low]), ({}, [low, high])):
        begun = to_dict(resolve(typed, configs=configs)[0])
        assert to_dict(resolve(typed, configs=configs, resumed=begun)[0]) == begun
        assert "is a setting of ppo, " in refusal(configs=[low], resumed=begun)


def test_an_environment_is_needed() -> None:
    assert "gossamer train CartPole-v1" in refusal()
    assert "no environment" in refusal({"env_id": " "})
    assert "env_id is 3" in refusal(resumed={"env_id": 3})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_envs": -1}, "--num-envs is -1; it must be >= 0: --num-envs 8"),
        ({"total_env_steps": 0}, ">= 1: --total-env-steps 10000000"),
        ({"unroll_length": 0}, ">= 1"),
        ({"seed": -5}, ">= 0: --seed 1"),
        ({"checkpoint_every_seconds": -0.1}, ">= 0"),
        ({"algorithm": {"discount": 1.5}}, "in [0, 1]: --algorithm.discount 0.99"),
        ({"algorithm": {"passes": 0}}, ">= 1"),
        ({"algorithm": {"entropy_cost": -1}}, ">= 0"),
        ({"optimizer": {"learning_rate": 0}}, "in (0, 1000]: --optimizer.learning-rate 0.0005"),
        ({"optimizer": {"learning_rate": [1e-3, 1e-4]}}, "2 values for 1 learner"),
        ({"algorithm": {"entropy_cost": []}}, "0 values for 1 learner"),
        ({"optimizer": {"beta1": 1.0}}, "in [0, 1)"),
        (
            {"policy": {"hidden_sizes": [64, 0]}},
            "64 0; it must be a list, each entry in [1, 65536]: --policy.hidden-sizes 64 64",
        ),
        ({"evaluation": {"max_time_fraction": 1.1}}, "in (0, 1]"),
        ({"env": {"frame_skip": 0}}, ">= 1 or none: --env.frame-skip 1"),
        ({"algorithm": "a2c", "lag": "1"}, "algorithm:vtrace"),
        ({"algorithm": "a2c", "lag": "free"}, "algorithm:vtrace"),
        (
            {"num_learners": 2, "topology": {"name": "gossip", "num_peers": 2}},
            "--topology.num-peers 1",
        ),
        (
            {
                "placement": "cluster",
                "algorithm": {"name": "laser"},
                "num_learners": 2,
                "replay_ratio": 1.0,
                "replays": ["queue", {"name": "uniform", "shared": True}],
            },
            "machines of a cluster have no memory in common",
        ),
        (
            {"num_envs": 2, "algorithm": {"name": "vtrace", "num_minibatches": 3}},
            "--algorithm.num-minibatches 2",
        ),
        (
            {"num_envs": 2, "algorithm": {"num_minibatches": 3, "deal": "columns"}},
            "--algorithm.num-minibatches 2, or --algorithm.deal rows",
        ),
        (
            {"total_env_steps": 500, "optimizer": {"learn_start": 500}},
            "nothing would be learnt: --optimizer.learn-start 0",
        ),
        (
            {"total_env_steps": 500, "num_envs": 16, "optimizer": {"learn_start": 33}},
            "nothing would be learnt: --optimizer.learn-start 0",
        ),
        ({"placement": "inline", "lag": "free"}, "use --lag 1, or --placement local"),
        ({"replays": [{"fraction": 0.5}]}, "sum to 0.5"),
        ({"replays": ["queue", "queue"]}, "2 queues among queue, queue; it must hold exactly one"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], says: str) -> None:
    assert says in refusal({"env_id": "x:y", "algorithm": {"num_minibatches": 1}} | changes)


@pytest.mark.parametrize("algorithm", ["vtrace", "ppo"])
@pytest.mark.parametrize("lag", ["0", "1", "free"])
def test_algorithms_that_live_with_a_lag_may_have_one(algorithm: str, lag: str) -> None:
    assert resolve({"env_id": "x:y", "algorithm": algorithm, "lag": lag})[0].lag == lag


@dataclass(frozen=True)
class RingSettings(QueueSettings):
    """A replay that keeps entries, as later versions have."""

    name: ClassVar[str] = "uniform"


@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
def test_on_policy_algorithms_refuse_replays_that_keep_entries(algorithm: str) -> None:
    mix = (QueueSettings(fraction=0.5), RingSettings(fraction=0.5))
    config = make_config("x:y", {"algorithm": algorithm})
    with pytest.raises(ConfigError, match=r"replays holds uniform.*algorithm:vtrace"):
        validate(replace(config, replays=mix))
    validate(replace(make_config("x:y", {"algorithm": "vtrace"}), replays=mix))


def test_defaults_lie_in_the_ranges_of_their_fields() -> None:
    assert from_dict(to_dict(TrainConfig())) == TrainConfig()


def test_docstrings_tell_the_ranges_that_are_checked() -> None:
    """The bracket or inequality a docstring states is the one that is enforced."""
    from gossamer.config.help import setting_groups

    stated = 0
    for group in setting_groups():
        for row in group.rows:
            kind = kinds_of(row.annotation)[0]
            base, meta = bare(kind)
            if is_list(row.annotation):
                kind = typing.get_args(base)[0]
                meta = bare(kind)[1]
            words = range_words(kind)
            for bound in ("in [0, 1]", "in [0, 1)", "in (0, 1]"):
                if bound in row.meaning:
                    assert words == bound, row.name
                    stated += 1
            for bound, least in ((">= 0", meta.ge), (">= 1", meta.ge), ("> 0", meta.gt)):
                if re.search(rf"(?<![>=]){bound}\b(?!\.)", row.meaning):
                    assert least == int(bound[-1]), row.name
    assert stated >= 8


def test_replays_may_be_given_whole_or_by_index() -> None:
    env = {"env_id": "x:y"}
    whole, layers = resolve({**env, "replays": [{"name": "queue", "capacity": 3}]})
    assert whole.replays == (QueueSettings(capacity=3),)
    assert layers["replays.0.capacity"] == "command line"
    assert layers["replays.0.fraction"] == "default"
    one, _ = resolve({**env, "replays": {"0": {"capacity": "2"}}})
    assert one.replays == (QueueSettings(capacity=2),)
    added = merge(TrainConfig, [_typed({"replays": {"1": {"fraction": "0.5"}}})])[0]
    assert [replay.fraction for replay in added.replays] == [1.0, 0.5]


def _typed(tree: dict[str, Any]) -> Any:
    from gossamer.config.merging import Layer

    return Layer("command line", tree, typed=True)


def values_for(annotation: Any) -> st.SearchStrategy[Any]:
    """Values that a setting may hold."""
    if kinds := members(annotation):
        one = st.one_of([sections(kind) for kind in kinds])
        if is_mapping(annotation):
            return st.dictionaries(st.from_regex(r"[\w/ ]+", fullmatch=True), one, max_size=3)
        return st.lists(one, min_size=1, max_size=3).map(tuple) if is_list(annotation) else one
    if len(kinds_of(annotation)) > 1:
        return st.one_of([values_for(kind) for kind in kinds_of(annotation)])
    base, meta = bare(annotation)
    if typing.get_origin(base) is typing.Literal:
        return st.sampled_from(typing.get_args(base))
    if is_list(annotation):
        return st.lists(values_for(typing.get_args(base)[0]), min_size=1, max_size=3).map(tuple)
    if meta.pattern:
        return st.just("my_parts:Wide")
    low, high = meta.gt if meta.ge is None else meta.ge, meta.lt if meta.le is None else meta.le
    ends = {"exclude_min": meta.ge is None, "exclude_max": meta.le is None}
    return {
        int: lambda: st.integers(low, high),
        float: lambda: st.floats(low, high, **ends),
        bool: st.booleans,
        str: lambda: st.text(max_size=20),
        type(None): st.none,
    }[base]()


def sections(kind: type) -> st.SearchStrategy[Any]:
    fields = {name: values_for(f.annotation) for name, f in fields_of(kind).items()}
    return st.builds(kind, **fields)


@settings(max_examples=40, deadline=None)
@given(sections(TrainConfig))
def test_a_config_survives_json_and_what_show_config_prints_is_a_settings_file(
    config: TrainConfig,
) -> None:
    import tomllib

    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    layers = {name: "default" for name, _ in flatten(to_dict(config))}
    assert from_dict(tomllib.loads(show_config(config, layers))) == config


def test_every_printed_name_can_be_set() -> None:
    for name, _ in flatten(to_dict(make_config("CartPole-v1"))):
        assert find_annotation(TrainConfig, name) is not None, name


def test_from_dict_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match="did you mean seed"):
        from_dict({"sead": 1})
    newer = r"^saved settings: patience_minutes_for_x is not a setting; if a newer version of gossamer has saved the run"
    with pytest.raises(ConfigError, match=newer):
        from_dict({"patience_minutes_for_x": 1})


def test_a_config_that_was_changed_in_python_is_read_as_settings_are(tmp_path: Path) -> None:
    made = make_config("CartPole-v1", {"run_folder": str(tmp_path), "seed": 3, "lag": "0"})
    policy = replace(made.policy, hidden_sizes=32)
    given: dict[str, Any] = {"run_folder": tmp_path, "seed": np.int64(3), "lag": 0, "num_envs": 8.0}
    read = as_read(replace(made, optimizer={"learning_rate": 1e-3}, policy=policy, **given))
    wanted = {"optimizer": {"learning_rate": [1e-3]}, "policy": {"hidden_sizes": [32]}}
    settings = {name: to_dict(made)[name] for name in given}
    assert repr(read) == repr(make_config("CartPole-v1", {**settings, **wanted}))
    for wrong, says in (
        ({"env_id": None}, "env_id is null; it must be text"),
        ({"replays": QueueSettings()}, r"replays\.name names no entry"),
    ):
        with pytest.raises(ConfigError, match=says):
            as_read(replace(made, **wrong))


def test_make_config_is_what_train_would_use() -> None:
    config = make_config("CartPole-v1", {"num_envs": 8, "algorithm": {"name": "ppo"}})
    assert config.algorithm.name == "ppo"
    assert (config.num_envs, config.checkpoint_every_seconds) == (8, 30.0)
    assert config.optimizer.learning_rate == (
        suite_layer("classic").settings["optimizer"]["learning_rate"],
    )
    assert make_config("PongNoFrameskip-v4", presets=["debug"]).total_env_steps == 4000
    assert make_config(presets=["pong"]).env_id == "PongNoFrameskip-v4"
    with pytest.raises(ConfigError, match="no environment given"):
        make_config(presets=["debug"])
