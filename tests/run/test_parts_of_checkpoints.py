"""A checkpoint is exact if every part is; what was told behind the parts is heard in its order."""

from __future__ import annotations

import msgspec
import pytest
from fake_placement import FakePlacement, done, part, ready, told

from gossamer.run.host_group import HostGroup


@pytest.mark.parametrize("inexact", [0, 1])
def test_a_checkpoint_is_exact_only_if_every_part_is(supervise, inexact):
    def given(number, updates):
        return [
            (i, msgspec.structs.replace(part(i, **number, updates=updates)[1], exact=i != inexact))
            for i in range(2)
        ]

    placement = FakePlacement(
        [
            [ready(0), ready(1)],
            [told(0, 1), told(1, 1)],
            given({"number": 1}, 1),
            [told(0, 2, last=True), told(1, 2, last=True), *given({}, 2)],
            [done(0), done(1)],
        ],
        num_hosts=2,
    )
    run = supervise(placement, topology={"name": "gossip"})
    run.run()
    saved = [run.saved(number) for number in run.store.list()]
    assert saved
    assert not any(state.exact for state in saved)


def test_what_was_told_behind_parts_is_heard_in_its_order_and_before_what_came_later():
    placement = FakePlacement([], num_hosts=2)
    group = HostGroup(placement, order=1)
    later = told(0, 9)
    group.events.append(later)
    waiting = [told(0, 2), told(0, 3), told(1, 5), told(1, 6)]
    for host, state in enumerate(x.state for x in placement.hosts):
        state.move("starting")
        state.move("learning")
        state.give(part(host, number=1)[1])
        state.deferred = [event for index, event in waiting if index == host]
    group.release()
    assert [event[1] for event in group.events] == [event[1] for event in [*waiting, later]]
    assert [event[0] for event in group.events] == [0, 0, 1, 1, 0]
    assert group.order is None
    assert {x.state.phase for x in placement.hosts} == {"learning"}
