"""Room that replays take: told, refused before anything is made, with what would fit."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sessions import slow

from gossamer.build import preflight as room
from gossamer.build import replays as batches
from gossamer.build.plan import make_plan
from gossamer.build.preflight import refuse_what_memory_cannot_hold
from gossamer.build.replays import (
    kept_replays,
    layout_of,
    make_block,
    refuse_replays,
    replays_on_gpu,
)
from gossamer.build.roles import build_policy
from gossamer.config import TrainConfig, make_config
from gossamer.envs.registry import read_spec
from gossamer.errors import ConfigError, RunFailed
from gossamer.links.stopping import StopSignal
from gossamer.record.checkpoint import Checkpoint
from gossamer.replay.batches import BatchSource
from gossamer.replay.ring import Ring
from gossamer.run.train import train
from gossamer.spec import EnvSpec
from gossamer.system import devices

QUEUE = {"name": "queue", "fraction": 0.5}
PONG = {
    "algorithm.name": "laser",
    "num_envs": 8,
    "unroll_length": 16,
    "policy.last_filters": 64,
}


@functools.cache
def spec_of(env_id: str) -> EnvSpec:
    """Reading it makes an environment."""
    return read_spec(env_id, make_config(env_id).env, 0)


def told(**settings: Any) -> list[str]:
    config = make_config("PongNoFrameskip-v4", {**PONG, **settings})
    spec = spec_of(config.env_id)
    return refuse_what_memory_cannot_hold(config, spec, make_plan(config, spec))


def mix(**settings: Any) -> list[dict[str, Any]]:
    return [QUEUE, {"name": "uniform", "fraction": 0.5, **settings}]


def test_how_large_a_replay_is_is_told() -> None:
    (line,) = told(replays=mix(capacity=1000))
    assert line == "replay uniform: 1,000 columns of 16 rows, 0.14 GB"
    (line,) = told(replays=mix(capacity=1000), num_learners=3, **{"topology.name": "single"})
    assert line.endswith("16 rows for each of 3 learners, 0.43 GB in all")


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
    begins = "little or nothing will be replayed: replaying begins after"
    assert line == f"{begins} 384 rows, and the run ends after 384 env steps"
    (_,) = told(**{**ratio, "total_env_steps": 385})
    _, line = told(**{**ratio, "total_env_steps": 4 * 8 * 16}, prefetch_batches=2)
    assert "begins after 512 rows" in line
    _, line = told(replays=mix(learn_start=10**6), total_env_steps=10**6)
    assert line.startswith(f"{begins} 1,000,064 rows, and")
    several = {"num_learners": 2, "topology.name": "single"}
    _, line = told(**{**ratio, "total_env_steps": 700}, **several)
    assert "begins after 768 rows" in line
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
        ({"path": __file__}, "which is a file; choose a folder"),
        ({"path": "/proc"}, "no file can be made (No such file or directory); choose another"),
        ({"path": str(tmp_path), "capacity_steps": 10**11}, f"GB in {tmp_path}, and"),
    ):
        with pytest.raises(ConfigError) as caught:
            told(replays=mix(**settings))
        assert says in str(caught.value)
    (line,) = told(replays=mix(path=str(tmp_path), capacity=1000))
    assert line.endswith(f"0.14 GB in {tmp_path}")


def on_a_gpu(others: int = 0, **settings: Any) -> list[str]:
    """What is told of a run whose learners have GPUs."""
    config = make_config("PongNoFrameskip-v4", {**PONG, **settings})
    spec = spec_of(config.env_id)
    policy = build_policy(config, spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "memory_of", lambda _: 2**30)
        return refuse_replays(config, policy, num_envs=8, device="cuda", others=others)


def test_a_replay_on_a_gpu_is_refused_where_it_cannot_be(tmp_path: Path) -> None:
    several = {"num_learners": 2, "topology.name": "single"}
    for settings, more, says in (
        ({"path": str(tmp_path)}, {}, "in a file; leave out one of them"),
        ({"shared": True}, several, "use --replays.1.device cpu, or --replays.1.shared false"),
    ):
        with pytest.raises(ConfigError, match=r"replays\.1\.device is cuda, but") as caught:
            on_a_gpu(replays=mix(device="cuda", **settings), **more)
        assert str(caught.value).endswith(says)
    with pytest.raises(ConfigError, match=r"computes on a CPU; use --replays.1.device cpu$"):
        told(replays=mix(device="cuda", capacity=1000))


def test_the_host_needs_no_room_for_a_replay_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = {"capacity_steps": 10**10}
    (line,) = on_a_gpu(replays=mix(device="cuda", **huge))
    assert line.endswith(" GB in the memory of GPUs")
    (line,) = on_a_gpu(replays=mix(capacity=1000))
    assert line.endswith(" GB in the memory of GPUs"), "a seventh of it"
    with pytest.raises(ConfigError, match="of memory, and"):
        on_a_gpu(replays=mix(device="auto", **huge))
    with pytest.raises(ConfigError, match="copies of what replays hold"):
        on_a_gpu(replays=mix(device="cuda", **huge), checkpoint_replay=True)
    monkeypatch.setattr(batches, "free_bytes", lambda *_: 10**5)
    with pytest.raises(ConfigError, match="smaller replays would not fit either: --num-envs"):
        on_a_gpu(10**6, replays=mix(device="cuda", capacity=1000))


def test_gpus_keep_replays_that_take_a_quarter_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    half = {"name": "uniform", "fraction": 0.25, "capacity": 1000}

    def kept(quarter: float, *replays: dict[str, Any], **settings: Any) -> list[bool]:
        """Which replays are kept by a GPU of whose memory a quarter has room for so many of 1,000 columns."""
        given = {"replays": [QUEUE, *replays], **PONG, **settings}
        config = make_config("PongNoFrameskip-v4", given)
        spec = spec_of(config.env_id)
        policy = build_policy(config, spec)
        settings_of = kept_replays(config)[0]
        one = layout_of(config, settings_of, policy).nbytes(1000)
        memory = int(4 * quarter * one)
        return replays_on_gpu(config, policy, memory=memory)

    assert kept(2.1, half, half) == [True, True]
    assert kept(1.9, half, half) == [True, False], "together they would take more"
    assert kept(0.9, {**half, "device": "cuda"}, half) == [True, False], "as asked for"
    assert kept(9.0, {**half, "device": "cpu"}, half) == [False, True]
    assert kept(9.0, {**half, "path": "/tmp"}, half) == [False, True]
    several = {"num_learners": 5, "topology.name": "single"}
    assert kept(2.9 * 2, half, half, **several) == [True, False], "three learners on one of them"
    shared = {**half, "shared": True}
    assert kept(99.0, shared, half, **several) == [False, True]
    assert kept(9.0, shared, half) == [True, True], "one learner shares it with nobody"
    assert kept(0.0, half, half) == [False, False], "there is no GPU"
    on_cluster = {"placement": "cluster", "num_learners": 8, "topology.name": "gossip"}
    assert kept(1.1, half, half, **on_cluster, **{"cluster.gpus_per_learner": 1.0})[0]
    assert not kept(1.1, half, half, **on_cluster, **{"cluster.gpus_per_learner": 0.5})[0]


def test_a_gpu_without_room_is_told_of_by_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(batches, "DeviceRing", no_room)
    monkeypatch.setattr(batches, "replays_on_gpu", lambda *_, **__: [True])

    def build(**device: str) -> BatchSource:
        config = make_config("CartPole-v1", {
            "algorithm.name": "vtrace", "num_envs": 8, "replays": mix(capacity=100, **device),
            "placement": "inline",
        })  # fmt: skip
        policy = build_policy(config, spec_of(config.env_id))
        return batches.build_mix(
            config, None, policy, num_envs=8, inference=lambda: policy, stop=StopSignal()  # type: ignore[arg-type]
        )  # fmt: skip

    with pytest.raises(RunFailed, match=r"^replays.1 takes .* MB of .* --replays.1.device cpu$"):
        build(device="cuda")
    assert isinstance(build().shares[0].replay.shards.ring, Ring), "nobody asked for the GPU"


def test_what_fits_is_suggested_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "free_bytes", lambda *_: 2 * 10**8)
    for settings, says in (
        ({"capacity": 10**7}, r"--replays.1.capacity \d{3,4}$"),
        ({"capacity_steps": 10**8}, r"--replays.1.capacity-steps \d{4,5}$"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            told(replays=mix(**settings))
        name, value = str(caught.value).split("--replays.1.")[1].split()
        told(replays=mix(**{name.replace("-", "_"): int(value)}))
    # Two that are too large are made smaller one after the other.
    third = {"name": "uniform", "fraction": 0.25, "capacity": 10**6}
    both = [{"name": "queue", "fraction": 0.5}, {**third, "capacity": 2 * 10**6}, third]
    with pytest.raises(ConfigError, match=r"--replays.1.capacity \d+$"):
        told(replays=both)
    monkeypatch.setattr(batches, "free_bytes", lambda *_: 10**5)
    with pytest.raises(ConfigError, match=r"smaller replays would not fit either: --num-envs \d+$"):
        told(replays=mix(capacity=1000))


def test_elite_replays_need_features() -> None:
    for name in ("elite", "attentive"):
        config = make_config("CartPole-v1", {
            "algorithm.name": "vtrace", "num_envs": 8, "policy.hidden_sizes": [],
            "replays": [QUEUE, {"name": name, "fraction": 0.5}],
        })  # fmt: skip
        spec = spec_of(config.env_id)
        with pytest.raises(
            ConfigError, match=f"replays.1 is {name}, .*--policy.hidden-sizes 64 64"
        ):
            refuse_replays(config, build_policy(config, spec), num_envs=8)
        deep = replace(config, policy=replace(config.policy, core="gru"))
        assert refuse_replays(deep, build_policy(deep, spec), num_envs=8)


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
    monkeypatch.setattr(batches, "free_bytes", lambda path: 2 * 10**8 if path else 10**10)
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
    spec = spec_of(config.env_id)
    saving, policy = replace(config, checkpoint_replay=True), build_policy(config, spec)
    size = 14 * 10**7

    def check(made: TrainConfig, free: int, **known: int) -> None:
        monkeypatch.setattr(batches, "free_bytes", lambda *_: free)
        refuse_replays(made, policy, num_envs=8, **known)

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
    monkeypatch.setattr(batches, "free_bytes", lambda *_: 35 * 10**7)
    alone: dict[str, Any] = {"num_envs": 1, "algorithm.num_minibatches": 1}
    common = {"prefetch_batches": 30, **alone}
    told(replays=mix(capacity=1000), **common)
    elite = [QUEUE, {"name": "elite", "fraction": 0.5, "capacity": 1000, "insert": "fifo"}]
    told(replays=elite, prefetch_batches=1, **alone)
    with pytest.raises(ConfigError, match="and what learns from them"):
        told(replays=elite, **common)


def test_what_a_ratio_stands_for_has_settings_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "free_bytes", lambda *_: 10**8)
    with pytest.raises(ConfigError, match=r"\(path\): --replays\.1\.capacity-steps \d+$") as caught:
        told(replay_ratio=3.0)
    name, value = str(caught.value).split("--")[1].split()
    assert told(replay_ratio=3.0, **{name.replace("-", "_"): int(value)})


def test_replays_of_a_kind_are_told_apart() -> None:
    elite = {"name": "elite", "fraction": 0.25, "capacity": 100}
    first, second, third = told(
        replays=[
            {"name": "queue", "fraction": 0.25},
            elite,
            {**elite, "strategy": "stratified"},
            {"name": "uniform", "fraction": 0.25, "capacity": 100},
        ]
    )
    assert first.startswith("replay elite (least_used): 100 columns")
    assert second.startswith("replay elite_2 (stratified): 100 columns"), "as their metrics are"
    assert third.startswith("replay uniform: 100 columns")


def test_copies_for_checkpoints_need_room_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "free_bytes", lambda path: 10**10 if path else 10**8)
    on_disk = mix(path=str(tmp_path), capacity=1000)
    told(replays=on_disk)
    with pytest.raises(ConfigError, match="--checkpoint-replay false"):
        told(replays=on_disk, checkpoint_replay=True)
    # Processes may have handed theirs over while the copies before are still being written.
    monkeypatch.setattr(batches, "free_bytes", lambda _: 60 * 10**7)
    two = {"num_learners": 2, "topology.name": "single", "checkpoint_replay": True}
    told(replays=on_disk, **two, placement="inline")
    with pytest.raises(ConfigError, match=r"copies of what replays hold take 0\.6 GB"):
        told(replays=on_disk, **two, placement="local")


def test_checkpoints_with_replays_need_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.18 GB each, of which replays have 0.14: three that are kept and one that is being written."""
    saved = {"replays": mix(capacity=1000), "checkpoint_replay": True}
    asked: list[Path] = []

    def free(path: Path) -> int:
        asked.append(path)
        return 50 * 10**7

    monkeypatch.setattr(room, "free_disk", free)
    place = tmp_path / "missing" / "run"
    with pytest.raises(ConfigError, match="--keep-checkpoints 1") as caught:
        told(**saved, run_folder=str(place))
    assert asked == [place]
    message = "0.18 GB each, 3 kept and one being written, take 0.71 GB"
    assert message in str(caught.value)
    assert "0.50 GB are free" in str(caught.value)
    (_, line) = told(**saved, keep_checkpoints=1)
    assert line == "checkpoints: up to 0.18 GB each, 1 kept and one being written"
    assert asked[1:] == [Path("runs")]
    (_, line) = told(**saved, keep_checkpoints=0)
    assert line == "checkpoints: up to 0.18 GB each, all kept"
    told(**{**saved, "checkpoint_replay": False})
    monkeypatch.setattr(room, "free_disk", lambda _: 10**7)
    with pytest.raises(ConfigError, match="--checkpoint-replay false") as caught:
        told(**saved, keep_checkpoints=1)
    assert "--keep-checkpoints" not in str(caught.value)


