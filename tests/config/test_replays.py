"""What batches are made of, as it is written: lists, ratios, another platform's words, and mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from gossamer.build.replays import Shares, share_out
from gossamer.config import TrainConfig, make_config, parse_train, resolve
from gossamer.errors import ConfigError
from gossamer.replay.selectors.attentive import AttentiveSettings
from gossamer.replay.selectors.elite import EliteSettings
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


def test_the_elite_platforms_list_is_read_as_it_stands() -> None:
    config = typed(
        "--replays",
        '[{"type": "queue", "capacity": 1, "sample_ratio": 0.5},'
        ' {"type": "standard", "capacity": 1000, "sample_ratio": 0.25},'
        ' {"type": "custom", "capacity": 500, "sample_ratio": 0.125, "dist_function": "cos_dist",'
        '  "sample_strategy": "attentive_sampling", "lambda_batch_multiplier": 3,'
        '  "alfa_annealing_factor": 1.5, "elite_sampling_strategy": "strategy4"},'
        ' {"type": "custom", "capacity": 200, "sample_ratio": 0.125, "dist_function": "ln_norm", "p": 1,'
        '  "insert_strategy": "elite_insertion", "elite_batch_size": 8}]',
    )
    assert config.replays == (
        QueueSettings(fraction=0.5, capacity=1),
        UniformSettings(fraction=0.25, capacity=1000),
        AttentiveSettings(
            fraction=0.125,
            capacity=500,
            distance="cosine",
            candidate_multiplier=3.0,
            anneal_updates=15_000,
            strategy="stratified_least_used",
        ),
        EliteSettings(
            fraction=0.125,
            capacity=200,
            distance="lp",
            norm_order=1.0,
            insert="elite",
            elite_batch=8,
            candidate_multiplier=1.0,
            anneal_updates=10_000,
        ),
    )
    assert share_out(config, 16) == Shares(16, (8, 4, 4))


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
        ({"replays": [QUEUE, {"type": ["custom"]}]}, "type is ['custom']"),
        ({"replays": [QUEUE, {"type": "custom", "alfa_annealing_factor": "x"}]}, "is 'x'"),
        (
            {"replay_ratio": 1.0, "algorithm.name": "ppo"},
            "algorithm:vtrace, algorithm:impact, algorithm:laser",
        ),
        ({"replay_ratio": 1.0, "algorithm.name": "a2c"}, "algorithm:vtrace"),
        ({"replays": [QUEUE, {"type": "normal"}]}, "type is 'normal'; it must be one of queue"),
        ({"replays": [QUEUE, {"type": "custom", "distance": "lp"}]}, "'distance' beside a type"),
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


def test_what_is_near_is_attended_to_unless_the_platform_means_its_own_default() -> None:
    queue = '{"type": "queue", "capacity": 1, "sample_ratio": 0.5}'
    theirs = '{"type": "custom", "capacity": 500, "sample_ratio": 0.5, "dist_function": "ln_norm", "sample_strategy": "attentive_sampling"}'
    (_, replay) = typed("--replays", f"[{queue}, {theirs}]").replays
    assert isinstance(replay, AttentiveSettings)
    assert replay.strategy == "least_used"
    assert AttentiveSettings().strategy == "nearest"


def test_what_a_platforms_list_gives_for_nothing_is_not_used_or_refused() -> None:
    queue = '{"type": "queue", "capacity": 1, "sample_ratio": 0.5}'
    custom = '{"type": "custom", "capacity": 500, "sample_ratio": 0.5, "dist_function": "ln_norm", "lambda_batch_multiplier": 6}'
    (_, replay) = typed("--replays", f"[{queue}, {custom}]").replays
    assert isinstance(replay, EliteSettings)
    assert replay.candidate_multiplier == 1.0, "it had no way to sample but uniformly"
    standard = '{"type": "standard", "capacity": 500, "sample_ratio": 0.5, "sample_strategy": "elite_sampling"}'
    with pytest.raises(ConfigError, match="'sample_strategy' beside type standard, which is for"):
        typed("--replays", f"[{queue}, {standard}]")
