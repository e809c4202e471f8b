"""What batches are made of, as it is written: lists, ratios, another platform's words, and mistakes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gossamer import batches
from gossamer.batches import Shares, make_block, refuse_replays, share_out
from gossamer.build import build_policy, make_plan
from gossamer.config import TrainConfig, make_config, parse_train, resolve
from gossamer.envs.registry import read_spec
from gossamer.replay.settings import (
    AttentiveSettings,
    EliteSettings,
    QueueSettings,
    UniformSettings,
)
from gossamer.room import refuse_what_memory_cannot_hold
from gossamer.types import ConfigError


def given(**settings: Any) -> TrainConfig:
    return make_config("CartPole-v1", {"algorithm.name": "laser", **settings})


def typed(*words: str) -> TrainConfig:
    asked = parse_train(["CartPole-v1", "algorithm:laser", *words])
    return resolve(asked.settings, configs=asked.configs)[0]


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
            "fractions too; give one of",
        ),
        (
            {"replays": [QUEUE, {"name": "elite", "candidate_multiplier": 0.5}]},
            "replays.1.candidate_multiplier is 0.5; it must be >= 1",
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
            "algorithm:vtrace, algorithm:laser, algorithm:impact",
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


PONG = {"algorithm.name": "laser", "num_envs": 8, "unroll_length": 16}


def told(**settings: Any) -> list[str]:
    config = make_config("PongNoFrameskip-v4", {**PONG, **settings})
    spec = read_spec(config.env_id, config.env, 0)
    return refuse_what_memory_cannot_hold(config, spec, make_plan(config, spec))


def mix(**settings: Any) -> list[dict[str, Any]]:
    return [QUEUE, {"name": "uniform", "fraction": 0.5, **settings}]


def test_how_large_a_replay_is_is_told() -> None:
    (line,) = told(replays=mix(capacity=1000))
    assert line == "replay uniform: 1,000 columns of 16 env steps, 0.14 GB"
    (line,) = told(replays=mix(capacity=1000), num_learners=3, **{"topology.name": "single"})
    assert line.endswith("16 env steps for each of 3 learners, 0.43 GB in all")


def test_an_algorithm_that_lives_on_replay_says_when_it_has_none() -> None:
    (line,) = told()
    assert line == "nothing is replayed, which is what laser is for: --replay-ratio 3"
    assert told(**{"algorithm.name": "vtrace"}) == []
    (line,) = told(**{"algorithm.name": "vtrace", "algorithm.policy_cloning_cost": 0.01})
    assert line.startswith(
        "nothing is replayed, which is what algorithm.policy_cloning_cost is for:"
    )
    (line,) = told(**{"algorithm.name": "vtrace", "checkpoint_replay": True})
    assert line.startswith("nothing is replayed, which is what checkpoint_replay is for: --replay-")
    (line,) = told(**{"algorithm.name": "ppo", "checkpoint_replay": True})
    assert line == "nothing is replayed, which is what checkpoint_replay is for"


def test_a_run_that_ends_before_anything_is_replayed_says_so() -> None:
    # 8 columns of 16 steps a batch: three batches hold the 24 columns that a fourth one wants
    ratio = {"replay_ratio": 3.0, "total_env_steps": 3 * 8 * 16}
    _, line = told(**ratio)
    assert (
        line
        == "nothing will be replayed: that begins after 384 env steps, and the run ends after 384"
    )
    (_,) = told(**{**ratio, "total_env_steps": 385})
    _, line = told(**{**ratio, "total_env_steps": 4 * 8 * 16}, prefetch_batches=2)
    assert "begins after 512 env steps" in line
    _, line = told(replays=mix(learn_start=10**6), total_env_steps=10**6)
    assert line.startswith("nothing will be replayed: that begins after 1,000,064 env steps, and")
    several = {"num_learners": 2, "topology.name": "single"}
    _, line = told(**{**ratio, "total_env_steps": 700}, **several)
    assert "begins after 768 env steps" in line
    shared = {
        "replays": [{**QUEUE, "fraction": 0.25}, {**mix()[1], "fraction": 0.75, "shared": True}]
    }
    (_,) = told(**shared, **several, total_env_steps=700)


def test_what_there_is_no_room_for_is_refused(tmp_path: Path) -> None:
    for settings, says in (
        ({"capacity": 15}, "room for 15 columns, and a batch has 16: --replays.1.capacity 16"),
        ({"capacity_steps": 15 * 16}, "--replays.1.capacity-steps 256"),
        ({"capacity_steps": 10**10}, "of memory, and"),
        ({"capacity_steps": 10**10}, "--replays.1.capacity-steps "),
        ({"path": str(tmp_path / "nowhere")}, "which is no folder; make it first: mkdir -p"),
        ({"path": "/proc"}, "no file can be made (No such file or directory); choose another"),
        ({"path": str(tmp_path), "capacity_steps": 10**11}, f"GB in {tmp_path}, and"),
    ):
        with pytest.raises(ConfigError) as caught:
            told(replays=mix(**settings))
        assert says in str(caught.value)
    (line,) = told(replays=mix(path=str(tmp_path), capacity=1000))
    assert line.endswith(f"0.14 GB in {tmp_path}")


def test_what_fits_is_suggested_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_free", lambda *_: 2 * 10**8)
    for settings, says in (
        ({"capacity": 10**7}, r"--replays.1.capacity \d{3,4}$"),
        ({"capacity_steps": 10**8}, r"--replays.1.capacity-steps \d{4,5}$"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            told(replays=mix(**settings))
        name, value = str(caught.value).split("--replays.1.")[1].split()
        told(replays=mix(**{name.replace("-", "_"): int(value)}))
    monkeypatch.setattr(batches, "_free", lambda *_: 10**5)
    with pytest.raises(ConfigError, match=r"--replays.1.capacity 16$"):
        told(replays=mix(capacity=1000))


def test_elite_replays_need_features() -> None:
    for name in ("elite", "attentive"):
        config = make_config("CartPole-v1", {
            "algorithm.name": "vtrace", "num_envs": 8, "policy.hidden_sizes": [],
            "replays": [QUEUE, {"name": name, "fraction": 0.5}],
        })  # fmt: skip
        spec = read_spec(config.env_id, config.env, 0)
        with pytest.raises(
            ConfigError, match=f"replays.1 is {name}, .*--policy.hidden-sizes 64 64"
        ):
            refuse_replays(config, spec, build_policy(config, spec), num_envs=8)
        deep = replace(config, policy=replace(config.policy, core="gru"))
        assert refuse_replays(deep, spec, build_policy(deep, spec), num_envs=8)


def test_learners_and_replays_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone has room in memory; both have not."""
    settings = {"num_envs": 8, "num_learners": 3, "topology.name": "single"}
    (line,) = told(replays=mix(capacity=100), **settings)
    assert line.endswith("42.5 MB in all")
    monkeypatch.setattr(batches, "free_memory", lambda: 10**8)
    with pytest.raises(
        ConfigError, match=r"what learns from them take 0\.[2-9] GB of memory, and 0\.1"
    ):
        told(replays=mix(capacity=100), **settings)


