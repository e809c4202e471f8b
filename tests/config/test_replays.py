"""What batches are made of, as it is written: lists, ratios, and mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from gossamer.build.replays import Shares, share_out
from gossamer.config import TrainConfig, make_config, parse_train, resolve
from gossamer.errors import ConfigError
from gossamer.replay.selectors.attentive import AttentiveSettings
from gossamer.replay.selectors.uniform import UniformSettings
from gossamer.replay.settings import QueueSettings


def given(**settings: Any) -> TrainConfig:
    return make_config("CartPole-v1", {"algorithm.name": "laser", **settings})


def typed(*words: str) -> TrainConfig:
    asked = parse_train(["CartPole-v1", "algorithm:laser", *words])
    return resolve(asked.settings, configs=asked.config)[0]


def test_a_ratio_is_short_for_a_queue_and_a_uniform_replay() -> None:
    config = typed("--replay-ratio", "7")
    assert config.replays == (QueueSettings(fraction=0.125), UniformSettings(fraction=0.875))
    assert share_out(config, 4) == Shares(4, (28,))


QUEUE = {"name": "queue", "fraction": 0.5}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"replays": [QUEUE, {"name": "uniform", "fraction": 0.4}]},
            "sum to 0.9; they must sum to 1",
        ),
        ({"replays": [{"name": "uniform", "fraction": 1.0}]}, "holds 0 queues"),
        ({"replays": [QUEUE, QUEUE]}, "holds 2 queues"),
        (
            {"replays": [QUEUE, {"name": "uniform"}], "replay_ratio": 1.0},
            "fractions as well; leave one of",
        ),
        (
            {"replays": [QUEUE, {"name": "elite", "candidate_multiplier": 0.5}]},
            "replays.1.candidate_multiplier is 0.5; it must be in [1, 10000]",
        ),
        ({"replays": [QUEUE, {"name": "uniform", "capacity": 0}]}, "replays.1.capacity is 0"),
        ({"replays": [QUEUE, {"name": "uniform", "insert": "elite"}]}, "insert"),
        ({"replays": [QUEUE, {"name": "circular", "insert": "elite"}]}, "insert"),
        (
            {"replay_ratio": 1.0, "prefetch_batches": 65},
            "prefetch_batches is 65; it must be in [0, 64]",
        ),
        (
            {"replay_ratio": 1.0, "algorithm.name": "ppo"},
            "algorithm:vtrace, algorithm:impact, algorithm:laser",
        ),
        ({"replay_ratio": 1.0, "algorithm.name": "a2c"}, "algorithm:vtrace"),
        ({"algorithm.max_kl_nats": 0.0}, "max_kl_nats is 0"),
        ({"replay_burn_in": 2, "policy.core": "gru"}, "nothing is replayed: --replay-ratio 1"),
        ({"replay_burn_in": 2, "replay_ratio": 1.0}, "no recurrent state: --policy.core lstm"),
        (
            {"replay_burn_in": 16, "replay_ratio": 1.0, "policy.core": "gru", "unroll_length": 16},
            "replay_burn_in is 16, but unroll_length is 16 and some rows must be left to learn",
        ),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        given(**settings)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fractions", "num_envs", "says"),
    [
        ((0.75, 0.25), 4, "3 (batches of 4), 6 (batches of 8)"),
        ((0.3, 0.5, 0.2), 16, "15 (batches of 50)"),
        ((0.70710678, 0.29289322), 16, "use simpler fractions"),
    ],
)
def test_parts_of_columns_are_refused_with_what_would_do(
    fractions: tuple[float, ...], num_envs: int, says: str
) -> None:
    replays = [{"name": "queue", "fraction": fractions[0]}]
    replays += [{"name": "uniform", "fraction": x} for x in fractions[1:]]
    with pytest.raises(ConfigError) as caught:
        share_out(given(replays=replays), num_envs)
    assert says in str(caught.value)


def test_what_is_near_is_attended_to() -> None:
    assert AttentiveSettings().strategy == "nearest"


def test_words_of_another_platform_are_told_ours() -> None:
    theirs = [{"type": "queue", "sample_ratio": 0.5}, {"type": "standard", "sample_ratio": 0.5}]
    with pytest.raises(
        ConfigError, match=r"replays\.0\.type is not a setting; did you mean replays\.0\.name"
    ):
        given(replays=theirs)
    ours = [{"name": "queue", "sample_ratio": 0.5}, {"name": "uniform", "fraction": 0.5}]
    with pytest.raises(ConfigError, match=r"did you mean replays\.0\.fraction"):
        given(replays=ours)
