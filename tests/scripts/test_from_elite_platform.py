"""Experiments of the elite replay platform become settings of ours, or a sweep, and say what was left out."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from script_runs import run_script

from gossamer import cli
from gossamer.config import TrainConfig, parse_train, resolve, to_dict
from gossamer.sweep.file import Sweep, read_sweep

ROOT = Path(__file__).parents[2]
REPLAYS = (
    '[{"type": "custom", "capacity": 1000, "sample_ratio": 0.5, "dist_function": "ln_norm", "sample_strategy": '
    '"elite_sampling", "lambda_batch_multiplier": 6, "alfa_annealing_factor": 2.0}, '
    '{"type": "queue", "capacity": 1, "sample_ratio": 0.5}]'
)


def translated(folder: Path, content: Any, *words: str) -> tuple[Path, str]:
    """Return the file that the script writes, and what it says to type."""
    (folder / "theirs.json").write_text(json.dumps(content))
    made = folder / "ours.toml"
    done = run_script("from_elite_platform.py", folder / "theirs.json", "--output", made, *words)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return made, done.stderr


def settings(folder: Path, flags: Any) -> TrainConfig:
    """Return the settings that one object of flags becomes."""
    made, told = translated(folder, flags)
    assert told == f"type: gossamer train --config {made}\n"
    return resolve(configs=[str(made)])[0]


def sweep_of(folder: Path, content: Any, *words: str) -> Sweep:
    """Return the sweep that a list, or a random search, becomes."""
    made, told = translated(folder, content, *words)
    assert told == f"type: gossamer sweep {made}\n"
    return read_sweep(str(made))


def refusal(folder: Path, content: Any, *words: str) -> str:
    """Return the one line in which the script refuses."""
    (folder / "theirs.json").write_text(json.dumps(content))
    done = run_script("from_elite_platform.py", folder / "theirs.json", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_the_published_command_is_that_of_the_page(tmp_path: Path) -> None:
    """docs/coming-from/papers.md writes the same out by hand."""
    flags = {
        "env": "PongNoFrameskip-v4",
        "environment_max_steps": 1_000_000,
        "replay_parameters": REPLAYS,
    }
    page = (ROOT / "docs" / "coming-from" / "papers.md").read_text().replace("\\\n", " ")
    (line,) = [
        x for x in page.splitlines() if x.startswith("gossamer train") and "--num-envs 50" in x
    ]
    asked = parse_train(shlex.split(line)[2:])
    assert to_dict(settings(tmp_path, [flags])) == to_dict(resolve(asked.settings)[0])


def test_a_list_is_tried_in_turn(tmp_path: Path) -> None:
    experiments = [
        {"env": "PongNoFrameskip-v4", "batch_size": 10, "r_f_steps": 50, "lr_scheduler_steps": 70_000,
         "multiprocessing_backend": "python_native", "replay_parameters": REPLAYS},
        {"env": "PongNoFrameskip-v4", "lr": 4e-4, "use_kl_mask": True, "optimizer": "adam",
         "clip_rewards": False, "frame_scale_resolution": "84,84", "c-const": 2.0,
         "training_fill_in_factor": 0.5, "use_policy_cloning_loss": "False"},
    ]  # fmt: skip
    sweep = sweep_of(tmp_path, experiments)
    assert (sweep.options.method, sweep.trials) == ("list", 2)
    comments = [x for x in (tmp_path / "ours.toml").read_text().splitlines() if x.startswith("#")]
    assert any("Left out" in x and "multiprocessing_backend" in x for x in comments)
    assert any("The learning rate ends with the run here" in x for x in comments)
    one, two = (sweep.preset(sweep.choice(i))[1] for i in range(2))
    assert (one.num_envs, one.unroll_length) == (5, 50)
    # By its name there; 2.0 times as many updates as the scheduler has steps.
    assert to_dict(one)["replays"][0]["anneal_updates"] == 140_000
    assert to_dict(one)["algorithm"]["name"] == "vtrace"
    found = to_dict(two)
    assert found["algorithm"]["name"] == "laser"
    assert found["algorithm"]["reward_clip"] == "none"
    assert found["algorithm"]["clip_pg_rho"] == 2.0
    assert found["algorithm"]["policy_cloning_cost"] == 0.0
    assert found["optimizer"]["name"] == "adam"
    assert found["env"]["size"] == 84
    assert found["replays"][1]["learn_start"] == 0.5 * 1000 * 10


def test_games_and_seeds_of_a_list_may_differ(tmp_path: Path) -> None:
    games = ["PongNoFrameskip-v4", "BreakoutNoFrameskip-v4"]
    sweep = sweep_of(tmp_path, [{"env": x, "seed": y} for x in games for y in (3, 4)])
    configs = [sweep.preset(sweep.choice(i))[1] for i in range(4)]
    assert [(x.env_id, x.seed) for x in configs] == [(x, y) for x in games for y in (3, 4)]


def test_replays_are_those_that_the_platform_had(tmp_path: Path) -> None:
    replays = [
        {"type": "queue", "capacity": 1, "sample_ratio": 0.5},
        {"type": "standard", "capacity": 1000, "sample_ratio": 0.25},
        {"type": "custom", "capacity": 500, "sample_ratio": 0.125, "dist_function": "cos_dist",
         "sample_strategy": "attentive_sampling", "lambda_batch_multiplier": 3,
         "alfa_annealing_factor": 1.5, "elite_sampling_strategy": "strategy4"},
        {"type": "custom", "capacity": 200, "sample_ratio": 0.125, "dist_function": "ln_norm", "p": 1,
         "insert_strategy": "elite_insertion", "elite_batch_size": 8, "lambda_batch_multiplier": 6},
    ]  # fmt: skip
    flags = {"env": "PongNoFrameskip-v4", "batch_size": 16, "replay_parameters": replays}
    queue, uniform, attentive, elite = to_dict(settings(tmp_path, flags))["replays"]
    assert queue == {"name": "queue", "fraction": 0.5, "capacity": 1}
    assert (uniform["name"], uniform["fraction"], uniform["capacity"]) == ("uniform", 0.25, 1000)

    def has(entry: dict[str, Any], **expected: Any) -> bool:
        return {x: entry[x] for x in expected} == expected

    assert has(
        attentive,
        name="attentive",
        capacity=500,
        distance="cosine",
        candidate_multiplier=3.0,
        anneal_updates=15_000,
        strategy="stratified_least_used",
    )
    # It had no way to sample but uniformly, whatever the multiplier was.
    assert has(
        elite,
        name="elite",
        distance="lp",
        norm_order=1.0,
        insert="elite",
        elite_batch=8,
        candidate_multiplier=1.0,
        anneal_updates=10_000,
        strategy="least_used",
    )


def test_of_a_random_search_as_many_are_drawn_as_are_asked_for(tmp_path: Path) -> None:
    flags = {"env": "PongNoFrameskip-v4", "lr": [1e-4, 1e-3], "gamma": [0.9, 0.99]}
    assert "a random search over lr, gamma needs a number of trials: --trials 20" in refusal(
        tmp_path, flags
    )
    sweep = sweep_of(tmp_path, flags, "--trials", "5")
    assert sweep.trials == 5
    assert "5 draws of a random search over lr, gamma" in (tmp_path / "ours.toml").read_text()
    names = {"optimizer.learning_rate", "optimizer.schedule_end", "algorithm.discount"}
    assert set(sweep.space) == names
    for i in range(5):
        config = sweep.preset(sweep.choice(i))[1]
        assert config.optimizer.learning_rate[0] in (1e-4, 1e-3)
        assert config.optimizer.schedule_end == 1e-5 / config.optimizer.learning_rate[0]
        assert config.algorithm.discount in (0.9, 0.99)
    assert "holds no random search" in refusal(tmp_path, [flags | {"lr": 1}], "--trials", "2")


def test_without_a_file_to_write_it_is_printed(tmp_path: Path) -> None:
    made, _ = translated(tmp_path, {"env": "PongNoFrameskip-v4"})
    done = run_script("from_elite_platform.py", tmp_path / "theirs.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, made.read_text(), "")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"learning_rate": 1}, "learning_rate is not a flag of the elite platform"),
        ({"lr": "high"}, "lr is \"high\"; it must be a number"),
        ({"lr": float("inf")}, "lr is Infinity; it must be a number"),
        ({"replay_parameters": [{"type": "queue", "sample_ratio": "x"}]}, "sample_ratio is \"x\"; it must be a number"),
        ({"op_mode": "test"}, "what is written here trains"),
        ({"optimizer": "sgd"}, "it must be one of rmsprop, adam"),
        ({"batch_size": 9}, "no whole number of unrolls"),
        ({"replay_parameters": "[1"}, "not a list of replays"),
        ({"replay_parameters": "__import__('os')"}, "not a list of replays"),
        ({"replay_parameters": [{"type": "stack"}]}, "it must be one of queue, standard, custom"),
        ({"replay_parameters": [{"type": ["custom"]}]}, "type is [\"custom\"]"),
        ({"replay_parameters": [{"type": "custom", "distance": "lp"}]}, "'distance' beside a type"),
        ({"replay_parameters": [{"type": "custom", "alfa_annealing_factor": "x"}]}, "alfa_annealing_factor is \"x\""),
        ({"replay_parameters": [{"type": "standard", "sample_strategy": "elite_sampling"}]},
         "'sample_strategy' beside type standard, which is for type custom alone"),
        ({"render": True, "gamma": 3.0}, "experiment 1: algorithm.discount is 3.0"),
        ({"policy_gradient_loss_weight": 2}, "here it is 1"),
        ({"frame_scale_resolution": "84,80"}, "must be a square"),
    ],
)  # fmt: skip
def test_a_mistake_is_told(flags: dict[str, Any], told: str, tmp_path: Path) -> None:
    assert re.search(re.escape(told), refusal(tmp_path, [{"env": "PongNoFrameskip-v4", **flags}]))


@pytest.mark.parametrize("content", [[], {}, 3, ["x"], None])
def test_what_holds_no_experiments_is_refused(content: Any, tmp_path: Path) -> None:
    assert "must hold a list of experiments" in refusal(tmp_path, content)


@pytest.mark.parametrize(
    "content",
    [
        [{"env": "PongNoFrameskip-v4"}],
        {"--env": "PongNoFrameskip-v4", "--lr": [1e-4, 1e-3]},
        {"lr": 1e-4, "r_f_steps": 10},
        {"environment-max-steps": 1000},
    ],
)
def test_who_gives_such_a_file_to_gossamer_is_told_the_script(
    content: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "multi train.json"
    path.write_text(json.dumps(content))
    command = f"python scripts/from_elite_platform.py '{path}' --output 'multi train.toml'"
    for words in (["sweep", str(path)], ["train", "--config", str(path)]):
        assert cli.main(words) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert "elite replay platform" in told.err
        assert command in told.err
        assert told.err.count("\n") == 1
    assert [x.name for x in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"num_envs": 4, "env": {"frame_skip": 4}}, "no environment given"),
        ([{"num_envs": 4}], "must hold an object of settings"),
        ([1], "must hold an object of settings"),
    ],
)
def test_settings_of_ours_are_not_taken_for_the_platforms(
    content: Any, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ours.json").write_text(json.dumps(content))
    assert cli.main(["train", "--config", str(tmp_path / "ours.json")]) == 2
    assert told in capsys.readouterr().err
