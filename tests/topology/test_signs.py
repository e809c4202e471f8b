"""Signs of life: who is slow is waited for, who is stuck is given up and named; by a clock of the test's own."""

from __future__ import annotations

import threading
import time

import pytest
from groups import boxes_for, mailbox

from gossamer.errors import RunFailed
from gossamer.links.mailboxes import AWAITS, BEATS, Mailbox
from gossamer.links.stopping import Stopped, StopSignal
from gossamer.links.threads import StoppableCondition
from gossamer.system.signs_of_life import Patience, Sign


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def patience_of(seconds, sign):
    clock = Clock()
    patience = Patience(seconds, sign.whose, sign.count, sign.words, clock=clock)
    return patience, clock


def pass_by(clock, wait, seconds, *, step=0.5, each=lambda: None):
    for _ in range(round(seconds / step)):
        clock.now += step
        each()
        wait.look()


def test_who_is_slow_is_waited_for_however_long_it_takes():
    sign = Sign("the actor")
    patience, clock = patience_of(10.0, sign)
    wait = patience.wait("a trajectory")
    for _ in range(50):
        pass_by(clock, wait, 8.0)
        sign.beats += 1
    assert clock.now > 400.0


def test_who_is_stuck_is_given_up_and_named_with_what_to_type():
    sign, env = Sign("the actor"), Sign("environment")
    sign.parts.append(env)
    patience, clock = patience_of(10.0, sign)
    wait = patience.wait("a trajectory")
    env.env, env.doing = 3, "step"
    pass_by(clock, wait, 9.5)
    with pytest.raises(RunFailed) as caught:
        pass_by(clock, wait, 1.0)
    assert str(caught.value) == (
        "the actor has shown no sign of life for 10 s while a trajectory was waited for: environment 3 is "
        "in step; the run is given up as stuck; if it is only slow, resume it with --patience-seconds 20"
    )


def test_patience_follows_the_longest_pause_so_far():
    sign = Sign("the learner")
    patience, clock = patience_of(10.0, sign)
    wait = patience.wait("a version")
    pass_by(clock, wait, 6.0)
    sign.beats += 1
    pass_by(clock, wait, 59.0)
    later = patience.wait("a version")  # what was seen counts for later waits
    pass_by(clock, later, 59.0)
    with pytest.raises(RunFailed, match=r"for 6\d s"):
        pass_by(clock, later, 10.0)


def test_no_bound_is_a_bound_of_zero():
    patience, clock = patience_of(0.0, Sign("the actor"))
    pass_by(clock, patience.wait("a trajectory"), 1e5, step=1.0)


def test_a_process_that_was_suspended_has_not_waited():
    patience, clock = patience_of(10.0, Sign("the actor"))
    wait = patience.wait("a trajectory")
    clock.now += 1e6
    wait.look()
    assert wait.silent_seconds == 1.0


def test_echoes_keep_a_role_alive_here_but_not_elsewhere():
    sign = Sign("the learner")
    patience, clock = patience_of(10.0, sign)

    def echo():
        sign.echoes += 1

    pass_by(clock, patience.wait("a slot"), 60.0, each=echo)
    assert sign.own() == 0


def test_a_wait_among_threads_ends_by_a_stop_or_by_silence():
    stop = StopSignal()
    condition = StoppableCondition(stop)
    patience = Patience.with_sign(Sign("the actor"), 0.3)
    with condition, pytest.raises(RunFailed, match="the actor has shown no sign of life"):
        condition.wait_until(lambda: False, patience, "a trajectory")
    stop.stop()
    with condition, pytest.raises(Stopped):
        condition.wait_until(lambda: False, patience, "a trajectory")


def test_learners_that_wait_for_others_live_as_long_as_those():
    """0 waits for 1, which is in a process with 2 and waits for 3: what counts is the life of 3."""
    boxes = boxes_for(4, (1, 0))
    for rank, leader in enumerate((0, 1, 1, 3)):
        boxes.set_process_leader(rank, leader)
    assert boxes.life_of(2) == (0, 2)
    boxes.headers[1][BEATS] = 5
    assert boxes.life_of(2) == (5, 2), "of the whole process"
    boxes.headers[1][AWAITS] = 3 + 1
    boxes.headers[3][BEATS] = 7
    assert boxes.life_of(2) == (12, 3)
    boxes.headers[3][AWAITS] = 2 + 1  # and round again: nobody lives because another waits for it
    assert boxes.life_of(2) == (12, 2)


def test_a_slow_neighbour_is_waited_for_and_a_stuck_one_is_named():
    boxes = boxes_for(3, (1, 0))
    box = mailbox(boxes, 0, patience_seconds=1.5)
    waits_for = mailbox(boxes, 1)
    boxes.headers[1][AWAITS] = 2 + 1
    over = threading.Event()

    def live():
        while not over.wait(0.1):
            boxes.headers[2][BEATS] += 1

    alive = threading.Thread(target=live)
    alive.start()
    done = threading.Timer(3.0, lambda: waits_for.set_combined(4))
    done.start()
    box.wait_combined(1, 4)
    over.set()
    alive.join()
    box = mailbox(boxes, 0, patience_seconds=0.3)
    with pytest.raises(RunFailed, match=r"learner 1 has shown .*: it waits for learner 2;"):
        box.wait_combined(1, 99)
    assert boxes.headers[0][AWAITS] == 0


def test_a_learner_that_waits_for_a_slow_one_lives_as_long_as_that_does(monkeypatch):
    """Its actors, which wait for it, would take it for stuck."""
    monkeypatch.setattr("gossamer.links.mailboxes.LOOK_SECONDS", 0.01)
    boxes, sign = boxes_for(2, (1, 0)), Sign("the learner")
    waits = Mailbox(boxes, 0, StopSignal(), patience_seconds=20.0, sign=sign)
    slow, steps = mailbox(boxes, 1), iter(range(100))

    def works():
        while not sign.echoes and next(steps, None) is not None:
            boxes.headers[1][BEATS] += 1
            time.sleep(0.01)
        slow.set_combined(0)

    works_beside = threading.Thread(target=works)
    works_beside.start()
    waits.wait_combined(1, 0)
    works_beside.join()
    assert sign.echoes > 0
    assert sign.own() == 0, "of which it has shown none itself"
