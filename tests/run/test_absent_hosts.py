"""The supervisor of hosts that have no place for a while: what is saved, waited for, and when the run ends."""

from __future__ import annotations

from typing import Any

import torch
from fake_placement import FakePlacement, done, part, ready, told
from runs import pids_of

from gossamer.run.host_protocol import Died

SETTINGS: dict[str, Any] = {"topology": {"name": "gossip"}, "checkpoint_every_seconds": 0.0}


def test_a_run_begins_saves_and_ends_without_a_host_that_has_no_place(supervise):
    placement = FakePlacement([[ready(0), ready(2)], [told(0), told(2)]], num_hosts=3)
    placement.unplace(1)

    def ends():
        placement.env_steps = 100
        return [part(0, updates=3), part(2, updates=5)]

    placement.script += [ends, [done(0), done(2)]]
    run = supervise(placement, **SETTINGS, total_env_steps=100)
    run.run()
    assert run.supervisor.final_snapshot_queued
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
