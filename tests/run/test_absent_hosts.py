"""The supervisor of hosts that have no place for a while: what is saved, waited for, and when the run ends."""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from fake_placement import FakePlacement, Supervised, done, part, ready, told
from runs import SMALL, pids_of, state_of

from gossamer.config import make_config
from gossamer.errors import ConfigError
from gossamer.links.mailboxes import Mailboxes
from gossamer.record.checkpoint import CheckpointStore
from gossamer.record.window import OfLearner
from gossamer.run.checkpoint_contents import TARGET, RunPolicies, from_disk, policy_of, to_disk
from gossamer.run.finished import find_end
from gossamer.run.host_protocol import Died
from gossamer.run.load_policy import read_policy, saved_policy
from gossamer.run.placements.shared_memory import PolicyBoards
from gossamer.run.snapshot import fill_absent_learners
from gossamer.run.train import train
from gossamer.system.prefixes import without_prefix

SETTINGS: dict[str, Any] = {"topology": {"name": "gossip"}, "checkpoint_every_seconds": 0.0}
SINGLE: dict[str, Any] = {**SETTINGS, "topology": {"name": "single"}}


def run_without(supervise: Any, absent: int, settings: dict[str, Any], **given: Any) -> Supervised:
    """Run three learners to the end, one of which never finds a place; learner r ends at update 3 + r."""
    there = [rank for rank in range(3) if rank != absent]
    placement = FakePlacement([[ready(x) for x in there], [told(x) for x in there]], num_hosts=3)
    placement.unplace(absent)
    for name, x in given.items():
        setattr(placement, name, x)

    def ends():
        placement.env_steps = 100
        return [part(x, updates=3 + x) for x in there]

    placement.script += [ends, [done(x) for x in there]]
    run = supervise(placement, **settings, total_env_steps=100)
    run.scoring.load_state(RunPolicies(scores=[(0, 1.0), (1, 9.0), (2, 5.0)], best_learner=1))
    run.run()
    return run


def boards_of(*versions: tuple[int, int, float]) -> PolicyBoards:
    """Return boards of three learners that hold versions of a weight: rank, version, value."""
    memory = mmap.mmap(-1, Mailboxes.nbytes(3, (2, 0)))
    boards = PolicyBoards(Mailboxes(memory, 3, (2, 0)), [torch.zeros(2)], "best")
    for rank, version, value in versions:
        boards.post(rank, [torch.full((2,), value)], version, updates=version, env_steps=version)
    return boards


def test_a_run_begins_saves_and_ends_without_a_host_that_has_no_place(supervise):
    placement = FakePlacement([[ready(0), ready(2)], [told(0), told(2)]], num_hosts=3)
    placement.unplace(1)

    def ends():
        placement.env_steps = 100
        return [part(0, updates=3), part(2, updates=5)]

    placement.script += [ends, [done(0), done(2)]]
    run = supervise(placement, **SETTINGS, total_env_steps=100)
    run.run()
    assert run.checkpoints.final_snapshot_queued
    saved = run.saved()
    assert saved.updates == {0: 3, 1: 3, 2: 5}, "the state of learner 0"
    donor, filled, _ = saved.learners
    assert filled.own_env_steps == 20
    assert not saved.exact
    assert filled.part("learner.policy.").keys() == donor.part("learner.policy.").keys()
    assert torch.equal(filled.tensors["learner.policy.weight"], torch.full((2,), 3.0))
    assert set(donor.tensors) - set(filled.tensors) == {"actor.generator"}, "it draws its own"


def test_a_checkpoint_under_way_does_without_a_host_that_dies_and_finds_no_place(supervise):
    placement = FakePlacement(
        [[ready(0), ready(1)], [told(0), told(1)], [part(0, 1, updates=3)]], num_hosts=2
    )
    there: list[list[int]] = []

    def dies():
        placement.ends_alone = False
        return [(1, Died("its node has died"))]

    def has_no_place():
        placement.unplace(1)

    placement.on_replace = has_no_place
    placement.script += [dies, lambda: run.supervisor.finish_saving()]
    placement.script += [lambda: there.append(run.store.list())]
    placement.script += [lambda: run.stop.request("SIGINT")]
    placement.script += [[part(0, updates=4)], [done(0)]]
    run = supervise(placement, **SETTINGS)
    run.run()
    assert there == [[3]]
    assert run.store.list()[-1] == 4
    assert pids_of(run.folder.path)[1] is None


