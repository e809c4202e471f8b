"""What is asked of a running run through its folder: once each, in every placement, and nothing of an earlier session."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_placement import FakePlacement, Supervised, done, part, ready, told
from sessions import QUICK, Session, checkpoints, summary_of

from gossamer.record.exits import Exit
from gossamer.record.folder import RunFolder
from gossamer.record.requests import REQUESTS, Requests, ask, take
from gossamer.run.stopping import Stop, Watch, Watched


def test_a_request_is_taken_once(tmp_path: Path) -> None:
    assert take(tmp_path) == set()
    assert ask(tmp_path, "checkpoint")
    assert not ask(tmp_path, "checkpoint"), "asked before and not heard yet"
    assert ask(tmp_path, "stop")
    assert take(tmp_path) == {"checkpoint", "stop"}
    assert take(tmp_path) == set()
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_a_request_is_not_followed(tmp_path: Path) -> None:
    for request in REQUESTS:
        (tmp_path / f".asked-{request}").symlink_to(tmp_path / "elsewhere")
        assert not ask(tmp_path, request)
    assert not (tmp_path / "elsewhere").exists()


def test_a_request_that_cannot_be_taken_away_is_not_heard(tmp_path: Path) -> None:
    (tmp_path / ".asked-stop").mkdir()
    assert take(tmp_path) == set()


def test_a_request_to_stop_is_as_good_as_the_first_signal(tmp_path: Path) -> None:
    shown: list[str] = []

    class Run(Watched):
        def notice(self, text: str) -> bool:
            shown.append(text)
            return True

    stop = Stop()
    requests = Requests(tmp_path, partial(Watch(0.0, Run(), stop).request, "request"))
    requests.look()
    assert not stop.is_requested
    for _ in range(3):  # a run that is asked twice saves all the same
        ask(tmp_path, "stop")
        requests.look()
    assert stop.is_requested
    assert stop.exit == Exit("stopped", "request")
    assert len(shown) == 1


def test_a_session_is_asked_from_the_moment_its_folder_is_locked(tmp_path: Path) -> None:
    ask(tmp_path, "stop")
    ask(tmp_path, "checkpoint")
    folder = RunFolder(tmp_path)
    folder.lock()
    stop = Stop()
    ask(tmp_path, "stop")  # while it imports torch and makes its environments
    requests = Requests(tmp_path, partial(stop.request, "request"))
    requests.look()
    assert stop.is_requested
    assert not requests.hear("checkpoint"), "it was asked of an earlier session"
    folder.unlock()


def test_what_nobody_heard_goes_with_the_session(tmp_path: Path) -> None:
    requests = Requests(tmp_path, lambda: None)
    ask(tmp_path, "evaluate")
    requests.close()
    assert list(tmp_path.iterdir()) == []
    ask(tmp_path, "stop")
    requests.look()
    assert take(tmp_path) == {"stop"}, "looked after the session"


class FakeEvaluator:
    budget = longest_seconds = confirming_cost = seconds = 0.0
    pause = 1e9
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.asked = False
        self.played = 0

    def report_to(self, keeper: object) -> None: ...

    def close(self) -> None: ...

    def work(self, stop: object) -> None:
        self.asked = False
        self.played += 1


def test_a_checkpoint_is_ordered_once_and_not_before_learners_learn(tmp_path: Path) -> None:
    asked: list[int] = []
    placement = FakePlacement([])

    def ask_now() -> list[object]:
        ask(run.folder.path, "checkpoint")
        run.requests.look()
        return []

    def count() -> list[object]:
        run.checkpoints.finish()
        asked.append(placement.orders)
        return []

    placement.script = [
        ask_now, count, [ready()], [told(updates=1), part(number=1, updates=1)], count, count,
        [told(updates=2), part(number=2, updates=2)], count, count,
        [told(updates=3, last=True), part(updates=3)], [done()],
    ]  # fmt: skip
    run = Supervised(tmp_path, placement)
    run.run()
    run.close()
    # the first order is that of the beginning
    assert asked[0] == 0
    assert asked[-1] == 2
    assert run.said.count("saving a checkpoint, as was asked") == 1
    assert run.store.list() == [1, 2, 3]


@pytest.mark.parametrize("evaluates", ["in turn", "beside"])
def test_an_evaluation_is_played_at_once(tmp_path: Path, evaluates: str) -> None:
    evaluator, turns = FakeEvaluator(), []
    placement = FakePlacement([], evaluates=evaluates)
    placement.make_evaluator = lambda: evaluator  # type: ignore[method-assign]
    placement.boards = SimpleNamespace(
        evaluate_learner_next=lambda _: None, evaluate_run_policy_next=turns.append
    )
    evaluator.run = lambda: None  # type: ignore[attr-defined]

    def ask_now() -> list[object]:
        ask(run.folder.path, "evaluate")
        run.requests.look()
        return []

    placement.script = [
        [ready()], [told(updates=1), part(number=1, updates=1)], ask_now, [], [],
        [told(updates=2, last=True), part(updates=2)], [done()],
    ]  # fmt: skip
    run = Supervised(tmp_path, placement)
    run.run()
    run.close()
    assert turns[0] is None, "the run's policy is played, not one learner's"
    assert run.said.count("evaluating the newest policy, as was asked") == 1
    assert evaluator.played == (1 if evaluates == "in turn" else 0)
    assert evaluator.asked == (evaluates == "beside"), "the evaluator's thread sees to it"


def test_a_run_without_evaluation_says_so(tmp_path: Path) -> None:
    def ask_now() -> list[object]:
        ask(run.folder.path, "evaluate")
        run.requests.look()
        return []

    placement = FakePlacement([[ready()], [told(updates=1), part(number=1, updates=1)], ask_now])
    placement.script += [[told(updates=2, last=True), part(updates=2)], [done()]]
    run = Supervised(tmp_path, placement)
    run.run()
    run.close()
    assert run.said.count("no evaluation, as evaluation.every_seconds is 0") == 1


PLACEMENTS = [
    ["--placement", "inline"],
    ["--placement", "local"],
    ["--num-learners", "2", "topology:gossip"],
]


@pytest.mark.parametrize("words", PLACEMENTS, ids=" ".join)
def test_a_run_saves_evaluates_and_stops_when_asked(tmp_path: Path, words: list[str]) -> None:
    folder = tmp_path / "run"
    quick = [x for x in QUICK if x not in ("--evaluation.every-seconds", "0")]
    with Session(
        ["CartPole-v1", *quick, *words, "--run-folder", str(folder), "--checkpoint-every-seconds",
         "0", "--evaluation.every-seconds", "100000", "--evaluation.episodes", "1"],
        tmp_path,
    ) as session:  # fmt: skip
        session.wait_for(lambda: checkpoints(folder) and rows(folder, "metrics"), "a beginning")
        before = len(checkpoints(folder))
        ask(folder, "checkpoint")
        session.wait_for(lambda: len(checkpoints(folder)) > before, "a checkpoint")
        ask(folder, "evaluate")
        session.wait_for(lambda: rows(folder, "evaluation"), "an evaluation")
        ask(folder, "stop")
        ask(folder, "stop")
        code, _, errors = session.end()
        assert code == 0, errors
    assert summary_of(folder)["exit_reason"] == "stopped by request"
    row = json.loads((folder / "evaluation.jsonl").read_text().splitlines()[0])
    assert row["learner"] == ("average" if "topology:gossip" in words else 0)
    assert not list(folder.glob(".asked*"))


def rows(folder: Path, name: str) -> int:
    path = folder / f"{name}.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def test_a_waiting_evaluator_hears_at_once() -> None:
    from gossamer.links.stopping import StopSignal
    from gossamer.roles.evaluator import Evaluator

    stop, played = StopSignal(), threading.Event()

    class Plays(Evaluator):
        def work(self, stop: object = None) -> None:
            self.asked = False
            played.set()

    evaluator = Plays(
        None, [], [FakeTrial()], None, stop, greedy=True, seed=1,  # type: ignore[arg-type, list-item]
        every_seconds=1e6, max_time_fraction=0.1, confirm_episodes=1,
    )  # fmt: skip
    thread = threading.Thread(target=evaluator.run, daemon=True)
    thread.start()
    assert not played.wait(0.3)
    evaluator.asked = True
    assert played.wait(60.0)
    stop.stop()
    thread.join(60.0)
    assert not thread.is_alive()


class FakeTrial:
    episodes = 1

    def of(self, episodes: int) -> FakeTrial:
        return self
