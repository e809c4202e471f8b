"""What the supervisor knows of a host: phases, parts of checkpoints, and what waits for them."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.run.host_protocol import FINAL, Done, Notice, Snapshot
from gossamer.run.host_state import TRANSITIONS, HostState, Phase


def part(number: int) -> Snapshot:
    return Snapshot(number, {}, {})


def learning() -> HostState:
    state = HostState()
    state.move("learning")
    return state


def test_every_phase_can_be_reached_and_leads_to_the_end() -> None:
    assert set(TRANSITIONS) == set(get_args(Phase))
    reached = {"starting"}
    for _ in TRANSITIONS:
        reached |= {to for phase in TRANSITIONS if phase in reached for to in TRANSITIONS[phase]}
    assert reached == set(TRANSITIONS)
    assert [phase for phase, to in TRANSITIONS.items() if not to] == ["done"]


@pytest.mark.parametrize("phase", TRANSITIONS)
def test_no_other_transition_is_made(phase: Phase) -> None:
    for to in TRANSITIONS:
        state = HostState(phase=phase)
        if to in TRANSITIONS[phase]:
            state.move(to)
            assert state.phase == to
        else:
            with pytest.raises(AssertionError, match=f"is {phase} became {to}"):
                state.move(to)
            assert state.phase == phase


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
        (["finish"], True),
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
    assert state.die() == complete
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
