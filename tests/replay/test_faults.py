"""What must not spread: numbers that are not finite, one environment's view, settings counted in other units."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from core_fakes import make_learner, random_batch, small_policy, spec_of
from replay_fakes import B, ListQueue, T, make_mix, make_replay, sample, take, trajectory_of

from gossamer.algorithms.laser import Laser
from gossamer.build.plan import make_plan
from gossamer.config import make_config
from gossamer.envs.registry import read_spec
from gossamer.errors import ConfigError, RunFailed
from gossamer.record.metrics import MetricLog
from gossamer.replay import ring
from gossamer.replay.ring import make_block
from gossamer.replay.selectors.attentive import AttentiveSettings
from gossamer.replay.selectors.elite import EliteSettings
from gossamer.replay.selectors.uniform import UniformSettings
from gossamer.run.placements.host_learners import build_learners
from gossamer.run.placements.loop_inline import learn_inline
from gossamer.run.placements.metric_rows import Rows
from gossamer.types import as_batch, empty_trajectory

SMALL = {
    "placement": "inline",
    "num_envs": 2,
    "unroll_length": 8,
    "evaluation": {"every_seconds": 0},
}
LASER = {"name": "laser", "num_minibatches": 1}


class Poisoned(ListQueue):
    """In trajectory 3 one column's number is not finite."""

    field = "reward"

    def get(self):
        trajectory = super().get()
        if self.given == 4:
            getattr(trajectory, self.field)[2, 1] = np.nan
        return trajectory


@pytest.mark.parametrize("field", ["reward", "obs", "value"])
def test_what_is_not_finite_costs_one_update_however_much_is_replayed(field):
    queue = Poisoned(spec_of())
    queue.field = field
    mix, _, _ = make_mix(UniformSettings(), columns=8, queue=queue)
    learner = make_learner(small_policy(), Laser(), random_batch(spec_of(), T, B))
    learner.replay = mix
    for _ in range(20):
        learner.learn_version()
    assert learner.nonfinite_updates == (field != "value")  # which laser does not look at
    metrics = mix.take_metrics()
    assert metrics["replay/nonfinite_columns"] == 1.0
    assert metrics["replay/ratio"] > 1.0
    again, _, _ = make_mix(UniformSettings(), columns=8)
    again.load_state_dict(mix.state_dict())
    again.sample()
    assert again.take_metrics()["replay/nonfinite_columns"] == 1.0
    again.close()
    learner.close()


def test_a_trajectory_without_a_finite_column_is_not_stored():
    class Infinite(ListQueue):
        def get(self):
            online = super().get()
            online.obs.fill_(np.inf)
            return online

    queue = Infinite(spec_of())
    mix, _, _ = make_mix(UniformSettings(), UniformSettings(), queue=queue)
    mix.sample()
    mix.release()
    assert [replay.inserted for replay, _ in mix.shares] == [0, 0]
    assert queue.released == [0]
    mix.close()


