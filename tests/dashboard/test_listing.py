"""The list of runs as its changes are told: in order, with every run that has gone, and with the run's own score."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_runs import made_runs
from made_sweeps import working
from scored_runs import make_run

from gossamer.dashboard.events import Events
from gossamer.dashboard.listing import Changes, Listing
from gossamer.dashboard.root import Root
from gossamer.record.files import LOCK

OVERTAKING_SECONDS = 0.3


def touch(folder: Path) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("{}\n")


def test_changes_are_told_in_their_order(tmp_path: Path) -> None:
    (folder,) = made_runs(tmp_path, 1, 5)
    listing = Listing(Root(tmp_path))
    others: list[threading.Thread] = []
    told: list[int] = []

    def slowly(changes: Changes) -> None:
        if not others:
            touch(folder)
            others.append(threading.Thread(target=listing.look))
            others[0].start()
            others[0].join(OVERTAKING_SECONDS)  # as a thread that is not scheduled for a while
        told.append(changes.version)

    listing.on_change = slowly
    listing.look()
    others[0].join()
    assert told == [1, 2]


class Vanishing(Root):
    """A root from which a folder goes between being found and being read."""

    goes: Path | None = None

    def find(self) -> Iterator[str]:
        found = list(super().find())
        if self.goes is not None:
            shutil.rmtree(self.goes)
            self.goes = None
        yield from found


def test_a_run_that_goes_while_it_is_looked_at_is_told_of(tmp_path: Path) -> None:
    _, folder = made_runs(tmp_path, 2, 5)
    root = Vanishing(tmp_path)
    listing = Listing(root)
    listing.look()
    gone: list[str] = []
    listing.on_change = lambda changes: gone.extend(changes.gone)
    root.goes = folder
    listing.look()
    assert gone == [str(folder.relative_to(tmp_path))]
    assert [run["id"] for run in listing.runs()] != gone
    listing.look()
    assert len(gone) == 1


@pytest.mark.parametrize(
    ("learners", "rows", "want"),
    [
        # Where learners mix, their average is the run's policy; single ones are evaluated in between.
        (2, [("average", 10.0, False), *[(1, 20.0, False)] * 3], 10.0),
        (2, [("average", 10.0, False), (1, 20.0, False), ("average", 30.0, True)], 10.0),
        # Those that never mix are told as the mean of each one's last.
        (2, [(0, 4.0, False), (1, 20.0, False), (0, 10.0, False)], 15.0),
        (1, [(0, 10.0, False), (0, 20.0, False)], 20.0),
        (1, [(0, 10.0, False), *[(0, 20.0, True)] * 3], 10.0),
    ],
)
def test_the_last_evaluation_is_of_the_run_s_policy(
    tmp_path: Path, learners: int, rows: list[tuple[int | str, float, bool]], want: float
) -> None:
    (folder,) = made_runs(tmp_path, 1, 5, learners=learners)
    with (folder / "evaluation.jsonl").open("w") as file:
        for learner, mean, confirmation in rows:
            # Long rows: the average's may be far from the end of the file.
            row = {"mean": mean, "returns": [mean] * 1000, "learner": learner}
            file.write(json.dumps({**row, "confirmation": confirmation}) + "\n")
        file.write('{"mean": null}\n')
    listing = Listing(Root(tmp_path))
    listing.look()
    (run,) = listing.runs()
    assert run["last_evaluation"] == want


def test_the_last_evaluation_of_learners_that_mix_no_more_is_their_own(tmp_path: Path) -> None:
    (folder,) = made_runs(tmp_path, 1, 5, learners=2)
    told = [("average", 50.0), (0, 10.0), (1, 20.0)]
    rows = [{"mean": x, "returns": [x], "learner": who, "confirmation": False} for who, x in told]
    (folder / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "topology": {"name": "single"}}))
    listing = Listing(Root(tmp_path))
    listing.look()
    (run,) = listing.runs()
    assert run["last_evaluation"] == 15.0


@pytest.mark.parametrize(
    ("folder", "want"),
    [
        ("CartPole-v1/ppo-single/20260101-120000-s1", "20260101-120000-s1"),
        ("CartPole-v1/ppo-single/20260101-120000-seeds/s12", "20260101-120000-seeds/s12"),
        ("sweeps/cartpole_sweep/000/s1", "cartpole_sweep/000/s1"),
        ("000/s1", "runs/000/s1"),
        ("s1", "runs/s1"),
        ("single", "single"),
    ],
)
def test_a_seed_of_many_is_called_by_what_it_belongs_to(
    tmp_path: Path, folder: str, want: str
) -> None:
    (made,) = made_runs(tmp_path / "made", 1, 5)
    shutil.copytree(made, tmp_path / "runs" / folder)
    listing = Listing(Root(tmp_path / "runs"))
    listing.look()
    (run,) = listing.runs()
    assert (run["id"], run["name"]) == (folder, want)


def test_a_candidate_is_told_until_it_is_decided(tmp_path: Path) -> None:
    (folder,) = made_runs(tmp_path, 1, 5)
    listing = Listing(Root(tmp_path))

    def told() -> float | None:
        listing.look()
        return listing.runs()[0]["candidate_evaluation"]

    assert told() is None
    candidate = folder / "checkpoints" / "candidate"
    candidate.mkdir(parents=True)
    (candidate / "manifest.json").write_text('{"score": 12.25}')
    assert told() == 12.25
    shutil.rmtree(candidate)
    assert told() is None


def test_a_return_tells_of_how_many_episodes_it_is_the_mean(tmp_path: Path) -> None:
    few = make_run(tmp_path, "few", returns=())
    many = make_run(tmp_path, "many", returns=(1.0, 2.0))
    row = {"time_s": 1.0, "env_steps": 1_000, "learner": 0, "episodes": 7, "return_mean_100": 3.0}
    (few / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (few / "episodes.jsonl").write_text('{"return": 3.0}\n' * 9)  # two have ended after the row
    (few / "summary.json").write_text('{"mean_return_last_100": 3.0}')
    listing = Listing(Root(tmp_path))
    listing.look()
    told = {run["id"]: run["mean_return_episodes"] for run in listing.runs()}
    assert told == {"few": 9, many.name: 100}


def test_a_run_that_is_being_resumed_is_where_its_checkpoint_is(tmp_path: Path) -> None:
    run = make_run(tmp_path, "resumed", returns=(1.0, 2.0))
    (run / "summary.json").unlink()
    (run / "checkpoints" / "3").mkdir(parents=True)
    (run / "checkpoints/3/state.json").write_text('{"held": {"learner.env_steps": 900}}')
    listing = Listing(Root(tmp_path))
    with working(run):
        (run / LOCK).write_text("1\n")  # as a run does that takes it
        listing.look()
        (found,) = listing.runs()
        assert (found["state"], found["env_steps"], found["mean_return"]) == ("running", 900, None)
        row = {"time_s": 3.0, "env_steps": 950, "learner": 0, "return_mean_100": 3.0}
        (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        listing.look()
        assert listing.run("resumed")["env_steps"] == 950


@pytest.mark.parametrize(
    ("name", "state"), [("3", {"held": {"learner.env_steps": 900}}), ("best", {"env_steps": 900})]
)
def test_a_checkpoint_alone_is_a_run_with_what_it_has_learnt(
    tmp_path: Path, name: str, state: dict[str, object]
) -> None:
    """As one that was downloaded and unpacked."""
    run = make_run(tmp_path, "unpacked", returns=())
    for file in ("summary.json", "metrics.jsonl", "evaluation.jsonl"):
        (run / file).unlink(missing_ok=True)
    listing = Listing(Root(tmp_path))
    listing.look()
    assert [(x["state"], x["env_steps"]) for x in listing.runs()] == [("empty", None)]
    (run / "checkpoints" / name).mkdir(parents=True)
    (run / "checkpoints" / name / "state.json").write_text(json.dumps(state))
    listing.look()
    (found,) = listing.runs()
    assert (found["state"], found["env_steps"], found["problem"]) == ("killed", 900, None)


def test_a_page_is_told_now_and_then_that_it_is_still_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an event, as it cannot see comments: a connection that has fallen silent is lost."""
    monkeypatch.setattr("gossamer.dashboard.events.ALIVE_SECONDS", 1.0)
    events = Events(Listing(Root(tmp_path)))

    async def stays() -> bool:
        return False

    async def told() -> list[bytes]:
        stream = events.stream(stays)
        found = [await anext(stream), await anext(stream)]
        await stream.aclose()
        return found

    first, second = asyncio.run(told())
    assert b"event: version" in first
    assert second == b"event: alive\ndata: 1\n\n"