def test_replays_in_files_take_of_the_same_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (room, batches):
        monkeypatch.setattr(module, "free_disk", lambda _: 80 * 10**7)
    saved = {"checkpoint_replay": True, "run_folder": str(tmp_path / "run")}
    assert told(replays=mix(capacity=1000), **saved)
    in_file = mix(capacity=1000, path=str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"0\.66 GB are free beside replays: --keep-checkpoints 1"
    ):
        told(replays=in_file, **saved)
    assert told(replays=in_file, **saved, keep_checkpoints=2)
    monkeypatch.setattr(room, "disk_of", lambda path: int(path == tmp_path))
    assert told(replays=in_file, **saved)


def test_what_a_resumed_run_has_written_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "free_disk", lambda _: 50 * 10**7)
    path = tmp_path / "checkpoints" / "3"
    path.mkdir(parents=True)
    (path / "tensors").write_bytes(b"")
    checkpoint = Checkpoint(3, {}, {}, path)

    def resumed(**settings: Any) -> list[str]:
        config = make_config("PongNoFrameskip-v4", {**PONG, **saved, **settings})
        spec = spec_of(config.env_id)
        plan = make_plan(config, spec)
        return refuse_what_memory_cannot_hold(config, spec, plan, 0, checkpoint)

    saved = {"replays": mix(capacity=1000), "checkpoint_replay": True}
    with pytest.raises(ConfigError, match=r"take 0\.71 GB of the disk, where 0\.50 GB are free"):
        resumed()  # as they were saved without replays
    os.truncate(path / "tensors", 25 * 10**7)
    assert resumed()
    monkeypatch.setattr(room, "free_disk", lambda _: 30 * 10**7)
    with pytest.raises(ConfigError, match=r"where 0\.30 GB are free"):  # where all stay
        resumed(keep_checkpoints=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"replay_ratio": 3.0, "replays.1.capacity_steps": 2000, "prefetch_batches": 2},
        slow({"replay_ratio": 3.0, "replays.1.name": "elite", "policy.core": "lstm", "lag": "1"}),
        {
            "num_learners": 2,
            "topology.name": "gossip",
            "replays": mix(capacity_steps=2000, shared=True),
        },
    ],
)
def test_checkpoints_are_as_large_as_told(tmp_path: Path, settings: dict[str, Any]) -> None:
    given = {
        "algorithm.name": "laser",
        "num_envs": 8,
        "unroll_length": 16,
        "checkpoint_replay": True,
        "placement": "inline",
        "total_env_steps": 4_500,
        "algorithm.num_minibatches": 1,
        "evaluation.every_seconds": 0,
        "policy.hidden_sizes": [32],
        "run_folder": str(tmp_path / "run"),
        **settings,
    }
    config = make_config("CartPole-v1", given)
    spec = spec_of(config.env_id)
    line = refuse_what_memory_cannot_hold(config, spec, make_plan(config, spec))[-1]
    (number,) = re.findall(r"up to (\S+) MB each", line)
    train(config, quiet=True)
    files = (tmp_path / "run" / "checkpoints").rglob("*.safetensors")
    largest = max(path.stat().st_size for path in files) / 1e6
    # Twice as many rows as env steps are allowed for; and a number is rounded.
    assert 0.4 * float(number) < largest < float(number) + 0.06


def test_batches_that_wait_need_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "free_bytes", lambda *_: 3 * 10**8)
    told(replays=mix(capacity=1000))
    with pytest.raises(ConfigError, match="and what learns from them"):
        told(replays=mix(capacity=1000), prefetch_batches=64)


def test_a_replay_on_disk_is_gone_with_its_process(tmp_path: Path) -> None:
    block = make_block(100_000, str(tmp_path))
    block[70_000:70_003] = b"abc"
    assert block[69_999:70_004] == b"\0abc\0"
    assert list(tmp_path.iterdir()) == []