def test_a_host_that_joins_is_waited_for_as_the_others_are(supervise):
    placement = FakePlacement([[ready(0)], [part(0, 1, updates=0)], [told(0)]], num_hosts=2)
    placement.unplace(1)
    there: list[list[int]] = []

    def joins():
        placement.place(1)
        placement.env_steps = 100
        return [part(0, updates=3)]

    placement.script += [joins, [ready(1)], [done(0)]]
    placement.script += [lambda: run.supervisor.finish_saving()]
    placement.script += [lambda: there.append(run.store.list())]
    placement.script += [[part(1, updates=2)], [done(1)]]
    run = supervise(placement, **SETTINGS, total_env_steps=100)
    run.run()
    assert there == [[0]], "its part is missing"
    assert run.saved().updates == {0: 3, 1: 2}


def test_numbers_of_checkpoints_never_fall_while_learner_0_is_away(supervise):
    placement = FakePlacement([[ready(0), ready(1)], [told(0), told(1)]], num_hosts=2)

    def dies():
        placement.ends_alone = False
        placement.hosts[0].version = 9
        return [(0, Died("its node has died"))]

    def has_no_place():
        placement.unplace(0)

    placement.on_replace = has_no_place
    placement.script += [[part(0, 1, updates=9), part(1, 1, updates=4)], dies]
    placement.script += [lambda: run.stop.request("SIGINT")]
    placement.script += [[part(1, updates=5)], [done(1)]]
    run = supervise(placement, **SETTINGS)
    run.run()
    assert run.saved().updates == {0: 9, 1: 5}
    assert run.store.list() == [9]


def test_a_run_goes_on_when_the_one_that_was_not_ready_finds_no_place(supervise):
    placement = FakePlacement([[ready(0)]], num_hosts=2)

    def has_no_place():
        placement.unplace(1)

    placement.on_replace = has_no_place
    placement.script += [[(1, Died("its node has died"))], [part(0, 1, updates=0)]]
    run = supervise(placement, **SETTINGS)
    run.run_script()
    assert ("order", 1, False) in placement.asked, "what the run begins with is asked for"


def test_while_learner_0_is_away_another_ones_rows_tell_of_the_run(supervise):
    placement = FakePlacement([[ready(1), ready(2)], [told(1), told(2)]], num_hosts=3)
    placement.unplace(0)
    run = supervise(placement, **SETTINGS)
    run.run_script()
    seen = [(x["learner"], "steps_per_second" in x) for x in run.rows()]
    assert seen == [(1, True), (2, False)]


def test_a_policy_is_the_average_of_those_that_were_there(supervise):
    run = run_without(supervise, 1, SETTINGS)
    assert run.saved().policies.absent == [(1, 0)]
    weight = read_policy(run.folder).tensors["weight"]
    assert torch.equal(weight, torch.full((2,), (3.0 + 5.0) / 2)), "learner 0 counts once"
    assert torch.equal(saved_policy(run.store.load(), 2).tensors["weight"], torch.full((2,), 5.0))
    with pytest.raises(ConfigError, match=r"learner 1 was absent .* of learner 0: --learner 0$"):
        saved_policy(run.store.load(), 1)


def test_an_independent_learner_that_is_absent_is_not_the_best(supervise):
    saved = run_without(supervise, 1, SINGLE).saved()
    assert (saved.policies.policy_of, saved.policies.best_learner) == (2, 2)
    assert saved.policies.absent == [(1, 0)], "nobody has heard of a policy of its own"


def test_without_scores_the_policy_is_that_of_a_learner_that_is_there(supervise):
    placement = FakePlacement([[ready(1)], [part(1, 1)], [told(1)]], num_hosts=2)
    placement.unplace(0)
    run = supervise(placement, **SINGLE)
    run.run_script()
    run.supervisor.finish_saving()
    assert run.saved().policies.policy_of == 1


def test_an_absent_learner_that_is_independent_keeps_its_own_policy(supervise):
    boards = boards_of((0, 3, 3.0), (1, 2, 7.0), (2, 5, 5.0))
    run = run_without(supervise, 1, SINGLE, boards=boards, names=["weight"])
    saved = run.saved()
    assert saved.policies.absent == [(1, 1)]
    assert saved.policies.policy_of == 2
    own = saved.learners[1].tensors
    assert torch.equal(own["learner.policy.weight"], torch.full((2,), 7.0))
    assert torch.equal(own["learner.algorithm.tensors.target.weight"], torch.full((2,), 7.0))
    assert not [x for x in own if x.startswith("learner.optimizer.")], "it begins anew"
    assert torch.equal(saved_policy(run.store.load(), 1).tensors["weight"], torch.full((2,), 7.0))


