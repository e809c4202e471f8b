"""Signals are heard once each, whatever the main thread is at, and are nobody's business in processes that are forked."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from gossamer.system import signals
from gossamer.system.signals import Signals

USER = signal.SIGUSR1


@pytest.fixture(autouse=True)
def no_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)


def test_each_signal_is_answered_once() -> None:
    heard: list[int] = []
    before = signal.getsignal(USER)
    with Signals(heard.append) as ours:
        for number in (USER, signal.SIGTERM, USER):
            signal.raise_signal(number)
        ours.hear()
    assert heard == [USER, signal.SIGTERM, USER]
    assert signal.getsignal(USER) == before
    assert signal.set_wakeup_fd(-1) == -1, "given back"


BESIDE = """
import os, signal, sys, threading
from gossamer.system.signals import Signals

answered, waits = [], threading.Event()
with Signals(lambda _: answered.append(threading.get_ident())) as ours:
    def beside():
        waits.wait()
        os.kill(os.getpid(), signal.SIGUSR1)
        ours.hear()
    thread = threading.Thread(target=beside)
    thread.start()
    # Nothing interrupts the main thread from here on until the other one has ended.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    sys.setswitchinterval(60.0)
    waits.set()
    thread.join()
    sys.setswitchinterval(0.005)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
assert answered == [thread.ident], "not by the handler again"
"""


def test_a_thread_hears_what_the_main_thread_does_not_come_to() -> None:
    # In a process of its own, which has no other threads.
    subprocess.run([sys.executable, "-c", BESIDE], check=True, timeout=120)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python tells of it
@pytest.mark.parametrize("how", ["an event loop took it", "the pipe was closed"])
def test_the_handler_answers_what_the_pipe_is_not_told(how: str) -> None:
    heard: list[int] = []
    with Signals(heard.append):
        ours = signal.set_wakeup_fd(-1)
        if how == "the pipe was closed":
            signal.set_wakeup_fd(ours)
            os.close(ours)
        signal.raise_signal(USER)
        assert heard == [USER]
        signal.raise_signal(USER)
        assert heard == [USER, USER]


def test_a_forked_process_is_ended_by_signals_and_its_parent_hears_none() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray leaves a handler of its own
    try:
        with Signals(heard.append) as ours:
            helper = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            helper.start()
            helper.terminate()
            helper.join(30)
            ours.hear()
            assert helper.exitcode == -signal.SIGTERM
            assert heard == []
            signal.raise_signal(USER)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [USER]


def test_what_nohup_has_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    heard: list[int] = []
    try:
        with Signals(heard.append):
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == []


def test_a_signal_that_comes_together_with_another_is_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 60.0)
    heard: list[int] = []
    with Signals(heard.append):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_signals_that_keep_coming_are_heard_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.5)
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    heard: list[float] = []
    with Signals(lambda _: heard.append(now[0])):
        for now[0] in (10.0, 10.3, 10.6, 10.9, 11.2):
            signal.raise_signal(signal.SIGINT)
    assert heard == [10.0, 10.6, 11.2]


def test_a_handler_that_is_called_as_a_function_answers() -> None:
    heard: list[int] = []
    with Signals(heard.append):
        handler = signal.getsignal(USER)
        assert callable(handler)
        handler(USER, None)
    assert heard == [USER]


def test_a_pipe_full_of_other_signals_loses_none_of_ours() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with Signals(heard.append):
            for _ in range(2_000):
                signal.raise_signal(signal.SIGALRM)
            signal.raise_signal(USER)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert heard == [USER]


def test_a_forked_process_may_leave_the_context() -> None:
    code = 1
    with Signals(lambda _: None) as ours:
        child = os.fork()
        if not child:
            try:
                ours.__exit__()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
    assert status == 0


def test_another_thread_than_the_main_one_takes_nothing_over() -> None:
    before, found = signal.getsignal(USER), []

    def beside() -> None:
        with Signals(lambda _: None) as ours:
            ours.hear()
            found.append(signal.getsignal(USER))

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    assert found == [before]
