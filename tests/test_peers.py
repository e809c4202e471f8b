"""What benchmarks/peers/run.py runs, keeps, goes on with and tells, with trainers that train nothing."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "peers"
RUN = SimpleNamespace(**runpy.run_path(str(FOLDER / "run.py"), run_name="peers"))
METER = SimpleNamespace(**runpy.run_path(str(FOLDER / "meter.py"), run_name="meter"))


@dataclass
class FakeTrainer:
    """Gives what it is told to give, and notes what it was asked for."""

    title: str
    result: dict[str, Any] = field(default_factory=dict)
    tasks: tuple[str, ...] = tuple(RUN.TASKS)
    error: str = ""
    gpu_only: bool = False
    settings: str = "none"
    asked: list[tuple[str, int, float, str]] = field(default_factory=list)

    def install(self) -> dict[str, Any]:
        return {"error": self.error} if self.error else {}

    def measure(self, task: Any, *, seconds: float, seed: int, device: str) -> dict[str, Any]:
        self.asked.append((task.name, seed, seconds, device))
        if "error" in self.result:
            raise RUN.RunError(self.result["error"])
        return {
            "steps_per_second": 100.0 * seed,
            "env_steps": 1_000_000,
            "seconds": 12.3,
            "seconds_to_return": 9.9,
            "env_steps_to_return": 10,
            "mean_return": 21.0,
            "versions": {"fake": "1.0"},
            **self.result,
        }


def asked(output: Path, *more: str) -> argparse.Namespace:
    return RUN.parse(["--output", str(output), *more])


def idle() -> float:
    return 0.0


def runs(output: Path) -> list[dict[str, Any]]:
    return [row for row in RUN.read_rows(output) if row["kind"] == "run"]


def test_trainers_alternate_and_go_back_and_forth(tmp_path: Path) -> None:
    trainers = {"a": FakeTrainer("A"), "b": FakeTrainer("B")}
    words = asked(tmp_path / "out", "--tasks", "pong-speed", "cartpole-475", "--seeds", "7")
    order = [(task.name, name, seed) for task, name, seed in RUN.plan(words, trainers)]
    assert order == [
        *(("pong-speed", "a", 1), ("pong-speed", "b", 1)),
        *(("pong-speed", "b", 2), ("pong-speed", "a", 2)),
        *(("pong-speed", "a", 3), ("pong-speed", "b", 3)),
        *(("cartpole-475", "a", 7), ("cartpole-475", "b", 7)),
    ]


def test_the_same_command_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    output = tmp_path / "below" / "out.jsonl"
    trainers = {"a": FakeTrainer("A"), "b": FakeTrainer("B", {"error": "it fell"})}
    words = asked(output, "--tasks", "pong-speed", "--repeats", "2", "--seconds", "5")
    assert RUN.measure_all(words, trainers, idle) == 0
    assert trainers["a"].asked == [("pong-speed", 1, 5.0, "cpu"), ("pong-speed", 2, 5.0, "cpu")]
    assert [row.get("error") for row in runs(output)] == [None, "it fell", "it fell", None]

    # a run that was cut off in the middle of its line is run again, on a line of its own
    lines = output.read_text().splitlines()
    output.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])
    assert RUN.measure_all(words, trainers, idle) == 0
    assert len(trainers["a"].asked) == 3
    assert len(trainers["b"].asked) == 2
    assert len(runs(output)) == 4

    # failures are repeated only when asked for, other lengths and devices are other runs
    assert RUN.measure_all(words, trainers, idle) == 0
    assert len(trainers["b"].asked) == 2
    words.retry = True
    RUN.measure_all(words, trainers, idle)
    assert len(trainers["b"].asked) == 4
    words.retry, words.seconds = False, 6.0
    RUN.measure_all(words, trainers, idle)
    assert trainers["a"].asked[-1] == ("pong-speed", 2, 6.0, "cpu")


def test_a_busy_machine_is_refused_or_marked(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    trainers = {"a": FakeTrainer("A")}
    words = asked(output, "--tasks", "pong-speed", "--repeats", "1", "--wait-seconds", "0")
    assert RUN.measure_all(words, trainers, lambda: 1.2) == 1
    assert not runs(output)
    assert not trainers["a"].asked
    # it waits until the machine is quiet
    loads = iter([1.2, 0.9, 0.4])
    words.wait_seconds = 60.0
    assert RUN.measure_all(words, trainers, lambda: next(loads)) == 0
    assert [(row["load"], row["busy"]) for row in runs(output)] == [(0.4, False)]
    # or runs all the same, and says so
    words.busy, words.repeats = True, 2
    assert RUN.measure_all(words, trainers, lambda: 1.2) == 0
    assert runs(output)[-1]["busy"]
    assert "150 (100, 200) (busy)" in RUN.table(RUN.read_rows(output), trainers)
    # which is repeated, once, when it is quiet
    words.busy = False
    for _ in range(2):
        assert RUN.measure_all(words, trainers, idle) == 0
    assert [x[1] for x in trainers["a"].asked] == [1, 2, 2]
    assert "150 (100, 200) |" in RUN.table(RUN.read_rows(output), trainers)


def test_who_does_not_install_and_who_needs_a_gpu_are_not_run(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    trainers = {
        "a": FakeTrainer("A"),
        "b": FakeTrainer("B", error="ERROR: no | wheel"),
        "c": FakeTrainer("C", gpu_only=True),
    }
    RUN.measure_all(asked(output, "--tasks", "pong-speed", "--repeats", "1"), trainers, idle)
    assert not trainers["b"].asked
    assert not trainers["c"].asked
    text = RUN.table(RUN.read_rows(output), trainers)
    assert "| B | none | no: ERROR: no / wheel |" in text
    assert "| B | does not install | - | - | - | - |" in text
    assert "| A | none | fake 1.0 |" in text
    assert "| C | none | yes |" in text


def test_what_does_not_install_today_keeps_the_results_it_has(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    RUN.measure_all(
        asked(output, "--tasks", "pong-speed", "--repeats", "1"), {"a": FakeTrainer("A")}, idle
    )
    before = RUN.table(RUN.read_rows(output), {"a": FakeTrainer("A")}).splitlines()
    RUN.add_row(output, {"kind": "install", "trainer": "a", "machine": "another", "error": "no"})
    after = RUN.table(RUN.read_rows(output), {"a": FakeTrainer("A")}).splitlines()
    (told,) = [line for line in before if line.startswith("| A | 1")]
    assert told in after


def row(task: str, trainer: str, seed: int, **more: Any) -> dict[str, Any]:
    """Return what a run adds to the output."""
    return {
        "kind": "run",
        "task": task,
        "trainer": trainer,
        "seed": seed,
        "asked_seconds": 60,
        "device": "cpu",
        "machine": "M, 2 cores",
        "busy": False,
        "steps_per_second": None,
        "env_steps": 1_000_000,
        "seconds": 600.0,
        "seconds_to_return": None,
        "mean_return": None,
        **more,
    }


ROWS = [
    row("pong-speed", "gossamer", 1, steps_per_second=3000.0),
    row("pong-speed", "gossamer", 2, steps_per_second=2000.0),
    row("pong-speed", "sb3-ppo", 1, steps_per_second=1000.0),
    row("pong-speed", "sb3-ppo", 2, steps_per_second=500.0),
    row("pong-18", "gossamer", 1, seconds_to_return=171.6, mean_return=18.2),
    row("pong-18", "sb3-ppo", 1, seconds=3612.0, mean_return=-3.25),
    row("pong-18", "sb3-ppo", 2, error="exit code 1: ValueError: no"),
    row("halfcheetah-1m", "gossamer", 1, mean_return=5514.4),
    row("halfcheetah-1m", "sb3-ppo", 1, mean_return=812.0, env_steps=400_000, seconds=3600.0),
]


def test_the_table_says_what_was_measured_and_what_was_not() -> None:
    lines = RUN.table(ROWS).splitlines()
    ours = next(line for line in lines if line.startswith("| gossamer PPO |"))
    assert "2,500 (3,000, 2,000)" in ours
    assert "| 172 |" in ours
    assert "5,514 (600 s)" in ours
    theirs = next(line for line in lines if line.startswith("| Stable-Baselines3 PPO |"))
    assert "3.50 (3.00, 4.00)" in theirs
    assert "not in 3,612 (-3.2), 1 failed" in theirs
    assert "812 (3,600 s, 400,000 steps)" in theirs
    assert "not measured yet" in theirs
    assert "| Stable-Baselines3 PPO, pong-18, seed 2 | exit code 1: ValueError: no |" in lines
    assert not any(line.startswith("| LeanRL PPO | not") for line in lines)


def test_table_and_picture_need_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "agg")
    output, table, picture = (tmp_path / name for name in ("out.jsonl", "t.md", "p.svg"))
    output.write_text("".join(json.dumps(x) + "\n" for x in ROWS))
    words = ["--output", str(output), "--table", str(table), "--picture", str(picture)]
    RUN.main(words)
    assert table.read_text() == RUN.table(ROWS)
    first = picture.read_text()
    RUN.main(words)
    assert picture.read_text() == first


def test_a_peer_is_run_with_its_words_and_its_last_json_line_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "train.py").write_text(
        "import json, os, sys\n"
        "print('{not json'); print(json.dumps({'words': sys.argv[1:]})); print('Bye')\n"
        "print(float(os.environ['PEER_STARTED_AT']))\n"
    )
    interpreter = tmp_path / ".venv-fake" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(sys.executable)
    names = RUN.Peer.measure.__globals__
    monkeypatch.setitem(names, "PEERS_FOLDER", tmp_path)
    monkeypatch.setitem(names, "ROOT", tmp_path)
    peer = RUN.Peer("Fake", "none", "fake", ("pong-18",), "gossamer", ("--more", "1"))
    given = peer.measure(RUN.TASKS["pong-18"], seconds=5, seed=3, device="cpu")["words"]
    words = (
        "--env PongNoFrameskip-v4 --seconds 5 --seed 3 --device cpu --more 1 --stop-at-return 18"
    )
    assert " ".join(given) == words

    (folder / "train.py").write_text("raise SystemExit('ValueError: no such game')")
    with pytest.raises(RUN.RunError, match="exit code 1: ValueError: no such game"):
        peer.measure(RUN.TASKS["pong-speed"], seconds=5, seed=3, device="cpu")
    (folder / "train.py").write_text("print('nothing')")
    with pytest.raises(RUN.RunError, match="no result"):
        peer.measure(RUN.TASKS["pong-speed"], seconds=5, seed=3, device="cpu")
    # it is ended, with whatever it started, when it takes too long
    monkeypatch.setitem(names, "GRACE_SECONDS", 0.0)
    (folder / "train.py").write_text("import time; time.sleep(600)")
    with pytest.raises(RUN.RunError, match=r"no result after 0\.2 s"):
        peer.measure(RUN.TASKS["pong-speed"], seconds=0.2, seed=3, device="cpu")


def test_every_peer_has_a_folder_a_rival_and_a_script() -> None:
    for name, peer in RUN.TRAINERS.items():
        if isinstance(peer, RUN.Gossamer):
            continue
        assert peer.rival in RUN.TRAINERS, name
        assert (FOLDER / peer.folder / "requirements.txt").exists(), name
        assert set(peer.tasks) <= set(RUN.TASKS), name
        if name != "torchbeast":  # which no registry has
            assert (FOLDER / peer.folder / "train.py").exists(), name


def test_errors_name_no_folder_of_this_machine() -> None:
    said = f"Traceback\n  File {RUN.ROOT}/x.py\nWARNING: Error\nERROR: {RUN.ROOT}/y is missing\n"
    assert RUN.last_errors(said) == "ERROR: ./y is missing"
    assert RUN.last_errors("") == "it said nothing"


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now

    monotonic = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setitem(METER.Meter.__init__.__globals__, "time", made)
    monkeypatch.setenv("PEER_STARTED_AT", "90.0")
    return made


def report(meter: Any, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    meter.report(("no-such-package",))
    return RUN.read_result(capsys.readouterr().out)


def test_speed_is_measured_between_the_ends_of_updates(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    meter = METER.Meter(METER.parser("").parse_args(["--seconds", "10"]))
    meter.stepped(1000)
    clock.now += 50.0  # compiling does not count
    meter.updated()
    clock.now += 15.0
    assert not meter.over  # one update has no speed
    meter.stepped(300)
    meter.updated()
    assert meter.over
    meter.stepped(99)
    told = report(meter, capsys)
    assert told["steps_per_second"] == pytest.approx(20.0)
    assert (told["env_steps"], told["seconds"], told["mean_return"]) == (1399, 75.0, None)


def test_a_score_is_the_mean_of_a_hundred_episodes(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    meter = METER.Meter(METER.parser("").parse_args(["--stop-at-return", "18"]))
    meter.stepped(10, [-21.0] * 8)
    meter.stepped(10, [21.0] * 91)
    clock.now = 130.0
    meter.stepped(10, [21.0])
    assert not meter.over
    clock.now = 140.0
    meter.stepped(10, [21.0])
    assert meter.over
    told = report(meter, capsys)
    assert (told["seconds_to_return"], told["env_steps_to_return"]) == (50.0, 40)
    assert told["mean_return"] == pytest.approx(18.06)


def test_a_peer_may_average_by_itself(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--stop-at-return", "18", "--total-env-steps", "500"]
    meter = METER.Meter(METER.parser("").parse_args(words))
    meter.told(100, float("nan"), full=False)
    meter.told(200, 20.0, full=False)
    assert not meter.over
    meter.told(300, 18.5, full=True)
    assert meter.over
    assert report(meter, capsys)["mean_return"] == 18.5
    late = METER.Meter(METER.parser("").parse_args(words))
    late.told(500, None, full=False)
    assert late.over