def test_a_run_goes_on_with_what_a_learner_that_was_absent_had_learnt(tmp_path: Path) -> None:
    given = {**SMALL, "algorithm": "impact", "num_learners": 2, "placement": "inline"}
    given |= {"topology": "single", "same_start": False, "optimizer": {"outer_momentum": 0.5}}
    given |= {"run_folder": str(tmp_path / "run"), "lag": "0", "total_env_steps": 1024}
    config = make_config("CartPole-v1", given)
    train(config, quiet=True)
    store = CheckpointStore(tmp_path / "run" / "checkpoints", 0)
    found = store.load()
    state = from_disk(found, 2)
    own = policy_of(found.tensors, 1)
    there = {0: state.learners[0]}
    whose = fill_absent_learners(there, {1: state.learners[1].own_env_steps}, {}, lambda _: own)
    assert whose == [(1, 1)]
    target = without_prefix(there[1].tensors, TARGET)
    assert target
    assert all(torch.equal(x, own[name]) for name, x in target.items()), "nobody else's"
    filled = msgspec.structs.replace(state, learners=[there[0], there[1]], exact=False)
    store.save(found.updates, *to_disk(filled))
    config = replace(
        config, total_env_steps=1088, optimizer=replace(config.optimizer, learning_rate=(1e-12,))
    )
    train(config, resume=tmp_path / "run", quiet=True)
    learnt = policy_of(state_of(tmp_path / "run"), 1)
    parameters = [
        name for name in own if "moments" not in name and not name.endswith(("_mean", "_std"))
    ]
    assert parameters
    assert all(torch.allclose(learnt[name], own[name], atol=1e-7) for name in parameters)


def test_scores_of_a_learner_that_begins_with_the_policy_of_another_are_forgotten(supervise):
    run = supervise(FakePlacement([], num_hosts=3), **SINGLE)
    scores = [(0, 1.0), (1, 9.0), (2, 5.0)]
    run.scoring.load_state(RunPolicies(scores=scores, best_learner=2, absent=[(1, 0)]))
    assert run.scoring.state({}).scores == [(0, 1.0), (2, 5.0)]
    run.scoring.load_state(RunPolicies(scores=scores, best_learner=2, absent=[(1, 1)]))
    assert run.scoring.state({}).scores == scores


def test_who_is_absent_is_not_evaluated_at_the_end(supervise):
    placement = FakePlacement([], num_hosts=3)
    for index in (0, 2):
        placement.place(index)
    placement.unplace(1)
    run = supervise(placement, **SINGLE)
    assert run.scoring.others == [2]


def test_a_goal_is_reached_by_those_that_are_there(supervise):
    placement = FakePlacement([[ready(0), ready(2)]], num_hosts=3, ends_alone=False)
    placement.unplace(1)
    episodes = [told(x, 1, episodes=50) for x in (0, 2)]
    placement.script += [[told(0), told(2)], episodes, [part(0), part(2)], [done(0), done(2)]]
    run = supervise(placement, **SETTINGS, stop_at_return=1.0)
    run.run()
    assert str(run.supervisor.exit) == "done: stop_at_return reached"


def test_returns_of_a_learner_that_is_lost_do_not_count(supervise):
    placement = FakePlacement([[ready(0), ready(1)]], num_hosts=2)
    placement.hosts[0].machine = "10.0.0.1"

    def dies():
        return [(1, Died("its node has died"))]

    placement.on_replace = lambda: placement.unplace(1)
    placement.script += [[told(1, episodes=60)], [told(0, episodes=60)], dies, [told(0, 2)]]
    placement.script += [lambda: placement.place(1), [ready(1)], [told(0, 3)]]
    run = supervise(placement, **SETTINGS)
    run.run_script()
    rows = [x for x in run.rows() if x["learner"] == 0]
    there = [{key for key in row if key.startswith("learner/return_of_")} for row in rows]
    both = {"learner/return_of_0", "learner/return_of_1"}
    assert there == [both, {"learner/return_of_0"}, both]
    assert [row["cluster/learners"] for row in rows] == [2, 1, 2]


def test_a_finished_run_knows_who_was_there(supervise):
    run = run_without(supervise, 1, SETTINGS)
    saved = run.saved()
    window = [OfLearner(rank, [9.0] * 50, [1] * 50) for rank in (0, 2)]
    window.append(OfLearner(1, [0.0], [1]))
    recorder = msgspec.structs.replace(saved.recorder, window=window)
    config = replace(run.config, total_env_steps=10**9, stop_at_return=8.0)
    finished = find_end(config, run.folder, msgspec.structs.replace(saved, recorder=recorder))
    assert finished is not None
    assert finished.summary["mean_return_last_100"] == 9.0
