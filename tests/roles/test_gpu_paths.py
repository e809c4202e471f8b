"""What is computed on a GPU, computed on the CPU the same way: packed copies, recurrent rows, moments, hand-overs."""

from __future__ import annotations

import json
from functools import partial
from itertools import product

import pytest
import torch
from core_fakes import spec_of
from fake_gpu import META, fake_gpu
from sessions import fast

from gossamer.build import replays
from gossamer.config import make_config
from gossamer.errors import RunFailed
from gossamer.links.stopping import StopSignal
from gossamer.links.threads import Roles, ThreadBoard
from gossamer.policies.core import Core
from gossamer.policies.settings import PolicyConfig
from gossamer.record.checkpoint import CheckpointStore
from gossamer.roles.acting_step import ActingStep
from gossamer.roles.evaluation import Steps
from gossamer.roles.learner import Learner
from gossamer.roles.updates import Updates
from gossamer.run.checkpoint_contents import policy_of
from gossamer.run.train import train
from gossamer.system import devices
from gossamer.types import empty_trajectory, kinds_of


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Everything is done as on a GPU, on the CPU."""
    return partial(monkeypatch.setattr, devices, "is_gpu", lambda device: True)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.7, 1.0], ids=lambda x: f"{x:.0%} starts")
@pytest.mark.parametrize("rows", [2, 9])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_rows_with_a_mask_equal_stretches(kind, rows, share, as_on_a_gpu):
    torch.manual_seed(3)
    core = Core(PolicyConfig(core=kind, core_size=6, core_layers=2), 4)
    x = torch.randn(rows * 5, 4, requires_grad=True)
    starts = torch.rand(rows, 5) < share
    state = torch.randn(core.state_size, 5, requires_grad=True)
    weights = torch.randn(rows * 5, 6), torch.randn(core.state_size, 5)

    def run():
        output, after = core(x, starts, state)
        loss = (output * weights[0]).sum() + (after * weights[1]).sum()
        return output, after, *torch.autograd.grad(loss, [x, state, *core.parameters()])

    expected = run()
    as_on_a_gpu()
    for ours, theirs in zip(run(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


ROUND = {"name": "queue", "fraction": 0.5}, {"name": "circular", "fraction": 0.5, "capacity": 40}
FEW = {"passes": 2, "num_minibatches": 2}
RUNS = {
    "vtrace, lstm": {"algorithm": {"name": "vtrace", "value_norm": True, "num_minibatches": 1},
                     "policy.core": "lstm", "policy.last_reward": True, "policy.last_action": True},
    "ppo": {"algorithm": {"name": "ppo", "value_norm": True, "target_kl_nats": 0.01, **FEW}, "env_groups": 2},
    "impact, gru": {"algorithm": {"name": "impact", "num_minibatches": 2}, "policy.core": "gru",
                    "replays": list(ROUND), "replay_burn_in": 2},
    "allreduce": {"algorithm": {"name": "ppo", "value_norm": True, **FEW}, "num_learners": 2,
                  "topology": {"name": "allreduce"}},
    "gossip": {"algorithm": {"name": "a2c"}, "num_learners": 2,
               "topology": {"name": "gossip", "max_staleness": 0}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("run", "env_id"),
    fast(
        [
            *((run, "CartPole-v1") for run in RUNS if run != "vtrace, lstm"),
            ("vtrace, lstm", "Pendulum-v1"),
        ],
        product(RUNS, ("CartPole-v1", "Pendulum-v1")),
    ),
)
def test_runs_learn_the_same_by_either_way(run, env_id, tmp_path, as_on_a_gpu):
    def learnt(name):
        folder = tmp_path / name
        settings = {"placement": "inline", "num_envs": 4, "unroll_length": 8, "total_env_steps": 192,
                    "evaluation.every_seconds": 0.0, "policy.core_size": 8, "device": "cpu",
                    "optimizer.name": "rmsprop", **RUNS[run], "run_folder": str(folder)}  # fmt: skip
        train(make_config(env_id, settings), quiet=True)
        episodes = (folder / "episodes.jsonl").read_text().count("\n")
        return policy_of(CheckpointStore(folder / "checkpoints", 0).load("last").tensors), episodes

    expected, episodes = learnt("one")
    as_on_a_gpu()
    found, others = learnt("other")
    assert others == episodes
    for name, x in expected.items():
        torch.testing.assert_close(found[name], x, rtol=1e-3, atol=1e-4, msg=name)


FOUR_KINDS = [
    {"name": "queue", "fraction": 0.25},
    {"name": "uniform", "fraction": 0.25, "capacity": 16},
    {"name": "elite", "fraction": 0.25, "capacity": 16, "insert": "elite"},
    {"name": "attentive", "fraction": 0.25, "capacity": 16},
]


PONG = "PongNoFrameskip-v4"
STEPS = 320
"""Of a run: 40 columns, more than twice what a replay holds."""


@pytest.mark.parametrize(
    ("env_id", "on_device", "placement"),
    fast(
        [("CartPole-v1", False, "local"), (PONG, True, "inline")],
        [
            case
            for case in product(["CartPole-v1", PONG], [False, True], ["inline", "local"])
            if case != ("CartPole-v1", True, "local")
        ],
    ),
)
def test_replays_are_picked_from_the_same_by_either_way(
    env_id, on_device, placement, tmp_path, as_on_a_gpu, monkeypatch
):
    """No numbers of the policy are compared: observations, actions and picks are, bit for bit."""

    def replayed(name, steps=(STEPS,)):
        folder = tmp_path / name
        given = {"placement": placement, "lag": "1", "num_envs": 4, "unroll_length": 8, "device": "cpu",
                 "evaluation.every_seconds": 0.0, "replays": FOUR_KINDS, "checkpoint_replay": True,
                 "algorithm": {"name": "laser", "num_minibatches": 1}, "optimizer.learning_rate": 1e-30,
                 "policy.fc_size": 32, "run_folder": str(folder)}  # fmt: skip
        given |= {"env.size": 36} if env_id == PONG else {}
        for i, total in enumerate(steps):
            config = make_config(env_id, {**given, "total_env_steps": total})
            train(config, resume=str(folder) if i else None, quiet=True)
        rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        held = {k for row in rows for k, x in row.items() if k.endswith("_columns") and x}
        kept = {"uniform", "elite", "attentive"}  # a queue has given away all that it had
        assert held >= {f"replay/{name}_columns" for name in kept}
        tensors = CheckpointStore(folder / "checkpoints", 0).load("last").tensors
        return {k: x for k, x in tensors.items() if k.startswith("learner.replay.")}

    expected = replayed("cpu")
    assert any(".ring.obs" in name for name in expected)
    as_on_a_gpu()
    if on_device:
        monkeypatch.setattr(replays, "replays_on_gpu", lambda *_, **__: [True] * 3)
    for name, steps in (("gpu", [STEPS]), ("resumed", [STEPS // 2, STEPS])):
        found = replayed(name, steps)
        assert found.keys() == expected.keys()
        for key, x in expected.items():
            # Values and features are rounded otherwise where another kind of kernel computes them.
            if x.is_floating_point():
                torch.testing.assert_close(
                    found[key], x, rtol=1e-2, atol=1e-3, equal_nan=True, msg=key
                )
            else:
                assert torch.equal(found[key], x), key


@pytest.mark.parametrize(
    ("kind", "method", "doing"),
    [
        (ActingStep, "__init__", "for the learners"),
        (ActingStep, "__call__", "to act"),
        (Updates, "refresh", "to mix and to observe"),
        (Steps, "of", "to evaluate"),
        (Learner, "load_state_dict", "to go on with a checkpoint"),
    ],
)
def test_memory_that_is_too_small_for_anything_ends_a_run_in_a_line(
    kind, method, doing, tmp_path, as_on_a_gpu, monkeypatch, capfd
):
    def too_little(*_, **__):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def trained(env_steps, **more):
        given = {"placement": "inline", "num_envs": 2, "unroll_length": 8, "device": "cpu",
                 "evaluation.every_seconds": float(kind is Steps), "total_env_steps": env_steps}  # fmt: skip
        config = make_config("CartPole-v1", {**given, "run_folder": str(tmp_path / "run")})
        train(config, quiet=True, **more)

    as_on_a_gpu()
    resumes = kind is Learner
    if resumes:
        trained(32)
    monkeypatch.setattr(kind, method, too_little)
    with pytest.raises(RunFailed, match=rf"^the GPU's memory is too small {doing}.*2\.00 GiB"):
        trained(64, resume=str(tmp_path / "run") if resumes else None)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("obs_shape", [(4,), (3, 5, 6)])
def test_a_slot_travels_in_one_copy(obs_shape):
    slot = empty_trajectory(spec_of(obs_shape=obs_shape), unroll_length=3, num_columns=2, core_units=5,
                            pinned=True)  # fmt: skip
    for i, (_, x, _) in enumerate(slot.each()):
        x.copy_(torch.full(x.shape, i + 1))
    moved = slot.to(torch.device("cpu", 0))  # another name of the same device
    for name, x, _ in slot.each():
        assert torch.equal(getattr(moved, name), x), name
        assert getattr(moved, name).stride() == x.stride()
    with fake_gpu() as mode:
        away = slot.to(META)
    assert len(mode.sent) == 1
    assert mode.waits == []
    for name, x, _ in away.each():
        assert (x.device == META) == (not kinds_of(type(away))[name].on_host), name
    # Of a few columns of a large block not all of it.
    with fake_gpu() as mode:
        part = empty_trajectory(spec_of(), unroll_length=3, num_columns=9, core_units=0,
                                pinned=True).columns(0, 1).to(META)  # fmt: skip
    assert part.obs.untyped_storage().nbytes() == part.obs.nbytes


def test_numbers_are_stacked_where_they_are():
    numbers = [torch.tensor(2.5), 3, torch.tensor(7), 0.1, torch.tensor(1e-9, dtype=torch.float64)]
    assert devices.stacked(numbers, torch.device("cpu")).tolist() == pytest.approx(
        [float(x) for x in numbers]
    )
    with fake_gpu() as mode:
        away = [x.to(META) if isinstance(x, torch.Tensor) else x for x in numbers]
        mode.waits.clear()
        assert devices.stacked(away, META).device == META
    assert mode.waits == []


class Marks:
    """In place of a GPU's events: tells in which order they were set and followed."""

    told: list[tuple[str, int]] = []

    def __init__(self, device):
        self.number = sum(what == "made" for what, _ in self.told)
        self.told.append(("made", self.number))

    def set(self):
        self.told.append(("set", self.number))

    def follow(self):
        self.told.append(("follow", self.number))


def test_a_version_is_copied_after_it_was_written_and_written_after_it_was_copied(monkeypatch):
    monkeypatch.setattr("gossamer.links.threads.Mark", Marks)
    monkeypatch.setattr(Marks, "told", [])
    x = [torch.zeros(3)]
    board = ThreadBoard(x, StopSignal(), Roles(1.0))  # marks 0 and 1: of its two places
    board.publish(x, 0)
    board.read(0, x, exact=True)
    board.publish(x, 1)
    board.publish(x, 2)
    assert [y for y in Marks.told if y[0] != "made"] == [
        ("set", 0), ("follow", 0), ("set", 2), ("set", 1), ("follow", 2), ("set", 0)]  # fmt: skip