def test_the_newest_state_is_of_one_environment_after_the_other():
    spec = spec_of()
    settings = AttentiveSettings(strategy="nearest", candidate_multiplier=100.0)
    replay = make_replay(spec, settings, capacity=3 * B)
    levels = lambda trajectory: trajectory.obs[:-1].repeat(1, 1, 2)  # noqa: E731
    into = as_batch(empty_trajectory(spec, unroll_length=T, num_columns=1, core_units=0))
    found = []
    for _ in range(9):
        batch = random_batch(spec, T, B)
        batch.obs.copy_(10.0 * torch.arange(B)[:, None].expand_as(batch.obs))
        replay.add(trajectory_of(batch), levels)
        assert sample(replay, into, levels)
        found.append(int(into.obs[0, 0, 0]) // 10)
    assert found == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_a_successor_knows_the_newest_where_the_most_moved_are_overwritten():
    settings = AttentiveSettings(insert="elite", elite_batch=3, candidate_multiplier=3.0)
    dead = make_replay(spec_of(), settings, capacity=2 * B)
    torch.manual_seed(0)
    anything = lambda trajectory: torch.randn(T, trajectory.num_columns, 8)  # noqa: E731
    for version in range(12):
        batch = random_batch(spec_of(), T, B)
        batch.version.fill_(version)
        dead.add(trajectory_of(batch), anything)
        successor = make_replay(spec_of(), settings, capacity=2 * B)
        for name, x in dead.shards.ring.fields.items():
            successor.shards.ring.fields[name].copy_(x)
        successor.take_over(inserted=dead.inserted, draws=0)
        assert successor.held == dead.held
        versions = successor.shards.ring.fields["version"]
        assert versions[successor.newest] == version
        half = successor.shards.ring.sequence
        half[successor.newest] |= 1  # it was being written
        successor.take_over(inserted=dead.inserted, draws=0)
        assert half[successor.newest] % 2 == 0


def test_the_multiplier_anneals_over_updates():
    given = {"name": "elite", "fraction": 0.5, "candidate_multiplier": 5.0, "anneal_updates": 80}
    settings = {
        **SMALL,
        "algorithm": {"name": "vtrace", "passes": 2, "num_minibatches": 2},
        "replays": [{"name": "queue", "fraction": 0.5}, given],
    }
    learners = group_of(make_config("CartPole-v1", settings))
    learn(learners, 11)
    replay = learners.first.learner.replay.shares[0].replay
    assert replay.draws == 11  # one ahead, the first not possible; 4 updates each
    assert replay.settings.multiplier(replay.updates) == pytest.approx(5.0 - 4.0 * 44 / 80)
    learners.close()


def test_metrics_are_of_all_batches_since_the_last_row():
    settings = {**SMALL, "replay_ratio": 2.0, "algorithm": LASER, "prefetch_batches": 0}
    config = make_config("CartPole-v1", settings)
    learners = group_of(config)
    learn(learners, 6)
    row = Rows(learners).make()[0]
    # 6 batches of 2 online columns; 4 columns are there to replay when the third is picked
    assert row["replay/ratio"] == pytest.approx(2.0 * 4 / 6)
    learners.close()


def learn(learners, versions):
    steps = learn_inline(learners)
    for _ in range(versions):
        next(steps)


def group_of(config):
    spec = read_spec(config.env_id, config.env, config.max_episode_steps)
    plan = make_plan(config, spec)
    return build_learners(config, spec, plan)


def test_more_minibatches_than_environments_are_refused_when_their_number_is_known():
    laser = {"name": "laser", "num_minibatches": 1000}
    config = make_config("CartPole-v1", {"algorithm": laser, "replay_ratio": 1.0, "num_envs": 0})
    spec = read_spec(config.env_id, config.env, config.max_episode_steps)
    with pytest.raises(ConfigError, match=r"num_minibatches is 1000, more than num_envs \d+, and"):
        make_plan(config, spec)


@pytest.mark.parametrize("path", ["", "there"])
def test_what_the_system_refuses_is_told(monkeypatch, path):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ring, "make_memory", full)
    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(ConfigError, match=r"system refuses \(No space left on device\)"):
        make_block(10**9, path)


def test_what_was_held_is_left_out_where_it_is_not_to_be_saved():
    kind = EliteSettings(anneal_updates=12)
    one, _, _ = make_mix(kind, ahead=2)
    for _ in range(6):
        one.sample()
        one.release()
    state = one.state_dict()
    assert state["coming.0.whole"]
    other, _, _ = make_mix(kind, ahead=2, saved=False)
    other.load_state_dict(state)
    replay = other.shares[0].replay
    assert (replay.held, replay.draws) == (0, state["0.draws"])
    sizes: list[int] = []
    for _ in range(8):
        sizes.append(other.sample().num_columns)
        other.release()
    assert sizes == [B, B, B, B, 2 * B, 2 * B, 2 * B, 2 * B], (
        "what was ready is not, and it fills first"
    )
    assert other.state_dict()["0.draws"] == state["0.draws"] + 4
    one.close()
    other.close()


def test_two_replays_of_a_kind_are_told_apart_and_their_metrics_explained(tmp_path):
    near, spread = (
        EliteSettings(strategy=strategy, candidate_multiplier=2.0)
        for strategy in ("nearest", "stratified")
    )
    mix, *_ = make_mix(near, UniformSettings(), spread)
    take(mix, 3)
    metrics = mix.take_metrics()
    names = {name.removeprefix("replay/") for name in metrics}
    distances = {"distance_p10", "distance_p50", "distance_p90", "distance_chosen"}
    ours = {f"{kind}_{one}" for kind in ("elite", "elite_2") for one in ("columns", *distances)}
    assert names == ours | {"uniform_columns", "ratio", "age_updates", "nonfinite_columns"}
    assert metrics["replay/elite_columns"] == metrics["replay/elite_2_columns"] == 2 * B
    log = MetricLog(tmp_path / "metrics.jsonl")
    log.write(metrics)
    for name in ("replay/elite_1_columns", "replay/queue_2_columns", "learner/loss_2"):
        with pytest.raises(RunFailed, match=name):
            log.write({name: 1.0})
    log.close()
