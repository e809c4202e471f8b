"""Odd command lines, settings files and run folders: one line each, and nothing made by what was refused."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from fuzz import SLOW_IS_FINE, TINY, Case, Fuzzer, cases
from hypothesis import given, seed, settings

SEEDS = (20_001, 20_002, 20_003, 20_004, 20_005, 20_006, 20_007, 20_008)
"""Of the minutes that `make learn` fuzzes for; the short part draws the same cases every time."""
LONG_SECONDS = 300.0
REAL = ["train", "CartPole-v1", *TINY, "--total-env-steps", "32"]


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzer]:
    folder = tmp_path_factory.mktemp("fuzz")
    # Threads and memory are set up once a process, by whichever test is first.
    with mock.patch.dict(os.environ, {"COLUMNS": "100"}):
        yield Fuzzer(folder)


def held_against(
    fuzzer: Fuzzer, num_cases: int, number: int | None, until: float = float("inf")
) -> None:
    @settings(max_examples=num_cases, database=None, deadline=None, suppress_health_check=SLOW_IS_FINE,
              derandomize=number is None)  # fmt: skip
    @given(cases)
    def throw(case: Case) -> None:
        if time.monotonic() < until:
            wrong = fuzzer.wrong(case)
            assert not wrong, wrong

    (throw if number is None else seed(number)(throw))()


def test_a_few_hundred_cases(fuzzer: Fuzzer) -> None:
    held_against(fuzzer, 250, None)
    assert set(fuzzer.ends) <= {0, 1, 2}
    assert min(fuzzer.ends[0], fuzzer.ends[2]) >= 50, "of both kinds"


@pytest.mark.slow
def test_five_minutes_of_cases(fuzzer: Fuzzer) -> None:
    until = time.monotonic() + LONG_SECONDS
    for number in SEEDS:
        held_against(fuzzer, 1000, number, until)


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
