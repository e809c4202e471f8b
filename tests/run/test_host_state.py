"""What the supervisor knows of a host: phases, parts of checkpoints, and what waits for them."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest
from fake_placement import PLAN
from hypothesis import given
from hypothesis import strategies as st

from gossamer.run.host_protocol import FINAL, Done, Notice, Snapshot
from gossamer.run.host_state import TRANSITIONS, HostState, Phase


def part(number: int) -> Snapshot:
    return Snapshot(number, {}, PLAN, exact=True)


def learning() -> HostState:
    return HostState(phase="learning")


def test_every_phase_can_be_reached_and_leads_to_an_end() -> None:
    assert set(TRANSITIONS) == set(get_args(Phase))
    reached = {HostState().phase}
    for _ in TRANSITIONS:
        reached |= {to for phase in TRANSITIONS if phase in reached for to in TRANSITIONS[phase]}
    assert reached == set(TRANSITIONS)
    assert [phase for phase, to in TRANSITIONS.items() if not to] == ["done", "dead"]


def test_of_all_pairs_of_phases_those_of_the_table_are_passed_through() -> None:
    for phase, to in product(TRANSITIONS, TRANSITIONS):
        state = HostState(phase=phase)
        if to in TRANSITIONS[phase]:
            state.move(to)
            assert state.phase == to
        else:
            with pytest.raises(AssertionError, match=f"is {phase} became {to}"):
                state.move(to)
            assert state.phase == phase


def gives(number: int) -> Any:
    return lambda state: state.give(part(number))


LIVES: dict[str, list[tuple[Any, Phase]]] = {
    "to its end": [
        (lambda x: x.move("unplaced"), "unplaced"),
        (lambda x: x.move("placing"), "placing"),
        (lambda x: x.move("starting"), "starting"),
        (lambda x: x.move("learning"), "learning"),
        (gives(1), "saving"),
        (HostState.release, "learning"),
        (gives(FINAL), "ending"),
        (HostState.release, "ended"),
        (HostState.release, "ended"),
        (HostState.finish, "done"),
        (HostState.finish, "done"),
        (lambda x: x.die(3), "done"),
    ],
    "until it dies before it has learnt": [
        (lambda x: x.move("starting"), "starting"),
        (lambda x: x.die(-1), "dead"),
    ],
    "until it dies learning": [
        (lambda x: x.move("starting"), "starting"),
        (lambda x: x.move("learning"), "learning"),
        (lambda x: x.die(1), "dead"),
    ],
    "until it dies while others save": [
        (lambda x: x.move("starting"), "starting"),
        (lambda x: x.move("learning"), "learning"),
        (gives(1), "saving"),
        (lambda x: x.die(1), "dead"),
    ],
    "and ends while its last part waits": [
        (lambda x: x.move("starting"), "starting"),
        (lambda x: x.move("learning"), "learning"),
        (gives(FINAL), "ending"),
        (lambda x: x.die(1), "ending"),
        (HostState.release, "ended"),
    ],
}


@pytest.mark.parametrize("life", LIVES)
def test_what_happens_to_a_host_leads_from_phase_to_phase(life: str) -> None:
    state = HostState()
    for happens, phase in LIVES[life]:
        happens(state)
        assert state.phase == phase


def test_the_successor_of_a_dead_host_is_its_next_incarnation() -> None:
    state = HostState()
    for deaths in range(1, 4):
        state.move("starting")
        assert state.die(version=-1)
        state = state.successor()
        assert (state.incarnation, state.deaths_in_a_row) == (deaths, deaths)
    state.move("starting")
    assert state.die(version=0)
    assert state.successor(version=7).deaths_in_a_row == 0
    assert not state.successor(version=7).has_learnt(7)
    again = HostState(2, 1, phase="learning").successor()
    assert (again.phase, again.incarnation, again.deaths_in_a_row) == ("placing", 2, 1)


def test_a_part_belongs_to_one_checkpoint_and_the_last_part_to_all_that_follow() -> None:
    state = learning()
    first, last = part(1), part(FINAL)
    state.give(first)
    assert (state.phase, state.given) == ("saving", first)
    state.release()
    assert (state.phase, state.given) == ("learning", None)
    state.give(last)
    assert (state.phase, state.given) == ("ending", last)
    state.release()
    assert (state.phase, state.given, state.final) == ("ended", last, last)
    state.finish()
    state.finish()  # its death says the same
    assert (state.phase, state.given) == ("done", last)


@pytest.mark.parametrize(
    ("before", "complete"),
    [
        ([], False),
        ([1], False),
        ([1, Notice("x")], False),
        ([1, part(FINAL), Done()], True),
        ([FINAL], True),
        ([FINAL, Done()], True),
        ([FINAL, "release"], True),
        ([FINAL, "release", "finish"], True),
    ],
)
def test_a_host_that_dies_is_missed_unless_it_had_nothing_more_to_give(
    before: list[Any], complete: bool
) -> None:
    state = learning()
    for step in before:
        if isinstance(step, int):
            state.give(part(step))
        elif isinstance(step, str):
            getattr(state, step)()
        else:
            state.deferred.append(step)
    assert state.die(version=1) != complete
    while complete and state.phase != "done":  # whoever hears what has waited comes to its end
        for event in state.release():
            if state.part is not None:
                state.deferred.append(event)
            elif isinstance(event, Snapshot):
                state.give(event)
            elif isinstance(event, Done):
                state.finish()


@given(st.lists(st.lists(st.text(max_size=3), max_size=4), max_size=5))
def test_what_waits_comes_out_once_and_in_order(told: list[list[str]]) -> None:
    state = learning()
    for number, words in enumerate(told, 1):
        state.give(part(number))
        notices = [Notice(word) for word in words]
        state.deferred.extend(notices)
        assert state.release() == notices
        assert state.release() == []
        assert (state.phase, state.part) == ("learning", None)
