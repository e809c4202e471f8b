"""Groups of hosts that begin again, parts of checkpoints that are not exact, and what is heard late."""

from __future__ import annotations

import msgspec
import pytest
from fake_placement import FakePlacement, done, part, ready, told

from gossamer.record.checkpoint import CheckpointStore
from gossamer.run.host_protocol import Died

GOSSIP = {"topology": {"name": "gossip"}}
ALL_REDUCED = {"topology": {"name": "allreduce"}, "checkpoint_every_seconds": 0.0}


@pytest.mark.parametrize("inexact", [0, 1])
def test_a_checkpoint_is_exact_only_if_every_hosts_part_is(supervise, inexact):
    parts = [part(0, 1), part(1, 1)]
    parts[inexact] = (inexact, msgspec.structs.replace(parts[inexact][1], exact=False))
    placement = FakePlacement(
        [[ready(0), ready(1)], [told(0), told(1)], parts, lambda: run.supervisor.finish_saving()],
        num_hosts=2,
    )
    run = supervise(placement, **GOSSIP)
    run.run_script()
    assert not run.saved().exact


def test_a_group_that_gets_further_each_time_may_go_back_often(supervise):
    placement = FakePlacement([], num_hosts=2)
    for n in range(1, 15):
        placement.script += [
            [ready(0), ready(1)],
            [part(0, n, updates=n), part(1, n, updates=n)],
            [told(0, n), told(1, n)],
            [(1, Died("signal 9"))],
        ]
    run = supervise(placement, **ALL_REDUCED)
    run.run_script()
    assert run.went_back == 14


def test_a_group_that_goes_back_has_an_end_to_reach_anew(supervise):
    placement = FakePlacement([[ready(0), ready(1)], [told(0), told(1)]], num_hosts=2)

    def reaches_the_end():
        placement.env_steps, placement.ends_alone = 100, False

    def dies():
        placement.env_steps = 40
        return [(1, Died("signal 9"))]

    placement.script += [reaches_the_end, dies, [ready(0), ready(1)], [told(0), told(1)], [], []]
    run = supervise(placement, total_env_steps=100, **ALL_REDUCED)
    run.run_script()
    begun_again = placement.asked.index("start", 1)
    assert [x[2] for x in placement.asked[:begun_again] if x[0] == "order"] == [False, True]
    assert [x[2] for x in placement.asked[begun_again:] if x[0] == "order"] == [False]
    assert run.supervisor.exit is None


def test_a_run_whose_last_checkpoint_could_not_be_written_is_not_saved(supervise, monkeypatch):
    placement = FakePlacement([[ready()], [told(last=True), part(updates=3)], [done()]])
    run = supervise(placement)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CheckpointStore, "save", full)
    with pytest.raises(OSError, match="No space left"):
        run.run()
    assert run.checkpoints.final_snapshot_queued
    assert not run.checkpoints.all_saved


def test_what_waited_for_a_checkpoint_is_heard_in_the_order_in_which_it_was_told(supervise):
    placement = FakePlacement(
        [
            [ready(0), ready(1)],
            [told(0, 1), told(1, 1)],
            [part(0, 1, 1)],
            [told(0, 2)],
            [told(0, 3)],
            [told(0, 4)],
            [part(1, 1, 1)],
            [],
        ],
        num_hosts=2,
    )
    run = supervise(placement, **GOSSIP)
    run.run_script()
    assert [x["updates"] for x in run.rows() if x["learner"] == 0] == [1, 2, 3, 4]


def test_a_checkpoint_is_ordered_once_every_host_that_joined_has_learnt(supervise):
    orders: list[int] = []
    placement = FakePlacement([[ready(0), ready(2)], [told(0, 1), told(2, 1)]], num_hosts=3)
    placement.unplace(1)
    placement.script += [
        [part(0, 1, 1), part(2, 1, 1)],
        lambda: run.supervisor.finish_saving(),
        lambda: placement.place(1),
        [ready(1)],
        [part(0, 2, 2), part(2, 2, 2)],
        lambda: run.supervisor.finish_saving(),
        [],
        lambda: orders.append(placement.orders),
        [told(1, 1)],
        [],
        lambda: orders.append(placement.orders),
    ]
    run = supervise(placement, checkpoint_every_seconds=1e-6, **GOSSIP)
    run.run_script()
    assert orders[1] == orders[0] + 1
