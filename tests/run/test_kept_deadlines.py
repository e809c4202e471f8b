"""Whoever watches a run: what its deadlines interrupt, and what they leave alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_for

from gossamer.record.exits import Exit
from gossamer.run import stopping as stopping_module
from gossamer.run.stopping import GivenUp, Overdue, Stop, Unsaved, Watch, Watched
from gossamer.system.signals import Signalled
from gossamer.system.signs_of_life import Sign


class Counted(Watched):
    """Counts how often it was looked at."""

    def __init__(self) -> None:
        self.looks = 0
        self.said: list[str] = []

    def look(self) -> None:
        self.looks += 1

    def say(self, text: str) -> None:
        self.said.append(text)

    def wait(self) -> None:
        """Wait until it was looked at a few times more, whole."""
        enough = self.looks + 4
        wait_for(lambda: self.looks >= enough, "looks")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that a test moves, by which deadlines are kept; looks come quickly."""
    found = [1000.0]
    monkeypatch.setattr(stopping_module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(stopping_module, "time", SimpleNamespace(monotonic=lambda: found[0]))
    return found


@pytest.fixture
def watched(now: list[float]) -> Iterator[Any]:
    """What is watched, with the stop that is kept."""
    found, stop = Counted(), Stop(5.0)
    with Watch(3.0, found, stop):
        yield SimpleNamespace(run=found, stop=stop)
        stop.settle()


def pass_time(now: list[float], watched: Any, seconds: int) -> None:
    """Let time pass, second by second."""
    for _ in range(seconds):
        now[0] += 1.0
        watched.run.wait()


def test_an_environment_in_a_step_while_all_was_suspended_is_not_given_up(now, watched):
    """As by Ctrl-Z for an hour, amid a step: it has had a second of its patience."""
    sign = Sign("environment 0")
    watched.run.wait()
    sign.doing = "step"
    watched.run.wait()
    now[0] += 3600.0
    watched.run.wait()
    assert not watched.stop.failure
    with pytest.raises(GivenUp):  # which it is where it was watched all the time
        pass_time(now, watched, 20)
    sign.doing = ""


def test_what_saves_behind_its_deadline_is_not_interrupted(now, watched):
    """A checkpoint that is half written would be lost, and with it the run's last hour."""
    watched.stop.is_saving = True
    watched.stop.request("SIGTERM")
    now[0] += 5.0 + 600.0
    watched.run.wait()
    assert watched.stop.raised is None
    watched.stop.asked_at = watched.stop.deadline = now[0]
    watched.stop.is_saving = False
    with pytest.raises(Overdue):
        pass_time(now, watched, 20)


def test_a_deadline_of_its_own_gives_nothing_more_time_than_a_stop_has(now):
    stop = Stop(5.0)
    stop.request("SIGINT")
    with stop.within(600.0):
        assert stop.deadline == now[0] + 5.0
    with stop.within(2.0):
        assert stop.deadline == now[0] + 2.0


def test_the_first_reason_to_end_holds():
    stop = Stop()
    stop.ask(Exit("done", "stop_after_seconds"))
    stop.request("SIGINT", 2)
    assert stop.exit == Exit("done", "stop_after_seconds")
    assert (stop.is_requested, stop.signal) == (True, 2)


def test_a_first_signal_interrupts_what_has_not_begun_and_not_what_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What closes is a run that has ended, whose simulators may be processes; a second one ends the process."""
    codes, stop = list[int](), Stop(5.0)
    monkeypatch.setattr(stopping_module, "end_at_once", codes.append)
    monkeypatch.setattr("gossamer.system.signals.REPEAT_SECONDS", 0.0)
    with Watch(3.0, Unsaved(stop), stop, last_resort=True) as watch, watch.leaving():
        with pytest.raises(Signalled) as raised:
            os.kill(os.getpid(), signal.SIGTERM)
        assert raised.value.number == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
        assert codes == [128 + signal.SIGTERM]
    closing, stop = Counted(), Stop(5.0)
    with Watch(3.0, closing, stop, last_resort=True) as watch, watch.leaving():
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop.is_requested, len(codes)) == (True, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert codes[1:] == [closing.last_words()]
