"""Runs of several learners in lock-step: resumed exactly, shipped as one policy, scored in turn."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import SMALL, assert_resumes, returns_of, rows_of, state_of
from sessions import slow

from gossamer.config import TrainConfig, make_config
from gossamer.errors import ConfigError
from gossamer.record.checkpoint import CheckpointStore
from gossamer.run.checkpoint_contents import policy_of
from gossamer.run.evaluate import evaluate
from gossamer.run.load_policy import load_policy
from gossamer.run.train import train

TOPOLOGIES: dict[str, dict[str, Any]] = {
    "single": {"name": "single"},
    "allreduce": {"name": "allreduce"},
    "gossip": {"name": "gossip"},
    "gossip of staleness 2": {"name": "gossip", "graph": "rotating", "max_staleness": 2},
    "diffusion": {"name": "diffusion", "adjacency": "complete", "link_drop": 0.3},
}

PPO: dict[str, Any] = {"name": "ppo", "passes": 2, "num_minibatches": 2}


def config(
    folder: Path, topology: str, steps: int, env_id: str = "CartPole-v1", **settings: Any
) -> TrainConfig:
    given = {
        **SMALL,
        "num_learners": 3,
        "placement": "inline",
        "topology": TOPOLOGIES[topology],
        **settings,
    }
    made = make_config(env_id, given)
    return dataclasses.replace(made, run_folder=str(folder), total_env_steps=steps)


USUAL = zip(TOPOLOGIES, ("gru", "lstm", "lstm", "gru", "lstm"), "10011", strict=True)
OTHERS = zip(TOPOLOGIES, ("lstm", "gru", "gru", "lstm", "gru"), "01100", strict=True)


@pytest.mark.parametrize(("topology", "core", "lag"), [*USUAL, *(slow(*case) for case in OTHERS)])
def test_learners_mix_and_resume(tmp_path: Path, topology: str, core: str, lag: str) -> None:
    """With recurrent policies of continuous actions."""
    algorithm = {"name": "vtrace", "passes": 2, "num_minibatches": 2, "value_norm": True}
    common: dict[str, Any] = {
        "env_id": "Pendulum-v1",
        "policy": {"core": core, "core_size": 8, "hidden_sizes": [8], "last_action": True},
        "policy.last_reward": True,
        "algorithm": algorithm,
        "lag": lag,
        "max_episode_steps": 20,
    }
    one, two = (config(tmp_path / x, topology, 3 * 256, **common) for x in ("one", "two"))
    assert_resumes(one, two, 3 * 64)
    learners = [policy_of(state_of(tmp_path / "one"), rank) for rank in range(3)]
    held = [name for name in learners[0] if name.startswith("core.") or name == "log_std"]
    assert len(held) == 5
    for name in held:  # mixed, or never heard of each other
        apart = [(x[name] - learners[0][name]).abs().max() for x in learners[1:]]
        assert all(x == 0.0 for x in apart) == (topology == "allreduce")
    assert {env for env, *_ in returns_of(tmp_path / "one")} == set(range(12))


def test_tasks_are_dealt_told_and_scored(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "num_envs": 4,
        "env": {"tasks_per_learner": 2},
        "evaluation": {"episodes": 1, "every_seconds": 1e-3, "held_out_tasks": 3},
        "max_episode_steps": 20,
    }
    made = config(tmp_path / "run", "diffusion", 3 * 192, "RandomExtremeAcrobot-v1", **settings)
    train(made, quiet=True)
    rows = rows_of(tmp_path / "run", "episodes")
    # Two environments play the same task, which has the same links whenever it is played.
    assert {(row["learner"], row["env"], row["task"]) for row in rows} == {
        (rank, 4 * rank + i, 2 * rank + i // 2) for rank in range(3) for i in range(4)
    }
    masses = {(row["task"], row["info"]["mass"]) for row in rows}
    assert len(masses) == len({mass for _, mass in masses}) == 6
    lines = (tmp_path / "run/monitor/11.monitor.csv").read_text().splitlines()
    assert lines[1] == "r,l,t,mass,length,inertia,success"
    row = rows_of(tmp_path / "run", "evaluation")[0]
    assert row["tasks"] == [0, 1, 2, 3, 4, 5]
    assert row["held_out"]["tasks"] == [0, 1, 2]
    assert len(row["returns"]) == 6
    result = evaluate(str(tmp_path / "run"), episodes=7)
    assert result.tasks == (*range(6), *range(6))
    assert result.held_out is not None
    assert result.held_out.tasks == (0, 1, 2, 0, 1, 2, 0, 1, 2)


def test_versions_may_end_early_for_some(tmp_path: Path) -> None:
    """A bounded staleness waits for those that the KL has ended early; in lock-step nobody may hang."""
    algorithm = {"name": "ppo", "ppo": {"max_kl_nats": 1e-4, "passes": 6}}
    for topology in ("gossip", "gossip of staleness 2", "diffusion", "allreduce"):
        folder = tmp_path / topology
        result = train(config(folder, topology, 3 * 128, algorithm=algorithm), quiet=True)
        # whole batches, of which some rows are resets
        assert 3 * 128 <= result.summary["env_steps"] < 3 * 192


def test_the_policy_of_a_run_is_the_average(tmp_path: Path) -> None:
    train(config(tmp_path / "run", "gossip", 3 * 128), quiet=True)
    tensors = state_of(tmp_path / "run")
    learners = [load_policy(str(tmp_path / "run"), learner=r).state_dict() for r in range(3)]
    average = load_policy(str(tmp_path / "run")).state_dict()
    for name, x in policy_of(tensors).items():
        held = [policy_of(tensors, r)[name] for r in range(3)]
        assert torch.equal(learners[0][name], x)
        torch.testing.assert_close(average[name], sum(held) / 3, rtol=1e-5, atol=1e-6)
    assert any(not torch.equal(x, learners[0][name]) for name, x in average.items())
    with pytest.raises(ConfigError, match="--learner 2"):
        load_policy(str(tmp_path / "run"), learner=3)


def test_the_best_policy_is_no_other_learners(tmp_path: Path) -> None:
    often: dict[str, Any] = {"evaluation": {"episodes": 2, "every_seconds": 1e-3}}
    train(config(tmp_path / "run", "gossip", 3 * 128, **often), quiet=True)
    run = str(tmp_path / "run")
    load_policy(run, "best")
    for learner in (0, 1):
        with pytest.raises(ConfigError, match="holds only the run's policy"):
            load_policy(run, "best", learner=learner)
    alone = config(tmp_path / "alone", "single", 128, **often, num_learners=1)
    train(alone, quiet=True)
    load_policy(str(tmp_path / "alone"), "best", learner=0)


def test_learners_that_were_not_in_step_go_on_in_step(tmp_path: Path) -> None:
    """A run whose learners did not wait for each other is resumed with learners that do."""
    folder = tmp_path / "run"
    train(config(folder, "gossip", 3 * 128, **{"topology.max_staleness": "never"}), quiet=True)
    store = CheckpointStore(folder / "checkpoints", 0)
    saved = store.load("last")
    ahead = {
        "learner.update": 1,
        "1/learner.version": 1,
        "1/learner.update": 2,
        "2/learner.version": 3,
    }
    held = {
        name: x + ahead[name] if name in ahead else x for name, x in saved.state["held"].items()
    }
    store.save(saved.updates + 1, saved.tensors, {**saved.state, "held": held})
    train(
        config(folder, "gossip", 3 * 256, **{"topology.max_staleness": 0}),
        resume=folder,
        quiet=True,
    )
    held = store.load("last").state["held"]
    for name in ("learner.version", "learner.update"):
        assert held[name] == held[f"1/{name}"] == held[f"2/{name}"], name


def test_learners_that_were_on_their_own_count_together_when_they_mix(tmp_path: Path) -> None:
    """One on its own counts its steps for all of them, which of a quick one are more than there are."""
    folder = tmp_path / "run"
    train(config(folder, "single", 3 * 128), quiet=True)
    assert not (folder / "mixing.json").exists()
    store = CheckpointStore(folder / "checkpoints", 0)
    saved = store.load("last")
    steps = {"": 1_280, "1/": 256, "2/": 0}
    counts = {f"{rank}learner.own_env_steps": x for rank, x in steps.items()}
    counts |= {f"{rank}learner.env_steps": 3 * x for rank, x in steps.items()}
    counts["learner.update"] = saved.updates + 1
    state = {**saved.state, "held": {**saved.state["held"], **counts}}
    store.save(saved.updates + 1, saved.tensors, state)
    mixed = config(folder, "gossip", 3_000, **{"topology.max_staleness": "never"})
    result = train(mixed, resume=folder, quiet=True)
    assert (folder / "mixing.json").exists()
    assert 3_000 <= result.summary["env_steps"] < 3_000 + 3 * 64
    # And on their own again, there is nobody to draw a link to.
    train(config(folder, "single", 4_000), resume=folder, quiet=True)
    assert not (folder / "mixing.json").exists()


class Numbered(torch.nn.Linear):
    """Feature layers that hold a whole number."""

    feature_size = 8

    def __init__(self) -> None:
        super().__init__(4, 8)
        self.register_buffer("number", torch.tensor(7))


def test_whole_numbers_in_a_torso_are_not_averaged(tmp_path: Path) -> None:
    train(config(tmp_path / "run", "gossip", 3 * 128), quiet=True, torso=Numbered())
    assert load_policy(str(tmp_path / "run"), torso=Numbered()).torso.number == 7


@pytest.mark.parametrize("algorithm", [PPO, {"name": "vtrace"}])
def test_gradients_are_averaged_however_many_parts_an_action_has(
    tmp_path: Path, algorithm: dict[str, Any]
) -> None:
    """Each part has an entropy of its own, which travels beside the gradients."""
    made = config(tmp_path / "run", "allreduce", 3 * 128, "joint_envs:Many", algorithm=algorithm)
    train(made, quiet=True)
    row = rows_of(tmp_path / "run")[-1]
    entropies = [x for name, x in row.items() if name.startswith("learner/entropy_nats/")]
    assert len(entropies) == 20
    assert sum(entropies) == pytest.approx(row["learner/entropy_nats"], rel=1e-5)


def test_each_learner_has_a_torso_of_its_own(tmp_path: Path) -> None:
    """Given as an object, it is the same as if each learner had been alone, and stays as it was."""
    torso = Numbered()
    before = torso.weight.detach().clone()
    both, alone = tmp_path / "both", tmp_path / "alone"
    train(config(both, "single", 2 * 256, num_learners=2), quiet=True, torso=torso)
    train(config(alone, "single", 256, num_learners=1), quiet=True, torso=torso)
    assert torch.equal(torso.weight, before)
    first, second = (load_policy(str(both), torso=torso, learner=rank).torso for rank in (0, 1))
    own = load_policy(str(alone), torso=torso).torso
    assert torch.equal(first.weight, own.weight)
    assert not torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, before)


@pytest.mark.parametrize(
    ("topology", "scored"),
    [
        ("gossip", ["average", 0, "average", 1, "average", 2, "average", 0]),
        ("allreduce", [0, 0, 0]),
        ("single", [0, 1, 2, 0]),
    ],
)
def test_who_is_evaluated(tmp_path: Path, topology: str, scored: list[Any]) -> None:
    evaluation = {"every_seconds": 1e-9, "max_time_fraction": 1.0, "episodes": 1}
    more: dict[str, Any] = {"evaluation": evaluation, "max_episode_steps": 10}
    train(config(tmp_path / "run", topology, 3 * 640, **more), quiet=True)
    rows = rows_of(tmp_path / "run", "evaluation")
    turns = [row["learner"] for row in rows if not row["confirmation"]]
    assert turns[: len(scored)] == scored
    metrics = rows_of(tmp_path / "run")
    assert {row["learner"] for row in metrics} == {0, 1, 2}
    assert (metrics[-1]["topology/disagreement"] > 0.0) == (topology != "allreduce")
    told = [row["evaluation_learner"] for row in metrics if "evaluation_learner" in row]
    assert bool(told) == (topology == "single")
    assert set(told) <= {0, 1, 2}


def shares_of(run: Path) -> dict[int, dict[str, float]]:
    """Return each learner's shares of the time between its first row and its last one."""
    rows = rows_of(run)
    shares: dict[int, dict[str, float]] = {}
    for rank in sorted({row["learner"] for row in rows}):
        own = [row for row in rows if row["learner"] == rank]
        whole = own[-1]["time_s"] - own[0]["time_s"]
        sums: dict[str, float] = {}
        for before, row in itertools.pairwise(own):
            part = (row["time_s"] - before["time_s"]) / whole
            for name, share in row.items():
                if name.startswith("share/"):
                    sums[name] = sums.get(name, 0.0) + part * share
        shares[rank] = sums
    return shares


