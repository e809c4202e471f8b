"""Experiments of the elite replay platform, as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gossamer.config import parse_train, resolve, to_dict
from gossamer.errors import ConfigError
from gossamer.sweep.file import read_sweep
from gossamer.sweep.space import Choices

ROOT = Path(__file__).parents[2]
REPLAYS = (
    '[{"type": "custom", "capacity": 1000, "sample_ratio": 0.5, "dist_function": "ln_norm", "sample_strategy": '
    '"elite_sampling", "lambda_batch_multiplier": 6, "alfa_annealing_factor": 2.0}, '
    '{"type": "queue", "capacity": 1, "sample_ratio": 0.5}]'
)


def write(folder: Path, content: Any) -> str:
    path = folder / "multi_train.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_the_published_command_is_that_of_the_page(tmp_path: Path) -> None:
    """docs/coming-from.md writes the same out by hand."""
    flags = {
        "env": "PongNoFrameskip-v4",
        "environment_max_steps": 1_000_000,
        "replay_parameters": REPLAYS,
    }
    sweep = read_sweep(write(tmp_path, [flags]))
    page = (ROOT / "docs" / "coming-from.md").read_text().replace("\\\n", " ")
    import shlex

    (line,) = [
        x for x in page.splitlines() if x.startswith("gossamer train") and "--num-envs 50" in x
    ]
    asked = parse_train(shlex.split(line)[2:])
    assert to_dict(sweep.preset(sweep.experiments[0])[1]) == to_dict(resolve(asked.settings)[0])


def test_a_list_is_tried_in_turn(tmp_path: Path) -> None:
    sweep = read_sweep(
        write(
            tmp_path,
            [
                {"env": "PongNoFrameskip-v4", "batch_size": 10, "r_f_steps": 50, "lr_scheduler_steps": 70_000,
                 "multiprocessing_backend": "python_native", "replay_parameters": REPLAYS},
                {"env": "PongNoFrameskip-v4", "lr": 4e-4, "use_kl_mask": True, "optimizer": "adam",
                 "clip_rewards": False, "frame_scale_resolution": "84,84", "c-const": 2.0,
                 "training_fill_in_factor": 0.5, "use_policy_cloning_loss": "False"},
            ],
        )
    )  # fmt: skip
    assert (sweep.method, sweep.trials) == ("list", 2)
    assert any("multiprocessing_backend" in x for x in sweep.notes)
    one, two = (sweep.preset(x)[1] for x in sweep.experiments)
    assert (one.num_envs, one.unroll_length) == (5, 50)
    # By its name there; 2.0 times as many updates as the scheduler has steps.
    assert to_dict(one)["replays"][0]["anneal_updates"] == 140_000
    found = to_dict(two)
    assert found["algorithm"]["name"] == "laser"
    assert found["algorithm"]["reward_clip"] == "none"
    assert found["algorithm"]["clip_pg_rho"] == 2.0
    assert found["algorithm"]["policy_cloning_cost"] == 0.0
    assert found["optimizer"]["name"] == "adam"
    assert found["env"]["size"] == 84
    assert found["replays"][1]["learn_start"] == 0.5 * 1000 * 10


def test_lists_of_flags_are_a_random_search(tmp_path: Path) -> None:
    path = write(tmp_path, {"env": "PongNoFrameskip-v4", "lr": [1e-4, 1e-3], "gamma": [0.9, 0.99]})
    with pytest.raises(ConfigError, match="--trials 20"):
        read_sweep(path)
    sweep = read_sweep(path, trials=5)
    assert (sweep.method, sweep.trials) == ("random", 5)
    assert sweep.space == {"lr": Choices((1e-4, 1e-3)), "gamma": Choices((0.9, 0.99))}
    config = sweep.preset({"lr": 1e-3, "gamma": 0.9})[1]
    assert (config.optimizer.learning_rate, config.algorithm.discount) == ((1e-3,), 0.9)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"learning_rate": 1}, "learning_rate is not a flag of the elite platform"),
        ({"lr": "high"}, "lr is \"high\"; it must be a number"),
        ({"op_mode": "test"}, "a sweep trains"),
        ({"optimizer": "sgd"}, "it must be one of rmsprop, adam"),
        ({"batch_size": 9}, "no whole number of unrolls"),
        ({"replay_parameters": "[1"}, "not a list of replays"),
        ({"replay_parameters": "__import__('os')"}, "not a list of replays"),
        ({"replay_parameters": [{"type": "stack"}]}, "it must be one of queue, standard, custom"),
        ({"render": True, "gamma": 3.0}, "experiment 1: algorithm.discount is 3.0"),
        ({"policy_gradient_loss_weight": 2}, "here it is 1"),
        ({"frame_scale_resolution": "84,80"}, "must be a square"),
    ],
)  # fmt: skip
def test_a_mistake_is_told(flags: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        read_sweep(write(tmp_path, [{"env": "PongNoFrameskip-v4", **flags}]))


@pytest.mark.parametrize("content", [[], {}, 3, ["x"], None])
def test_what_holds_no_experiments_is_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must hold a list of experiments"):
        read_sweep(write(tmp_path, content))
