"""Odd command lines, settings files and run folders: one line each, and nothing made by what was refused."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from fuzz import SLOW_IS_FINE, TINY, Case, Fuzzer, cases
from hypothesis import Phase, given, seed, settings

LONG_CASES = 1000
"""`make learn` throws so many at least, and more until its time is over."""
LONG_SECONDS = 300.0
REAL = ["train", "CartPole-v1", *TINY, "--total-env-steps", "32"]


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzer]:
    folder = tmp_path_factory.mktemp("fuzz")
    # Threads and memory are set up once a process, by whichever test is first.
    with mock.patch.dict(os.environ, {"COLUMNS": "100"}):
        yield Fuzzer(folder)


def throw(fuzzer: Fuzzer, num_cases: int, number: int) -> None:
    """Hold gossamer against cases, drawn by a seed."""

    # Not made smaller: each trial may take a second, and the test has two minutes.
    @settings(max_examples=num_cases, phases=[Phase.generate], suppress_health_check=SLOW_IS_FINE)
    @seed(number)
    @given(cases)
    def each(case: Case) -> None:
        wrong = fuzzer.wrong(case)
        assert not wrong, wrong

    each()


def test_many_cases(fuzzer: Fuzzer, pytestconfig: pytest.Config) -> None:
    before = fuzzer.ends.copy()
    throw(fuzzer, 150, int(pytestconfig.option.hypothesis_seed))
    ends = fuzzer.ends - before
    assert set(ends) <= {0, 1, 2}
    assert ends.total() >= 150
    assert min(ends[0], ends[2]) >= 30, "of both kinds"


@pytest.mark.slow
def test_five_minutes_of_cases(fuzzer: Fuzzer, pytestconfig: pytest.Config) -> None:
    before, began = fuzzer.ends.total(), time.monotonic()
    number = int(pytestconfig.option.hypothesis_seed) + 1  # the short part has drawn its own
    throw(fuzzer, LONG_CASES, number)
    while time.monotonic() - began < LONG_SECONDS:
        number += 1
        throw(fuzzer, 100, number)
    assert fuzzer.ends.total() - before >= LONG_CASES


@pytest.mark.parametrize(
    "words",
    [
        [*REAL, "--actor-threads", "1e12"],
        [*REAL, "--learner-threads", "1025"],
        [*REAL, "algorithm:vtrace", "--algorithm.clip-rho", "1e300"],
        [*REAL, "algorithm:vtrace", "--algorithm.clip-c", "1e300"],
        [*REAL, "--algorithm.discount", "nan"],
        [*REAL, "--algorithm.entropy-cost", "1e300"],
        [*REAL, "--algorithm.value-cost", "1e300"],
        [*REAL, "--optimizer.learning-rate", "1e300"],
        [*REAL, "--optimizer.epsilon", "1e300"],
        [*REAL, "--policy.obs-clip", "1e300"],
        [*REAL, "--policy.init-log-std", "-1e300"],
        [*REAL, "--policy.hidden-sizes", "1e9"],
        [*REAL, "--stop-after-seconds", "1e300"],
        [*REAL, "--stop-at-return", "-1e300"],
        [*REAL, "--checkpoint-every-seconds", "1e12"],
        [*REAL, "--seed", "1e30"],
        [*REAL, "--seed", "9" * 400],
        [*REAL, "--num-envs", "9" * 5000],
        [*REAL, "--unroll-length", "1e12"],
        [*REAL, "--max-episode-steps", "1e12"],
        [*REAL, "--run-folder", "~no-such-user/run"],
        [*REAL, "--run-folder", "a\0b"],
        [*REAL, "--run-folder", "\ud800"],
        [*REAL, "--run-folder", "x" * 300],
        [*REAL, "--run-folder", "x/" * 3000],
        [*REAL, "--init-from", "~no-such-user"],
        [*REAL, "--init-from", "a\0b"],
        [*REAL, "--replay-ratio", "1", "algorithm:laser", "--replays.1.path", "~no-such-user"],
        [*REAL, "topology:gossip", "--topology.graph", "x" * 300],
        [*REAL, "topology:gossip", "--topology.graph", "[" * 10_000],
        ["train", "a\0b"],
        ["train", "\ud800:x"],
        ["train", "..:x"],
        ["train", "x" * 5000],
        ["train", "CartPole-v1", "--config", "x" * 300],
        ["train", "CartPole-v1", "--config", "a\0b.toml"],
        ["train", "CartPole-v1", "--config", "~no-such-user/x.toml"],
        ["train", "CartPole-v1", "--config", "/dev/zero"],
        ["train", "CartPole-v1", "--replays", "[" * 10_000],
        ["train", "--resume", "a\0b"],
        ["train", "--resume", "x" * 300],
        ["eval", "~no-such-user/x"],
        ["eval", "\ud800"],
        ["eval", "last", "--seed", "1e300"],
        ["eval", "last", "a/" * 3000],
        ["eval", "last", "a/" * 1100],
        ["eval", "--algorithm.discount", '--sample={"' + "a/" * 1500 + '": 1}'],
        ["cluster", "check", "a/" * 3000],
        ["train", "replays:" + "a/" * 3000],
        ["train", "algorithms:ppo" + "/a" * 3000],
        ["train", "CartPole-v1", "a/" * 3000],
        ["train", "a/" * 3000, "CartPole-v1"],
        ["eval", "last", "--episodes", "1e18"],
        ["runs", "~no-such-user"],
        ["runs", "a\0b"],
        ["runs", "x" * 300],
        ["bench", "--seconds", "1"],
        ["tune", "CartPole-v1", "--output", "a\0b.toml"],
        ["tune", "CartPole-v1", "--output", "x" * 300 + ".toml"],
    ],
    ids=lambda words: (
        " ".join(words[-2:])[:40].encode("ascii", "backslashreplace").decode().replace("\0", "0")
    ),
)
def test_what_once_fell_is_refused(words: list[str], fuzzer: Fuzzer) -> None:
    refused = fuzzer.ends[2]
    wrong = fuzzer.wrong(Case(words))
    assert not wrong, wrong
    assert fuzzer.ends[2] == refused + 1


@pytest.mark.parametrize("name", ["x.toml", "x.json"])
def test_a_pipe_and_a_device_as_settings(name: str, fuzzer: Fuzzer, tmp_path: Path) -> None:
    for how in ("pipe", "folder", "link"):
        case = Case(
            ["train", "CartPole-v1", "--config", name, "--show-config"],
            {name: b""},
            spoilt=[(name, how, None)],
        )
        refused = fuzzer.ends[2]
        wrong = fuzzer.wrong(case)
        assert not wrong, (how, wrong)
        assert fuzzer.ends[2] == refused + 1


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ("algorithm:vtrace --algorithm.clip-rho 1e15 --optimizer.max-grad-norm 1e12", 0),
        ("--seed 9223372036854775807", 0),
        ("--stop-after-seconds 1e9 --checkpoint-every-seconds 1e9", 0),
        ("--policy.obs-clip 1e15 --algorithm.value-cost 1e6", 0),
    ],
)
def test_what_is_allowed_runs(words: str, allowed: int, fuzzer: Fuzzer) -> None:
    done = fuzzer.ends[allowed]
    wrong = fuzzer.wrong(Case([*REAL, *words.split()]))
    assert not wrong, wrong
    assert fuzzer.ends[allowed] == done + 1