@pytest.mark.parametrize("topology", [slow("single"), "gossip"])
def test_shares_of_learners_that_take_turns_add_up(
    tmp_path: Path, topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossamer.run.placements.metric_rows.LEAST_SECONDS", 0.0)
    train(config(tmp_path / "run", topology, 3 * 1024), quiet=True)
    told = shares_of(tmp_path / "run")
    assert set(told) == {0, 1, 2}
    for shares in told.values():
        assert shares["share/wait_turn"] > 0.4
        assert 0.8 < sum(shares.values()) < 1.05, shares
    train(config(tmp_path / "one", "single", 128, num_learners=1), quiet=True)
    assert "share/wait_turn" not in (tmp_path / "one/metrics.jsonl").read_text()


def test_what_a_learner_does_about_its_replay_is_its_turn_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossamer.run.placements.metric_rows.LEAST_SECONDS", 0.0)
    elite = {"name": "elite", "fraction": 0.5, "capacity": 200, "candidate_multiplier": 20.0}
    settings: dict[str, Any] = {
        "algorithm.name": "laser",
        "algorithm.num_minibatches": 1,
        "replays": [{"name": "queue", "fraction": 0.5}, elite],
    }
    train(config(tmp_path / "run", "single", 3 * 1280, **settings), quiet=True)
    shares = shares_of(tmp_path / "run")[0]
    # Inline the work is done while the learner waits for it.
    assert 0 < shares.pop("share/replay") <= shares["share/wait_replay"]
    assert 0.8 < sum(shares.values()) < 1.05, shares


def test_learners_begin_alike_unless_told_otherwise(tmp_path: Path) -> None:
    for same in (True, False):
        folder = tmp_path / str(same)
        made = config(folder, "single", 192, same_start=same, optimizer={"learning_rate": 1e-12})
        train(made, quiet=True)
        first, second = (policy_of(state_of(folder), rank) for rank in (0, 1))
        weights = [name for name in first if name.endswith("weight")]
        apart = max(float((first[name] - second[name]).abs().max()) for name in weights)
        assert (apart < 1e-6) == same


def test_the_number_of_learners_stays(tmp_path: Path) -> None:
    train(config(tmp_path / "run", "gossip", 192), quiet=True)
    more = dataclasses.replace(config(tmp_path / "run", "gossip", 400), num_learners=2)
    with pytest.raises(ConfigError, match="num_learners is 2, but this run was begun with 3"):
        train(more, resume=str(tmp_path / "run"), quiet=True)