def test_folders_on_one_disk_share_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(batches, "_free", lambda path: 2 * 10**8 if path else 10**10)
    entries = [
        {"name": "uniform", "fraction": 0.25, "capacity": 1000, "path": str(tmp_path / name)}
        for name in ("a", "b")
    ]
    for n in (0, 1):
        assert told(replays=[QUEUE, {**entries[n], "fraction": 0.5}], num_envs=8)
    with pytest.raises(ConfigError, match=r"take 0.3 GB in .*, and 0.2 GB are free"):
        told(replays=[QUEUE, *entries], num_envs=8)


def test_what_a_checkpoint_puts_back_needs_room_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded is gone before copies are made; what is yet to be loaded needs as much as those."""
    config = make_config("PongNoFrameskip-v4", {**PONG, "replays": mix(capacity=1000)})
    spec = read_spec(config.env_id, config.env, 0)
    saving, policy = replace(config, checkpoint_replay=True), build_policy(config, spec)
    size = 14 * 10**7

    def check(made: TrainConfig, free: int, **known: int) -> None:
        monkeypatch.setattr(batches, "_free", lambda *_: free)
        refuse_replays(made, spec, policy, num_envs=8, **known)

    enough = 2 * size + 5 * 10**7
    check(saving, enough)
    check(saving, enough - size, loads=size, loaded=size)
    check(saving, enough, loads=size)
    check(config, enough - size)
    check(config, enough, loads=size)
    for made, free, known in (
        (saving, enough - size, {}),
        (config, enough - size, {"loads": size}),
        (config, enough - 2 * size, {"loads": size, "loaded": size}),
    ):
        with pytest.raises(ConfigError, match="GB"):
            check(made, free, **known)


def test_policies_to_measure_with_need_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_free", lambda *_: 35 * 10**7)
    alone: dict[str, Any] = {"num_envs": 1, "algorithm.num_minibatches": 1}
    common = {"prefetch_batches": 30, **alone}
    told(replays=mix(capacity=1000), **common)
    elite = [QUEUE, {"name": "elite", "fraction": 0.5, "capacity": 1000, "insert": "fifo"}]
    told(replays=elite, prefetch_batches=1, **alone)
    with pytest.raises(ConfigError, match="and what learns from them"):
        told(replays=elite, **common)


def test_what_a_ratio_stands_for_has_settings_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_free", lambda *_: 10**8)
    with pytest.raises(ConfigError, match=r"\(path\): --replays\.1\.capacity-steps \d+$") as caught:
        told(replay_ratio=3.0)
    name, value = str(caught.value).split("--")[1].split()
    assert told(replay_ratio=3.0, **{name.replace("-", "_"): int(value)})


def test_copies_for_checkpoints_need_room_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_free", lambda path: 10**10 if path else 10**8)
    on_disk = mix(path=str(tmp_path), capacity=1000)
    told(replays=on_disk)
    with pytest.raises(ConfigError, match="--checkpoint-replay false"):
        told(replays=on_disk, checkpoint_replay=True)
    # Processes may have handed theirs over while the copies before are still being written.
    monkeypatch.setattr(batches, "_free", lambda _: 60 * 10**7)
    two = {"num_learners": 2, "topology.name": "single", "checkpoint_replay": True}
    told(replays=on_disk, **two, placement="inline")
    with pytest.raises(ConfigError, match=r"copies of what replays hold take 0\.6 GB"):
        told(replays=on_disk, **two, placement="local")


def test_batches_that_wait_need_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_free", lambda *_: 3 * 10**8)
    told(replays=mix(capacity=1000))
    with pytest.raises(ConfigError, match="and what learns from them"):
        told(replays=mix(capacity=1000), prefetch_batches=64)


def test_a_replay_on_disk_is_gone_with_its_process(tmp_path: Path) -> None:
    block = make_block(100_000, str(tmp_path))
    block[70_000:70_003] = b"abc"
    assert block[69_999:70_004] == b"\0abc\0"
    assert list(tmp_path.iterdir()) == []


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
