"""Runs with replays: the same from every placement and after a resume, alone and in groups."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import content_of
from runs import SMALL, assert_resumes, assert_same, log_of, rows_of
from sessions import slow

from gossamer.build import replays as batches
from gossamer.config import TrainConfig, make_config
from gossamer.errors import ConfigError
from gossamer.record.checkpoint import Checkpoint, CheckpointStore
from gossamer.run.placements.host_learners import HostLearners
from gossamer.run.placements.processes import Processes
from gossamer.run.train import train

MIX: list[dict[str, Any]] = [
    {"name": "queue", "fraction": 0.25},
    {"name": "uniform", "fraction": 0.5, "capacity": 40},
    {"name": "elite", "fraction": 0.25, "capacity": 40, "anneal_updates": 12},
]


def config(env_id: str, folder: Path, steps: int, **settings: Any) -> TrainConfig:
    given = {
        **{name: x for name, x in SMALL.items() if name != "algorithm"},
        "algorithm.name": "laser",
        "algorithm.num_minibatches": 1,
        "checkpoint_replay": True,
        "run_folder": str(folder),
        "total_env_steps": steps,
        **settings,
    }
    if "NoFrameskip" in env_id:
        given |= {"policy": {"fc_size": 32}, "env.size": 36, "unroll_length": 8, "num_envs": 2}
    return make_config(env_id, given)


UNIFORM: dict[str, Any] = {"replay_ratio": 3.0}
ELITE: dict[str, Any] = {"replays": MIX}


@pytest.mark.parametrize(
    ("env_id", "first", "whole", "lag", "mix"),
    [
        ("CartPole-v1", 320, 704, "0", UNIFORM),
        ("CartPole-v1", 320, 704, "1", ELITE),
        slow("PongNoFrameskip-v4", 96, 160, "1", UNIFORM),
        ("PongNoFrameskip-v4", 96, 160, "0", ELITE),
    ],
)
def test_resumed_equals_uninterrupted_wherever_it_runs(
    tmp_path: Path, env_id: str, first: int, whole: int, lag: str, mix: dict[str, Any]
) -> None:
    common = {"lag": lag, **mix}
    one = config(env_id, tmp_path / "one", whole, placement="inline", **common)
    two = config(env_id, tmp_path / "two", whole, placement="local", **common)
    assert_resumes(one, two, first)
    rows = rows_of(tmp_path / "one")
    row = [row for row in rows if "replay/ratio" in row][-1]  # the last one may be of no batch
    assert 0.0 < row["replay/ratio"] <= 3.0  # the first batches have nothing to replay
    assert whole <= row["env_steps"] < whole + 64
    assert row["lag_versions_mean"] == int(lag)
    assert row["replay/age_updates"] > 1.0


def test_impact_on_a_circular_replay_resumes_exactly(tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "algorithm": {"name": "impact", "num_minibatches": 2, "target_every_updates": 5},
        "replay_burn_in": 2,
        "policy.core": "gru",
        "policy.core_size": 8,
        "replays": [
            {"name": "queue", "fraction": 0.25},
            {"name": "circular", "fraction": 0.75, "capacity": 20},
        ],
    }
    one = config("CartPole-v1", tmp_path / "one", 640, placement="inline", **common)
    assert_resumes(one, config("CartPole-v1", tmp_path / "two", 640, **common), 320)


def test_what_was_kept_under_other_settings_is_refused(tmp_path: Path) -> None:
    common: dict[str, Any] = {"replays": MIX, "prefetch_batches": 2}
    train(config("CartPole-v1", tmp_path, 128, **common), quiet=True)
    for changed, says in (
        ({"prefetch_batches": 0}, "settings of --prefetch-batches;"),
        ({"replays": [*MIX[:2], {**MIX[2], "capacity": 50}]}, "settings of replay 2;"),
    ):
        other = config("CartPole-v1", tmp_path, 1280, **{**common, **changed})
        with pytest.raises(ConfigError) as caught:
            train(other, resume=str(tmp_path), quiet=True)
        assert says in str(caught.value)
        assert str(caught.value).endswith("with empty replays: --checkpoint-replay false")


def fleet_of_two(folder: Path, steps: int, **settings: Any) -> TrainConfig:
    given = {"num_learners": 2, "topology": {"name": "gossip"}, "replays": MIX, "lag": "1"}
    return config("CartPole-v1", folder, steps, **{**given, **settings})


def test_a_fleet_in_lock_step_with_saved_replays_resumes_exactly(tmp_path: Path) -> None:
    step: dict[str, Any] = {
        "placement": "local",
        "topology": {"name": "gossip", "max_staleness": 0},
    }
    one = fleet_of_two(tmp_path / "one", 2 * 640, **{**step, "placement": "inline"})
    assert_resumes(one, fleet_of_two(tmp_path / "two", 2 * 640, **step), 2 * 320, ordered=False)
    assert any(line.startswith("resumed exactly") for line in log_of(tmp_path / "two"))


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_what_was_kept_under_other_settings_can_be_let_go_of(
    tmp_path: Path, placement: str
) -> None:
    folder, common = tmp_path / "run", {"placement": placement}
    first = fleet_of_two(folder, 2 * 256, placement="inline")
    reached = train(first, quiet=True).summary["env_steps"]
    half: dict[str, Any] = {
        "replays": [
            {"name": "queue", "fraction": 0.5},
            {"name": "uniform", "fraction": 0.5, "capacity": 30},
        ]
    }
    for saved in (False, True):
        total = reached + 768  # nobody waits, so one of the learners may be far ahead
        changed = fleet_of_two(folder, total, checkpoint_replay=saved, **half, **common)
        reached = train(changed, resume=str(folder), quiet=True).summary["env_steps"]
        assert reached >= total
    told = [line for line in log_of(folder) if "resumed " in line]
    assert "replays are empty, --checkpoint-replay saves what they hold" in told[0]
    assert "resumed exactly" not in told[0]
    assert "the checkpoint was written without --checkpoint-replay" in told[1]
    held = CheckpointStore(folder / "checkpoints", 0).load("last").tensors
    assert len(held["learner.replay.0.uses"]) == 30
    assert not [name for name in held if name.startswith("learner.replay.1.")]


@pytest.mark.parametrize("placement", ["inline", "local"])
def test_a_run_that_saved_its_replays_goes_on_without_any(tmp_path: Path, placement: str) -> None:
    first = fleet_of_two(tmp_path, 2 * 256, placement="inline")
    reached = train(first, quiet=True).summary["env_steps"]
    without: dict[str, Any] = {
        "replays": [{"name": "queue"}],
        "checkpoint_replay": False,
        "placement": placement,
    }
    longer = fleet_of_two(tmp_path, reached + 512, **without)
    assert train(longer, resume=str(tmp_path), quiet=True).summary["env_steps"] >= reached + 512


def test_of_a_fleet_it_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    train(fleet_of_two(tmp_path, 2 * 256, placement="inline"), quiet=True)
    before = content_of(tmp_path)
    smaller = [*MIX[:2], {**MIX[2], "capacity": 30}]
    shared = [*MIX[:2], {**MIX[2], "shared": True}]
    fractions = [{**MIX[0], "fraction": 0.5}, {**MIX[1], "fraction": 0.25}, MIX[2]]
    for changed, says in (
        ({"replays": smaller}, "settings of replay 2"),
        ({"replays": shared}, "settings of replay 2"),
        ({"replays": fractions}, "the fractions"),
        ({"replays": [{"name": "queue"}]}, "the replays"),
        ({"replay_burn_in": 1, "policy.core": "gru"}, "network"),
    ):
        longer = fleet_of_two(tmp_path, 2 * 1280, **changed)
        with pytest.raises(ConfigError, match=says):
            train(longer, resume=str(tmp_path), quiet=True)
        assert content_of(tmp_path) == before


def test_the_copy_in_a_checkpoint_is_gone_when_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common: dict[str, Any] = {"replays": MIX, "placement": "inline"}
    train(config("CartPole-v1", tmp_path, 256, **common), quiet=True)
    loaded: list[weakref.ref[torch.Tensor]] = []
    load, join = CheckpointStore.load, HostLearners.join

    def loads(*args: Any) -> Checkpoint:
        found = load(*args)
        loaded.extend(weakref.ref(x) for name, x in found.tensors.items() if ".ring." in name)
        return found

    def joins(learners: HostLearners) -> None:
        assert len(loaded) > 20
        assert [held() for held in loaded if held() is not None] == []
        join(learners)

    monkeypatch.setattr(CheckpointStore, "load", loads)
    monkeypatch.setattr(HostLearners, "join", joins)
    longer = config("CartPole-v1", tmp_path, 512, **common)
    train(longer, resume=str(tmp_path), quiet=True)


def test_a_supervisor_gives_up_what_it_hands_to_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(fleet_of_two(tmp_path, 2 * 256, placement="inline"), quiet=True)
    names: list[str] = []
    loaded: list[weakref.ref[torch.Tensor]] = []
    load, poll = CheckpointStore.load, Processes.poll

    def loads(*args: Any) -> Checkpoint:
        found = load(*args)
        loaded.extend(weakref.ref(x) for x in found.tensors.values() if not x.is_meta)
        names.extend(name for name, x in found.tensors.items() if not x.is_meta)
        return found

    def polls(placement: Processes) -> Any:
        assert [held() for held in loaded if held() is not None] == []
        return poll(placement)

    monkeypatch.setattr(CheckpointStore, "load", loads)
    monkeypatch.setattr(Processes, "poll", polls)
    train(fleet_of_two(tmp_path, 2 * 512), resume=str(tmp_path), quiet=True)
    assert [name for name in names if "learner.policy." in name]


def test_how_large_replays_are_is_told_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_block(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(batches, "make_block", no_block)
    with pytest.raises(MemoryError):
        train(config("CartPole-v1", tmp_path / "run", 640, replays=MIX))
    assert capsys.readouterr().out.count("columns of 16 rows") == 2


def test_a_replay_may_lie_on_disk(tmp_path: Path) -> None:
    on_disk = [MIX[0], {**MIX[1], "fraction": 0.75, "path": str(tmp_path)}]
    train(config("CartPole-v1", tmp_path / "one", 640, replays=on_disk), quiet=True)
    in_memory = [MIX[0], {**MIX[1], "fraction": 0.75}]
    train(config("CartPole-v1", tmp_path / "two", 640, replays=in_memory), quiet=True)
    assert_same(tmp_path / "one", tmp_path / "two")


def test_without_it_in_checkpoints_a_replay_begins_empty_and_goes_on_counting(
    tmp_path: Path,
) -> None:
    draws: list[int] = []
    rows: list[int] = []
    for steps, resume in ((640, None), (1280, str(tmp_path / "run"))):
        made = config(
            "CartPole-v1", tmp_path / "run", steps, replay_ratio=1.0, checkpoint_replay=False
        )
        train(made, resume=resume, quiet=True)
        checkpoint = CheckpointStore(tmp_path / "run" / "checkpoints", 0).load("last")
        assert not checkpoint.state["exact"]
        assert not [name for name in checkpoint.tensors if ".replay." in name]
        held = checkpoint.state["held"]
        # Every column of every batch, of which some rows were resets.
        assert held["learner.replay.0.inserted"] == 4 * held["learner.version"] >= steps // 16
        draws.append(held["learner.replay.0.draws"])
        rows.append(16 * held["learner.replay.0.inserted"])
    log = (tmp_path / "run" / "log.txt").read_text()
    told = "resumed with new episodes (not exactly: replays are empty, --checkpoint-replay saves what they"
    assert told in log
    told = (
        f"replays fill during the next {rows[0]} rows of trajectories; until then only some batches"
    )
    assert told in log
    # Of one column an env for each 16 steps; then about half of ten batches, while it fills again.
    assert draws[0] >= 8
    assert 3 <= draws[1] - draws[0] <= 6
    assert 1280 <= rows_of(tmp_path / "run")[-1]["env_steps"] < 1280 + 64


def test_groups_replay_too(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"topology": {"name": "allreduce"}, "learner_threads": 1}
    for placement in ("inline", "local"):
        made = fleet_of_two(tmp_path / placement, 2 * 448, placement=placement, **settings)
        train(made, quiet=True)
    assert_same(tmp_path / "inline", tmp_path / "local", ordered=False)


def test_a_ratio_in_a_config_built_in_python_replays(tmp_path: Path) -> None:
    made = config("CartPole-v1", tmp_path / "one", 320)
    assert made.replays == TrainConfig().replays
    train(replace(made, replay_ratio=3.0), quiet=True)
    train(config("CartPole-v1", tmp_path / "two", 320, replay_ratio=3.0), quiet=True)
    assert_same(tmp_path / "one", tmp_path / "two")
    saved = json.loads((tmp_path / "one" / "config.json").read_text())
    assert [x["fraction"] for x in saved["replays"]] == [0.25, 0.75]
    for wrong, says in (
        (
            {"replays": make_config("CartPole-v1", {"algorithm": "laser", "replays": MIX}).replays},
            "leave one of the two out",
        ),
        ({"algorithm": make_config("CartPole-v1", {"algorithm": "ppo"}).algorithm}, "cannot learn"),
    ):
        with pytest.raises(ConfigError, match=says):
            train(replace(made, replay_ratio=3.0, run_folder=str(tmp_path / "no"), **wrong))
    assert not (tmp_path / "no").exists()
